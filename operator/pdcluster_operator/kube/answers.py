"""What the API server's rejections mean.

Pure. One table for all of them: whether to look again, to wait, or to tell a person.

Source: Kubernetes API conventions, "HTTP status codes"; a pod template that can't be typed was seen
as a 500 whose message says so.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

from pdcluster_operator.errors import (
    ApplyRejectedError,
    ClusterApiError,
    ConflictError,
    MissingError,
    OperatorError,
)

__all__ = ["error_of"]

_UNTYPED: Final = "failed to create typed patch object"
_MESSAGE_MAX: Final = 800


def error_of(what: str, status: int, body: str, retry_after: str | None) -> OperatorError:
    """Name a rejection.

    Args:
        what: What was asked, for the message.
        status: HTTP status.
        body: The answer, a ``Status`` object as a rule.
        retry_after: The header's value.
    """
    said = _message(body)
    message = f"{what}: {said or HTTPStatus(status).phrase}"
    if _UNTYPED in said:
        return ApplyRejectedError(message, is_template=True)
    if status == HTTPStatus.NOT_FOUND:
        return MissingError(message)
    if status in {HTTPStatus.CONFLICT, HTTPStatus.GONE}:
        return ConflictError(message)
    if status in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}:
        return ApplyRejectedError(message, is_template="spec.template" in said)
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return ClusterApiError(message, retry_after_s=seconds)


def _message(body: str) -> str:
    try:
        status = json.loads(body)
    except ValueError:
        return body.strip()[:_MESSAGE_MAX]
    message = status.get("message") if isinstance(status, dict) else None
    return str(message)[:_MESSAGE_MAX] if message else ""
