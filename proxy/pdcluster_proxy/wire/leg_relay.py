"""The engine's side of one relay: reads go to the client in the read callback itself.

Shell. It moves bytes and keeps the tally; what may go out and how it is framed is
``core/framing.py``. No task wakes per chunk, no timer is set per stream.

Source:
    ``performance.md`` 3.3 of the design.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from pdcluster_proxy.core.framing import FramingError, StreamFraming, is_whole_events
from pdcluster_proxy.core.ports import RelayEnd, RelayOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LegRelay", "RelaySource"]


class RelaySource(Protocol):
    """The connection that a relay reads from."""

    @property
    def is_complete(self) -> bool:
        """The response has ended by its framing."""

    def pause_reading(self) -> None:
        """Stop reading from the engine."""

    def resume_reading(self) -> None:
        """Read from the engine again."""


class OnEnd(Protocol):
    """Ends the leg that is relayed."""

    def __call__(self, *, may_reuse: bool) -> None:
        """Give the connection back, or close it."""


class LegRelay:
    """One stream on its way from an engine to a client.

    Args:
        framing: Decides what goes out.
        write: The client's side.
        source: The engine's connection; None where it has ended already.
        is_complete: The whole body is in the framing already.
        on_end: Ends the leg; called once.
        left: Body bytes to come where the body is framed by length; else None.
        idle_timeout_s: Longest silence of the engine, in seconds; a stall that the client causes
            does not count.

    Attributes:
        done: Set once with how it ended; never raises.
    """

    # This is all the mutable state.
    __slots__ = (
        "_first_at",
        "_framing",
        "_heard_at",
        "_idle_timeout_s",
        "_is_clean",
        "_is_client_slow",
        "_is_complete",
        "_last_at",
        "_left",
        "_num_bytes",
        "_on_end",
        "_reads",
        "_source",
        "_write",
        "done",
    )

    def __init__(
        self,
        framing: StreamFraming,
        write: Callable[[bytes], None],
        *,
        source: RelaySource | None,
        is_complete: bool,
        on_end: OnEnd,
        left: int | None,
        idle_timeout_s: float,
    ) -> None:
        self._framing = framing
        self._write = write
        self._on_end: OnEnd = on_end
        self._left = left
        self._idle_timeout_s = idle_timeout_s
        self._source = source
        self._is_complete = is_complete
        self._is_client_slow = False
        self._is_clean = False
        self._reads = 0
        self._num_bytes = 0
        self._first_at: float | None = None
        self._last_at: float | None = None
        self._heard_at = time.monotonic()
        self.done: asyncio.Future[RelayEnd] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Give out what was held before, then whatever the engine's connection delivers."""
        self._give(b"")
        self._is_clean = self._framing.is_clean
        source = self._source
        if self._is_complete:
            self._complete()
        elif source is None:
            self.lose()
        elif not self._is_client_slow:
            source.resume_reading()

    def pass_on(self, data: bytes) -> bool:
        """Forward a read as it came, where it may go out so: the hot path of the whole proxy.

        Returns:
            False where it has to be parsed and delivered.
        """
        if not self._is_clean or not is_whole_events(data):
            return False
        self._heard_at = self._last_at = now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
        self._reads += 1
        self._num_bytes += len(data)
        write = self._write  # Calling the attribute itself is slower: it is a slot.
        write(data)
        return True

    def deliver(self, data: bytes) -> None:
        """One read of the engine's body that was parsed."""
        source = self._source
        if source is None:  # It is over.
            return
        self._heard_at = now = time.monotonic()
        self._reads += 1
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        try:
            out = self._framing.forward(data)
        except FramingError:
            self.lose()
            return
        self._is_clean = self._framing.is_clean
        if out:
            self._last_at = now
            if self._first_at is None:
                self._first_at = now
            self._num_bytes += len(out)
            self._write(out)
        if source.is_complete:
            self._complete()

    def pause(self) -> None:
        """The client does not keep up."""
        self._is_client_slow = True
        if self._source is not None:
            self._source.pause_reading()

    def resume(self) -> None:
        """The client has caught up."""
        self._is_client_slow = False
        self._heard_at = time.monotonic()
        if self._source is not None:
            self._source.resume_reading()

    def client_gone(self) -> None:
        """The client has closed its connection: the engine's is closed at once."""
        self._end(RelayOutcome.CLIENT_GONE)

    def lose(self) -> None:
        """The engine's connection or framing broke."""
        self._end(RelayOutcome.UPSTREAM_LOST)

    def end_of_input(self, *, is_complete: bool) -> None:
        """The engine's connection has ended."""
        if is_complete:
            self._complete()
        else:
            self.lose()

    def check(self, now: float) -> None:
        """Look at the clock: part of the client's sweep."""
        if self._is_client_slow:
            self._heard_at = now
        elif now - self._heard_at > self._idle_timeout_s:
            self._end(RelayOutcome.UPSTREAM_IDLE)

    def _give(self, data: bytes) -> None:
        try:
            out = self._framing.forward(data)
        except FramingError:
            self.lose()
            return
        if out:
            self._write_out(out)

    def _write_out(self, out: bytes) -> None:
        self._last_at = time.monotonic()
        if self._first_at is None:
            self._first_at = self._last_at
        self._num_bytes += len(out)
        self._write(out)

    def _complete(self) -> None:
        if self.done.done():
            return
        rest = self._framing.finish()
        if rest:
            self._write_out(rest)
        is_terminated = self._framing.is_terminated
        self._end(RelayOutcome.COMPLETE if is_terminated else RelayOutcome.UNTERMINATED)

    def _end(self, outcome: RelayOutcome) -> None:
        if self.done.done():
            return
        self._source = None
        self._is_clean = False
        on_end, self._on_end = self._on_end, _end_nothing  # Else it would be a reference cycle.
        on_end(may_reuse=outcome in (RelayOutcome.COMPLETE, RelayOutcome.UNTERMINATED))
        self.done.set_result(
            RelayEnd(
                outcome=outcome,
                reads=self._reads,
                num_bytes=self._num_bytes,
                first_at=self._first_at,
                last_at=self._last_at,
            )
        )


def _end_nothing(*, may_reuse: bool) -> None:
    """What is left to end once the relay has ended."""
    del may_reuse
