"""Every stable code a client can get: its status, what it means, what to do.

Pure. ``docs/errors.md`` is rendered from this table; a test holds it against the sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["CODES", "ErrorCode"]


class ErrorCode(NamedTuple):
    """One row.

    Attributes:
        status: HTTP status, or where in a stream it comes.
        meaning: What happened.
        remedy: What the client or the operator does.
    """

    status: str
    meaning: str
    remedy: str


_RETRY: Final = "Retry."
_RETRY_LATER: Final = "Retry after `Retry-After`."
_MEND: Final = "Mend the request; `param` names the field."

CODES: Final[Mapping[str, ErrorCode]] = {
    "invalid-request": ErrorCode("400", "Not JSON, a wrong type, or a reserved field.", _MEND),
    "malformed-request": ErrorCode("400", "Not valid HTTP.", "Mend the client."),
    "model-not-found": ErrorCode("404", "Another model than the served one.", "See `/v1/models`."),
    "unknown-route": ErrorCode("404", "No such route.", "The message lists the routes."),
    "method-not-allowed": ErrorCode(
        "405", "The route has no such method.", "See the `Allow` header."
    ),
    "request-too-slow": ErrorCode(
        "408", "Head or body came too slowly; a body may take 120 s.", "Send faster."
    ),
    "body-too-large": ErrorCode("413", "Over the body cap (8 MiB).", "Send less."),
    "content-encoding": ErrorCode("415", "A compressed body.", "Send it plain."),
    "head-too-large": ErrorCode(
        "431", "Over 64 KiB or 100 fields of header or trailer.", "Send fewer."
    ),
    "http-error": ErrorCode("4xx", "Another error of the router.", "Mend the request."),
    "prefill-rejected": ErrorCode("4xx", "The prefill engine's own words.", "Mend the request."),
    "decode-rejected": ErrorCode("4xx", "The decode engine's own words.", "Mend the request."),
    "pipeline-full": ErrorCode(
        "429", "Over 128 requests wait on one connection.", "Read answers before you go on."
    ),
    "rejected-queue-full": ErrorCode("429", "The admission queue is full.", _RETRY_LATER),
    "evicted-queue-timeout": ErrorCode("429", "Waited too long for admission.", _RETRY_LATER),
    "prefill-busy": ErrorCode(
        "408, 429, 502 to 504", "Every prefill engine is busy.", _RETRY_LATER
    ),
    "decode-busy": ErrorCode("429, 503", "The decode engines are busy.", _RETRY_LATER),
    "client-gone": ErrorCode("499", "The client left; in metrics and logs only.", "Nothing."),
    "internal-error": ErrorCode("500", "A bug of the proxy.", "Report it with the request id."),
    "method-rejected": ErrorCode("501", "TRACE and CONNECT are not served.", "Mend the client."),
    "method-unknown": ErrorCode("501", "Not an HTTP method.", "Mend the client."),
    "transfer-coding": ErrorCode("501", "Another one than `chunked`.", "Send it plain."),
    "prefill-failed": ErrorCode("502", "A prefill engine failed, nobody else took it.", _RETRY),
    "prefill-lost": ErrorCode("502", "The connection to a prefill engine broke.", _RETRY),
    "decode-failed": ErrorCode("502, in a stream", "A decode engine failed.", _RETRY),
    "decode-lost": ErrorCode(
        "502, in a stream", "The connection to a decode engine broke.", _RETRY
    ),
    "decode-idle": ErrorCode("in a stream", "The decode engine fell silent.", _RETRY),
    "hand-off-unusable": ErrorCode(
        "502", "P's answer holds no usable params.", "Check P's `--kv-transfer-config`."
    ),
    "no-prefill-engine": ErrorCode(
        "503", "No prefill engine is ready.", "See the admin `/readyz`."
    ),
    "no-decode-engine": ErrorCode("503", "No decode engine is ready.", "See the admin `/readyz`."),
    "bodies-full": ErrorCode(
        "503", "Over 256 MiB of unfinished bodies in one worker.", _RETRY_LATER
    ),
    "no-pair": ErrorCode("503", "No P and D of one revision are ready.", "Finish the rollout."),
    "prefill-unreachable": ErrorCode("503", "Connects to prefill engines fail.", _RETRY_LATER),
    "decode-unreachable": ErrorCode("503", "Connects to decode engines fail.", _RETRY_LATER),
    "hand-off-late": ErrorCode(
        "503", "Three hand-offs came too late.", "See [Failure modes](failure-modes.md)."
    ),
    "decode-hold-bound": ErrorCode("503", "D did not begin within the hold bound.", _RETRY_LATER),
    "proxy-stopping": ErrorCode("in a stream", "The proxy's grace is over.", _RETRY),
    "prefill-timeout": ErrorCode("504", "The prefill engine did not answer in time.", _RETRY),
    "decode-timeout": ErrorCode("504", "The decode engine did not answer in time.", _RETRY),
    "request-timeout": ErrorCode(
        "504, in a stream", "`requestTimeoutSeconds` has passed.", "Ask for less, or raise it."
    ),
    "version-unsupported": ErrorCode("505", "Not HTTP/1.0 or HTTP/1.1.", "Mend the client."),
}
"""By code: ``error.code``, the header ``x-pdcluster-reason``, the metric's label, the log."""
