"""Exit codes of the command; part of its interface.

Pure.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["EXIT_CODE_HELP", "ExitCode"]


class ExitCode(IntEnum):
    """How a command ended."""

    WELL = 0
    """Done, nothing found."""
    FINDING = 1
    """Something was found wrong, or is not ready: an engine that cannot start."""
    WRONG_USE = 2
    """A file, an option or the machine must be changed first: bad resource, port taken."""
    NOT_REACHABLE = 3
    """What was asked for could not be reached."""
    TIMED_OUT = 4
    """It took longer than it may."""


EXIT_CODE_HELP = (
    "Exit codes: 0 well, 1 a finding or not ready, 2 wrong use, 3 not reachable, 4 timed out."
)
