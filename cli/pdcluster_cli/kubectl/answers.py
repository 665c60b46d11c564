"""What the API server's rejections mean to a person.

Pure. One table for all of them.

Source: Kubernetes API conventions, "HTTP status codes"; a path below ``/apis`` that no definition
serves was seen to be answered with 404 and the plain words "404 page not found"; kubelet's and the
pod registry's answers to who asks for the log of a container that has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus

from pdcluster_api.defaults import API_GROUP, API_VERSION
from pdcluster_cli.errors import CliError
from pdcluster_cli.kubectl.errors import (
    DefinitionMissingError,
    ForbiddenError,
    NoPreviousLogError,
    NotStartedError,
    ObjectMissingError,
    ServerError,
    UnauthorizedError,
)

__all__ = ["error_of", "message_of"]

_MESSAGE_MAX_CHARS = 600
_CUT = "..."
_NO_PREVIOUS = re.compile(r"previous terminated container .* not found")
_NOT_STARTED = (
    re.compile(r"is waiting to start: (.+)"),
    re.compile(r"(is waiting to start)$"),
    re.compile(r"(does not have a host assigned)"),
)


def message_of(body: str) -> str:
    """What an answer says in words: a ``Status`` object's message, or the text itself."""
    status = _status_object(body)
    said = status.get("message") if status is not None else None
    text = " ".join((said if isinstance(said, str) else body).split())
    return text if len(text) <= _MESSAGE_MAX_CHARS else text[:_MESSAGE_MAX_CHARS] + _CUT


def error_of(path: str, status: int, body: str) -> CliError:
    """Name a rejection.

    Args:
        path: What was asked for.
        status: HTTP status.
        body: The answer, a ``Status`` object as a rule.
    """
    said = message_of(body)
    if not said.endswith(_CUT):
        said = said.rstrip(".")
    if status == HTTPStatus.UNAUTHORIZED:
        return UnauthorizedError(
            f"the API server does not accept your credentials ({said or 'Unauthorized'}); log in "
            "again, or choose another --context"
        )
    if status == HTTPStatus.FORBIDDEN:
        return ForbiddenError(
            f"{said or 'forbidden'}; ask for that right, or name a namespace with -n in which you "
            "have it"
        )
    if status == HTTPStatus.NOT_FOUND:
        if _status_object(body) is None and path.startswith(f"/apis/{API_GROUP}/"):
            return DefinitionMissingError(
                f"this Kubernetes cluster does not know PDClusters ({API_VERSION}); install the "
                "chart, or its CRDs, or choose another --context"
            )
        return ObjectMissingError(said or f"{path} was not found")
    is_log = status == HTTPStatus.BAD_REQUEST and path.endswith("/log")
    return (_no_log(said) if is_log else None) or ServerError(
        f"the API server answered {status} ({said or 'without a word'}); try again"
    )


def _no_log(said: str) -> CliError | None:
    """Why a container has no log, where that is as it should be."""
    if _NO_PREVIOUS.search(said):
        return NoPreviousLogError("has no previous container")
    why = next((found for each in _NOT_STARTED if (found := each.search(said))), None)
    return None if why is None else NotStartedError(f"has not started: {why[1]}")


def _status_object(body: str) -> Mapping[str, object] | None:
    try:
        parsed = json.loads(body)
    except ValueError:
        return None
    is_status = isinstance(parsed, Mapping) and parsed.get("kind") == "Status"
    return parsed if is_status else None
