"""Draws a run: a live table on a terminal, plain lines otherwise.

Shell: writes to a rich console. What it draws is decided in :mod:`view`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pdcluster_cli.up.snapshot import Snapshot
from pdcluster_cli.up.view import STOPPED, Row, rows

__all__ = ["Screen"]

_COLOURS: Final = {
    "starting": "yellow",
    "loading": "yellow",
    "ready": "green",
    "draining": "cyan",
    "exited": "red",
    STOPPED: "dim",
}


class Screen:
    """A listener that shows what happens."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare.

        Args:
            console: Where to draw.
            clock: Monotonic seconds.
        """
        self._console = console
        self._clock = clock
        self._began_at = clock()
        self._shown: dict[str, Row] = {}
        self._drawn: tuple[Row, ...] | None = None
        self._live = (
            # Drawn when something has changed, not by a clock: what stands still can be selected.
            Live(console=console, auto_refresh=False) if console.is_terminal else None
        )

    def __enter__(self) -> Self:
        """Begin to draw."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last table on the terminal."""
        if self._live is not None:
            self._live.stop()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this screen was made."""
        return self._clock() - self._began_at

    def changed(self, snapshot: Snapshot) -> None:
        """Show the latest snapshot."""
        current = rows(snapshot, now=self._clock())
        if self._live is not None:
            if current != self._drawn:
                self._drawn = current
                self._live.update(_table(current), refresh=True)
            return
        for row in current:
            before = self._shown.get(row.name)
            if before is None or before.phase != row.phase:
                self._line(row)
        for name in self._shown.keys() - {row.name for row in current}:
            self._print(f"{self.elapsed_s:6.1f} s  {name:<12} gone")
        self._shown = {row.name: row for row in current}

    def _line(self, row: Row) -> None:
        line = f"{self.elapsed_s:6.1f} s  {row.name:<12} {row.state:<10} {row.address}"
        self._print(line)

    def told(self, message: str) -> None:
        """Show a message above the table."""
        self._print(message)

    def _print(self, text: str) -> None:
        # Messages hold file content: no markup, no folding of what people copy.
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(current: tuple[Row, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("PROGRAM", "STATE", "ADDRESS", "RESTARTS", "LOG"):
        table.add_column(title, no_wrap=True)
    for row in current:
        table.add_row(
            row.name,
            # Not markup: messages printed above are printed without, and redraw the table.
            Text(row.state, style=_COLOURS[row.phase]),
            row.address,
            str(row.restarts),
            row.log,
        )
    return table
