"""Runs a command line: signals, and errors of ours as messages and exit codes.

Shell. Shared by ``pdcluster`` and ``kubectl pdcluster``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from pdcluster_cli.exit_codes import ExitCode

__all__ = ["run_command_line", "run_until_interrupted"]

_BROKEN_PIPE = 128 + 13
"""As a shell tells of a program that SIGPIPE has ended."""


def _heeded() -> list[signal.Signals]:
    """Signals that end a command; what was started under `nohup` outlives its terminal."""
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in ending if signal.getsignal(number) is not signal.SIG_IGN]


def run_until_interrupted(verb: Callable[[], Coroutine[Any, Any, ExitCode]]) -> ExitCode:
    """Run a verb of coroutines; a signal cancels it where it waits.

    An exception from a signal's handler would come up in the middle of a library's code, which
    leaves coroutines behind that nobody has awaited, with a warning about each.
    """
    import asyncio  # noqa: PLC0415 - starts fast

    async def interruptible() -> ExitCode:
        task = asyncio.current_task()
        assert task is not None
        for number in _heeded():
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await verb()

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        return ExitCode.INTERRUPTED


def run_command_line(load: Callable[[], Callable[[], object]], *, interrupted: str) -> None:
    """Run a command; an error of ours becomes its message and exit code.

    Args:
        load: Imports the command and gives it: an interrupt meanwhile finds its handler in place.
        interrupted: What to say when a signal ends it; empty for nothing.
    """

    def end(number: int, frame: object) -> NoReturn:  # noqa: ARG001 - signal's own arguments
        if interrupted:
            print(interrupted, file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)

    # Until a verb handles them itself, which `up` does before it starts anything.
    for number in _heeded():
        signal.signal(number, end)

    from pdcluster_lease.errors import PDClusterError  # noqa: PLC0415 - starts fast

    try:
        load()()
    except PDClusterError as error:
        print(f"Error: {error}", file=sys.stderr)
        # A resource that must be changed has no exit code of its own.
        code: ExitCode = getattr(error, "exit_code", ExitCode.WRONG_USE)
        sys.exit(code)
    except BrokenPipeError:
        # Whoever read has seen enough; what is left in the buffer must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_BROKEN_PIPE)
