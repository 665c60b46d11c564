"""Exit codes of the command; part of its interface.

Pure. One table; help texts and pages are rendered from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

__all__ = ["EXIT_CODE_HELP", "MEANINGS", "ExitCode"]


class ExitCode(IntEnum):
    """How a command ended; :data:`MEANINGS` says it in words."""

    WELL = 0
    FINDING = 1
    WRONG_USE = 2
    NOT_REACHABLE = 3
    TIMED_OUT = 4
    INTERRUPTED = 130
    """128 + SIGINT, as shells have it."""


MEANINGS: Final[Mapping[ExitCode, str]] = {
    ExitCode.WELL: "done; `up`: stopped as asked, drained or at once",
    ExitCode.FINDING: "something is wrong: a program cannot start, a PDCluster is not ready",
    ExitCode.WRONG_USE: (
        "a word, the file or the machine must be changed first: bad resource, port taken, no "
        "engine, no such PDCluster"
    ),
    ExitCode.NOT_REACHABLE: "what was asked for cannot be reached",
    ExitCode.TIMED_OUT: "it took longer than it may",
    ExitCode.INTERRUPTED: "interrupted before anything ran",
}
"""What each exit code tells."""

EXIT_CODE_HELP: Final = (
    "Exit codes: " + "; ".join(f"{code.value} {words}" for code, words in MEANINGS.items()) + "."
)
