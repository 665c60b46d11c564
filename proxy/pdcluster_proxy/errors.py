"""The proxy's errors: the fault is in the type.

Pure. Families name where it went wrong; each error carries the status a client would get, whether
the exchange may try again, and a stable reason. Foreign exceptions are mapped to these in one
function per boundary.
"""

from __future__ import annotations

from typing import ClassVar

from pdcluster_lease.errors import PDClusterError

__all__ = [
    "BackgroundEndedError",
    "ClientGoneError",
    "ConnectError",
    "ConnectionLostError",
    "HandOffError",
    "LinkError",
    "LocalFailureError",
    "ProxyError",
    "RejectedError",
    "SupervisorGoneError",
    "UpstreamFailureError",
    "UpstreamTimeoutError",
]


class ProxyError(PDClusterError):
    """Base of the proxy's errors.

    Attributes:
        status: HTTP status for the client once no try is left.
    """

    status: ClassVar[int] = 500


class RejectedError(ProxyError):
    """Rejected before any leg: bad request, no ready endpoint, over capacity.

    Attributes:
        status_code: HTTP status for the client.
        code: The stable kebab-case word for the error's ``code``, header, metric and log.
        param: The request field at fault, or None.
        retry_after_s: Seconds for ``Retry-After``, or None.
    """

    reason: ClassVar[str] = "Rejected"

    def __init__(
        self,
        message: str,
        *,
        status_code: int,
        code: str,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


class SupervisorGoneError(ProxyError):
    """The supervisor ended before one of its processes began."""

    reason: ClassVar[str] = "SupervisorGone"


class BackgroundEndedError(ProxyError):
    """A task that runs for the life of its process has ended: the process must begin anew."""

    reason: ClassVar[str] = "BackgroundEnded"


class LinkError(ProxyError):
    """Companion and worker do not understand each other: the connection must begin anew."""

    reason: ClassVar[str] = "Link"


class ClientGoneError(ProxyError):
    """The client closed its connection."""

    reason: ClassVar[str] = "ClientGone"
    status: ClassVar[int] = 499


class LocalFailureError(ProxyError):
    """We could not reach or hear the engine.

    Attributes:
        accepted: Whether the engine may have taken any byte of the request.
    """

    reason: ClassVar[str] = "LocalFailure"
    status: ClassVar[int] = 502

    def __init__(self, message: str, *, accepted: bool) -> None:
        super().__init__(message)
        self.accepted = accepted


class ConnectError(LocalFailureError):
    """Nobody listens, or the connect timed out: provably no byte of ours was accepted."""

    reason: ClassVar[str] = "ConnectFailed"
    status: ClassVar[int] = 503

    def __init__(self, message: str) -> None:
        super().__init__(message, accepted=False)


class ConnectionLostError(LocalFailureError):
    """The connection was reset or closed before the answer was complete."""

    reason: ClassVar[str] = "ConnectionLost"


class UpstreamTimeoutError(LocalFailureError):
    """The engine took longer than the first-byte, idle or overall bound."""

    reason: ClassVar[str] = "UpstreamTimeout"
    status: ClassVar[int] = 504

    def __init__(self, message: str) -> None:
        super().__init__(message, accepted=True)


class UpstreamFailureError(ProxyError):
    """The engine answered badly: not HTTP, not JSON, too large, or an error."""

    reason: ClassVar[str] = "UpstreamFailure"
    status: ClassVar[int] = 502


class HandOffError(ProxyError):
    """Lease over, params missing or malformed: the hand-off cannot be made."""

    reason: ClassVar[str] = "HandOff"
    status: ClassVar[int] = 502
