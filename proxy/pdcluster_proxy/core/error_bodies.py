"""Error bodies in the shape of each API, with stable types and codes.

Pure.

Source: vLLM's ``ErrorResponse``; the fixed set of types is ``routing.md`` 9.1 of the design.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["REASON_HEADER", "error_body", "error_event", "error_type"]

REASON_HEADER: Final = b"x-pdcluster-reason"
"""Response header that repeats the error's stable code."""

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_SERVER_ERROR: Final = 500
_ENCODER: Final = msgspec.json.Encoder()


class _Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


def error_type(status: int) -> str:
    """Name the OpenAI-style type of a status."""
    default = "server_error" if status >= _SERVER_ERROR else "invalid_request_error"
    return _TYPES.get(status, default)


def error_body(
    *, status: int, code: str, message: str, param: str | None = None, request_id: str = ""
) -> bytes:
    """Render one error, never wrapped twice.

    Args:
        status: The HTTP status it goes out with.
        code: The stable kebab-case word.
        message: What happened and what to do.
        param: The request field at fault.
        request_id: Named in errors that are not the client's fault, so that logs can be searched.
    """
    if request_id and status >= _SERVER_ERROR:
        message = f"{message} (request id {request_id})"
    return _ENCODER.encode({"error": _Error(message, error_type(status), param, code)})


def error_event(*, status: int, code: str, message: str, request_id: str) -> bytes:
    """Render an error as the last event of a stream that has begun."""
    body = error_body(status=status, code=code, message=message, request_id=request_id)
    return b"data: " + body + b"\n\n"
