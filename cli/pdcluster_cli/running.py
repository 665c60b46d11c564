"""Runs a command line: signals, and errors of ours as messages and exit codes.

Shell. Shared by ``pdcluster`` and ``kubectl pdcluster``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from pdcluster_cli.exit_codes import ExitCode

__all__ = ["run_command_line"]

_BROKEN_PIPE = 128 + 13
"""As a shell tells of a program that SIGPIPE has ended."""


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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
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
