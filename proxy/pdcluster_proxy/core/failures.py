"""What a bad end of a leg means: for the client, for the blame, for the next try.

Pure. Every :class:`Failure` is made here: of a status, of one of our errors, or under its own name;
the exchange decides on that and nothing else.

Source: ``routing.md`` section 9.3 of the design; the row ids (P1, D4, ...) are its.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from pdcluster_proxy.core.messages import OutcomeKind
from pdcluster_proxy.core.ports import ResponseHead
from pdcluster_proxy.core.replies import rejection_body, upstream_error_message
from pdcluster_proxy.core.sse import begins_answer
from pdcluster_proxy.errors import (
    ConnectError,
    HandOffError,
    LocalFailureError,
    ProxyError,
    RejectedError,
    UpstreamTimeoutError,
)

__all__ = [
    "Failure",
    "FailureKind",
    "Leg",
    "blame",
    "broken_stream",
    "failure_of_answer",
    "failure_of_error",
    "failure_of_first_event",
    "failure_of_rejection",
    "failure_of_status",
    "hand_off_late",
    "internal_error",
    "is_final",
    "nobody_decodes_in_time",
    "nobody_serves",
    "proxy_stopping",
    "request_timeout",
    "settle_silence",
]

_BUSY_STATUSES: Final = frozenset({408, 429, 502, 503, 504})
_CLIENT_ERROR: Final = range(400, 500)
_SERVER_ERROR: Final = 500
_TOO_MANY: Final = 429

MAX_RETRY_AFTER_S: Final = 3600
"""Longest ``Retry-After`` of an engine that is passed on, in seconds; a longer one becomes this."""


class Leg(StrEnum):
    """One upstream request."""

    PREFILL = "prefill"
    DECODE = "decode"


class FailureKind(StrEnum):
    """Kinds of bad ends that lead to different next steps."""

    REJECTED = "rejected"
    """This very request is not taken (4xx): the client's fault; an engine's words are passed on."""
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


_FINAL_KINDS: Final = frozenset({FailureKind.REJECTED, FailureKind.OUT_OF_TIME})


class Failure(msgspec.Struct, frozen=True, gc=False):
    """One bad end.

    Attributes:
        kind: What it was.
        status: What the client gets once no try is left.
        code: Stable kebab-case word for the error's code, header, metric and log.
        message: For the client: what happened and what to do.
        body: The engine's own error body to pass on (REJECTED only), connector fields taken out;
            None where the message is put into one of ours.
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
            FailureKind.REJECTED,
            status,
            f"{leg}-rejected",
            upstream_error_message(body),
            body=rejection_body(body),
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


def failure_of_answer(leg: Leg, head: ResponseHead, body: bytes) -> Failure:
    """Classify an answer that is not 200, from its head and body."""
    retry_after = next((value for name, value in head.headers if name == b"retry-after"), b"")
    return failure_of_status(leg, head.status, body, retry_after_s=_seconds(retry_after))


def _seconds(retry_after: bytes) -> int | None:
    """Read an engine's ``Retry-After``; None where it is no number (vLLM sends no dates)."""
    if not retry_after.isdigit():
        return None
    digits = retry_after.lstrip(b"0") or b"0"
    # Python itself refuses to read thousands of digits.
    is_long = len(digits) > len(str(MAX_RETRY_AFTER_S))
    return MAX_RETRY_AFTER_S if is_long else min(int(digits), MAX_RETRY_AFTER_S)


def failure_of_first_event(event: bytes) -> Failure | None:
    """Tell whether a stream's first event is a failure or rubbish: nothing was committed yet."""
    if begins_answer(event):
        return None
    message = "The decode engine failed before its first token. Retry the request."
    return Failure(FailureKind.BROKEN, 502, "decode-failed", message, answered=True)


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


def failure_of_rejection(error: RejectedError) -> Failure:
    """Make the failure of a request that never entered: the proxy's own, before any leg."""
    return Failure(
        FailureKind.REJECTED,
        error.status_code,
        error.code,
        str(error),
        retry_after_s=error.retry_after_s,
    )


def settle_silence(failure: Failure, *, is_held: bool, is_over: bool, request_s: float) -> Failure:
    """Give an engine's silence the name of the bound that it ran into.

    Only a silence longer than an engine may take is the engine's fault: the hold bound (D7) is the
    lease's, and our own deadline says nothing about anybody, nor does a connect that it cut short.

    Args:
        failure: How a leg ended.
        is_held: The hold bound was the nearer one.
        is_over: The request's own deadline has passed.
        request_s: The request's time, in seconds.
    """
    if is_over and failure.kind is FailureKind.UNREACHED:
        return request_timeout(request_s)
    if failure.kind is not FailureKind.SILENT:
        return failure
    if is_held:
        message = "No decode engine began to answer within the hold bound. Retry the request."
        return Failure(
            FailureKind.HELD_TOO_LONG, 503, "decode-hold-bound", message, retry_after_s=1
        )
    return request_timeout(request_s) if is_over else failure


def broken_stream(code: str, message: str) -> Failure:
    """Make the failure of a stream that has begun."""
    return Failure(FailureKind.BROKEN, 502, code, f"{message} The answer is cut short.")


def nobody_serves(code: str, message: str) -> Failure:
    """Make the failure of an exchange that nobody can serve now."""
    return Failure(FailureKind.UNREACHED, 503, code, message, retry_after_s=1)


def nobody_decodes_in_time() -> Failure:
    """Make the failure of a hand-off whose wait for a decode engine is over."""
    message = "No decode engine became ready in time. Retry the request."
    return nobody_serves("no-decode-engine", message)


def hand_off_late() -> Failure:
    """Make the failure of an exchange whose hand-offs came too late again and again."""
    message = "The hand-off to a decode engine came too late. Retry the request."
    return nobody_serves("hand-off-late", message)


def proxy_stopping() -> Failure:
    """Make the failure of a stream that outlives the proxy's grace (S4)."""
    message = "The proxy stops. The answer is cut short."
    return Failure(FailureKind.BROKEN, 503, "proxy-stopping", message)


def internal_error() -> Failure:
    """Make the failure of an exchange that a bug of ours ended."""
    message = "The proxy failed. This is a bug; the log holds the cause."
    return Failure(FailureKind.BROKEN, 500, "internal-error", message)


def request_timeout(request_s: float) -> Failure:
    """Make the failure of an exchange whose overall deadline has passed."""
    message = f"The answer was not complete within {request_s:g} s. Ask for less, or retry."
    return Failure(FailureKind.OUT_OF_TIME, 504, "request-timeout", message)


def blame(failure: Failure) -> OutcomeKind | None:
    """Tell what the endpoint's record gets; None where it is not to blame."""
    match failure.kind:
        case (
            FailureKind.REJECTED
            | FailureKind.BUSY
            | FailureKind.HELD_TOO_LONG
            | FailureKind.OUT_OF_TIME
        ):
            return None
        case FailureKind.UNREACHED:
            return OutcomeKind.FAILED_LOCALLY
        case FailureKind.BROKEN | FailureKind.SILENT:
            return OutcomeKind.FAILED_UPSTREAM


def is_final(failure: Failure) -> bool:
    """Tell whether nothing else is tried after it, whatever is left to try."""
    return failure.kind in _FINAL_KINDS
