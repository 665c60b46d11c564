"""What the API server's rejections mean.

Pure. One table for all of them: whether to look again, to wait, or to tell a person.

Source: Kubernetes API conventions, "HTTP status codes"; a pod template that can't be typed, and a
webhook that does not answer, were seen as a 500 whose message says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from pdcluster_operator.errors import (
    ApplyRejectedError,
    ClusterApiError,
    ConflictError,
    ForbiddenError,
    MissingError,
    OperatorError,
    TerminatingError,
)
from pdcluster_operator.model.sentences import cut

__all__ = ["error_of"]

_UNTYPED: Final = "failed to create typed patch object"
_WEBHOOK_AWAY: Final = "failed calling webhook"
_TERMINATING: Final = "because it is being terminated"
# For some seconds a server does not know the kind of an owner whose definition is new.
_NEW_KIND: Final = "no matches for kind"
_MESSAGE_MAX: Final = 800
_BY_STATUS: Final[Mapping[int, type[OperatorError]]] = {
    HTTPStatus.NOT_FOUND: MissingError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.GONE: ConflictError,
}


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
        return ApplyRejectedError(message, is_template=True, said=said)
    if status in _BY_STATUS:
        return _BY_STATUS[status](message)
    if status in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}:
        return ApplyRejectedError(message, is_template="spec.template" in said, said=said)
    if status == HTTPStatus.FORBIDDEN and _TERMINATING in said:
        return TerminatingError(message)
    is_forbidden = status == HTTPStatus.FORBIDDEN and _NEW_KIND not in said
    if is_forbidden or _WEBHOOK_AWAY in said:
        return ForbiddenError(message, said=said)
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return ClusterApiError(message, retry_after_s=seconds)


def _message(body: str) -> str:
    try:
        status = json.loads(body)
    except ValueError:
        return cut(body, _MESSAGE_MAX)
    message = status.get("message") if isinstance(status, dict) else None
    return cut(str(message), _MESSAGE_MAX) if message else ""
