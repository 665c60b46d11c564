"""What keeps ``kubectl pdcluster`` from an answer.

Pure. Each message says what is wrong, with which object, and what to do next.
"""

from __future__ import annotations

from typing import ClassVar

from pdcluster_cli.errors import CliError
from pdcluster_cli.exit_codes import ExitCode

__all__ = [
    "ClusterMissingError",
    "DefinitionMissingError",
    "ForbiddenError",
    "KubeconfigError",
    "NoPreviousLogError",
    "NotStartedError",
    "ObjectMissingError",
    "OptionsError",
    "ServerError",
    "UnauthorizedError",
    "UnreachableError",
]


class OptionsError(CliError):
    """Options that exclude one another."""

    reason: ClassVar[str] = "OptionsInvalid"
    exit_code: ClassVar[ExitCode] = ExitCode.WRONG_USE


class KubeconfigError(CliError):
    """There is no kubeconfig, or it can't be used."""

    reason: ClassVar[str] = "KubeconfigInvalid"
    exit_code: ClassVar[ExitCode] = ExitCode.WRONG_USE


class ClusterMissingError(CliError):
    """No PDCluster has that name in that namespace."""

    reason: ClassVar[str] = "ClusterMissing"
    exit_code: ClassVar[ExitCode] = ExitCode.WRONG_USE


class ObjectMissingError(CliError):
    """The API server knows the kind, but has no object of that name."""

    reason: ClassVar[str] = "ObjectMissing"
    exit_code: ClassVar[ExitCode] = ExitCode.WRONG_USE


class DefinitionMissingError(CliError):
    """The API server does not know PDClusters."""

    reason: ClassVar[str] = "DefinitionMissing"
    exit_code: ClassVar[ExitCode] = ExitCode.NOT_REACHABLE


class UnauthorizedError(CliError):
    """The API server does not know who asks."""

    reason: ClassVar[str] = "Unauthorized"
    exit_code: ClassVar[ExitCode] = ExitCode.NOT_REACHABLE


class ForbiddenError(CliError):
    """Who asks may not."""

    reason: ClassVar[str] = "Forbidden"
    exit_code: ClassVar[ExitCode] = ExitCode.NOT_REACHABLE


class NoPreviousLogError(CliError):
    """The container has not been started anew: there is none before it."""

    reason: ClassVar[str] = "NoPreviousLog"
    exit_code: ClassVar[ExitCode] = ExitCode.FINDING


class NotStartedError(CliError):
    """The container has not been started, and has no log."""

    reason: ClassVar[str] = "NotStarted"
    exit_code: ClassVar[ExitCode] = ExitCode.FINDING


class UnreachableError(CliError):
    """No API server answers."""

    reason: ClassVar[str] = "Unreachable"
    exit_code: ClassVar[ExitCode] = ExitCode.NOT_REACHABLE


class ServerError(CliError):
    """The API server has answered, and with nothing that helps."""

    reason: ClassVar[str] = "ServerFailed"
    exit_code: ClassVar[ExitCode] = ExitCode.NOT_REACHABLE
