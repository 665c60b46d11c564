"""What a bad end of a leg means: for the client, for the blame, for the next try.

Pure. One function per boundary turns a status or one of our errors into a :class:`Failure`; the
exchange decides on that and nothing else.

Source: ``routing.md`` section 9.3 of the design; the row ids (P1, D4, ...) are its.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from pdcluster_proxy.core.messages import OutcomeKind
from pdcluster_proxy.core.replies import upstream_error_message
from pdcluster_proxy.errors import (
    ConnectError,
    HandOffError,
    LocalFailureError,
    ProxyError,
    UpstreamTimeoutError,
)

__all__ = [
    "Failure",
    "FailureKind",
    "Leg",
    "blame",
    "failure_of_error",
    "failure_of_status",
    "request_timeout",
]

HTTP_OK: Final = 200
_BUSY_STATUSES: Final = frozenset({408, 429, 502, 503, 504})
_CLIENT_ERROR: Final = range(400, 500)
_SERVER_ERROR: Final = 500
_TOO_MANY: Final = 429


class Leg(StrEnum):
    """One upstream request."""

    PREFILL = "prefill"
    DECODE = "decode"


class FailureKind(StrEnum):
    """Kinds of bad ends that lead to different next steps."""

    REFUSED = "refused"
    """The engine refuses this very request (4xx): the client's fault, passed on as it is."""
    UNREACHED = "unreached"
    """No byte of ours was accepted: what we hold is still good (class 1)."""
    BUSY = "busy"
    """It answered that it can't now (P2, D3)."""
    BROKEN = "broken"
    """It answered badly, or the connection broke (P3, P5, P6, D4, D5, D6)."""
    SILENT = "silent"
    """It took longer than a bound of ours allows (P4, D4)."""
    HELD_TOO_LONG = "held-too-long"
    """No answer of D within the hold bound of the lease (D7)."""
    OUT_OF_TIME = "out-of-time"
    """The request's own deadline has passed: nobody's fault, and nothing is tried any more."""


class Failure(msgspec.Struct, frozen=True, gc=False):
    """One bad end.

    Attributes:
        kind: What it was.
        status: What the client gets once no try is left.
        code: Stable kebab-case word for the error's code, header, metric and log.
        message: For the client: what happened and what to do.
        body: The engine's own error body to pass on as it is (REFUSED only), else None.
        retry_after_s: ``Retry-After`` in seconds, or None.
        answered: The engine has answered, so it will not read the lease's blocks any more.
    """

    kind: FailureKind
    status: int
    code: str
    message: str
    body: bytes | None = None
    retry_after_s: int | None = None
    answered: bool = False


def failure_of_status(
    leg: Leg, status: int, body: bytes, *, retry_after_s: int | None = None
) -> Failure:
    """Classify an answer that is not 200.

    Args:
        leg: Which leg it ends.
        status: The engine's HTTP status.
        body: Its body.
        retry_after_s: Its ``Retry-After`` in whole seconds where it sent one.
    """
    if status in _BUSY_STATUSES and not (leg is Leg.DECODE and status not in {_TOO_MANY, 503}):
        return Failure(
            FailureKind.BUSY,
            status,
            f"{leg}-busy",
            f"The {leg} engine is busy (HTTP {status}).",
            retry_after_s=retry_after_s or 1,
            answered=True,
        )
    if status in _CLIENT_ERROR:
        return Failure(
            FailureKind.REFUSED,
            status,
            f"{leg}-refused",
            upstream_error_message(body),
            body=body,
            answered=True,
        )
    code = f"{leg}-failed"
    what = f"HTTP {status}" if status >= _SERVER_ERROR else f"an unexpected HTTP {status}"
    # A 5xx's text is the engine's own affair: it is logged, not shown.
    return Failure(
        FailureKind.BROKEN,
        502,
        code,
        f"The {leg} engine failed ({what}). Retry the request.",
        answered=True,
    )


def failure_of_error(leg: Leg, error: ProxyError) -> Failure:
    """Classify one of the wire's errors."""
    if isinstance(error, ConnectError):
        return Failure(
            FailureKind.UNREACHED,
            503,
            f"{leg}-unreachable",
            f"The {leg} engine cannot be reached. Retry the request.",
            retry_after_s=1,
        )
    if isinstance(error, UpstreamTimeoutError):
        return Failure(
            FailureKind.SILENT,
            504,
            f"{leg}-timeout",
            f"The {leg} engine did not answer in time.",
        )
    if isinstance(error, LocalFailureError):
        kind = FailureKind.BROKEN if error.accepted else FailureKind.UNREACHED
        return Failure(
            kind,
            error.status,
            f"{leg}-lost",
            f"The connection to the {leg} engine broke. Retry the request.",
        )
    code = "hand-off-unusable" if isinstance(error, HandOffError) else f"{leg}-failed"
    return Failure(FailureKind.BROKEN, error.status, code, str(error), answered=True)


def request_timeout(request_s: float) -> Failure:
    """Make the failure of an exchange whose overall deadline has passed."""
    message = f"The answer was not complete within {request_s:g} s. Ask for less, or retry."
    return Failure(FailureKind.OUT_OF_TIME, 504, "request-timeout", message)


def blame(failure: Failure) -> OutcomeKind | None:
    """Tell what the endpoint's record gets; None where it is not to blame."""
    match failure.kind:
        case (
            FailureKind.REFUSED
            | FailureKind.BUSY
            | FailureKind.HELD_TOO_LONG
            | FailureKind.OUT_OF_TIME
        ):
            return None
        case FailureKind.UNREACHED:
            return OutcomeKind.FAILED_LOCALLY
        case FailureKind.BROKEN | FailureKind.SILENT:
            return OutcomeKind.FAILED_UPSTREAM
