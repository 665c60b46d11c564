"""The command line's errors.

Pure. Each carries the exit code it ends the command with; its message says what is wrong, with
which object, and what to do next.
"""

from __future__ import annotations

from typing import ClassVar

from pdcluster_cli.exit_codes import ExitCode
from pdcluster_lease.errors import PDClusterError

__all__ = [
    "CliError",
    "EngineMissingError",
    "FileError",
    "PortTakenError",
    "StartError",
    "StartTimeoutError",
]


class CliError(PDClusterError):
    """Base of the command line's errors.

    Attributes:
        exit_code: What the command exits with.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FINDING


class FileError(CliError):
    """A file cannot be read."""

    reason: ClassVar[str] = "FileUnreadable"
    exit_code: ClassVar[ExitCode] = ExitCode.WRONG_USE


class PortTakenError(CliError):
    """Somebody else listens on a port we need."""

    reason: ClassVar[str] = "PortTaken"
    exit_code: ClassVar[ExitCode] = ExitCode.WRONG_USE


class EngineMissingError(CliError):
    """The engine that was asked for is not on this machine."""

    reason: ClassVar[str] = "EngineMissing"
    exit_code: ClassVar[ExitCode] = ExitCode.WRONG_USE


class StartError(CliError):
    """A program ended before it was ever ready."""

    reason: ClassVar[str] = "StartFailed"


class StartTimeoutError(CliError):
    """A program did not become ready within its start-up budget."""

    reason: ClassVar[str] = "StartTimedOut"
    exit_code: ClassVar[ExitCode] = ExitCode.TIMED_OUT
