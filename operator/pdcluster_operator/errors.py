"""What can go wrong with the Kubernetes API.

Pure.
"""

from __future__ import annotations

from typing import ClassVar

from pdcluster_lease.errors import PDClusterError

__all__ = [
    "ApplyRejectedError",
    "ClusterApiError",
    "ConflictError",
    "ForbiddenError",
    "MissingError",
    "OperatorError",
    "RejectedError",
    "StrangerError",
    "TerminatingError",
]


class OperatorError(PDClusterError):
    """The operator could not do what a plan asks for."""


class ClusterApiError(OperatorError):
    """The API server did not answer, or not now.

    Attributes:
        retry_after_s: It asks for so many seconds of patience; None: it does not say.
    """

    reason: ClassVar[str] = "ClusterApiFailed"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ConflictError(OperatorError):
    """The object is another one than was observed: look again."""

    reason: ClassVar[str] = "Conflict"


class MissingError(OperatorError):
    """The object is not there."""

    reason: ClassVar[str] = "NotFound"


class StrangerError(OperatorError):
    """An object of a child's name is there and is not ours.

    Attributes:
        live: The object.
    """

    reason: ClassVar[str] = "NameTaken"

    def __init__(self, message: str, live: dict[str, object]) -> None:
        super().__init__(message)
        self.live = live


class TerminatingError(OperatorError):
    """The namespace is on its way out: nothing is made in it any more."""

    reason: ClassVar[str] = "NamespaceTerminating"


class RejectedError(OperatorError):
    """The API server won't have what it was asked for.

    Attributes:
        said: Its own words.
    """

    def __init__(self, message: str, *, said: str = "") -> None:
        super().__init__(message)
        self.said = said or message


class ForbiddenError(RejectedError):
    """The API server forbids it: a right, a quota, a policy; that may change at any time."""

    reason: ClassVar[str] = "ApplyForbidden"


class ApplyRejectedError(RejectedError):
    """The API server found the content wrong.

    Attributes:
        is_template: A pod template that Kubernetes does not understand.
    """

    reason: ClassVar[str] = "ApplyRejected"

    def __init__(self, message: str, *, is_template: bool, said: str = "") -> None:
        super().__init__(message, said=said)
        self.is_template = is_template
