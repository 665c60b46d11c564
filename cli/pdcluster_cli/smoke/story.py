"""What the chart's test makes, and how it judges what it sees.

Pure. It says nothing about speed or figures: a cluster that answers one request whole is well
installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from pdcluster_api import defaults
from pdcluster_cli.errors import CliError
from pdcluster_cli.exit_codes import ExitCode

__all__ = [
    "Answer",
    "AnswerError",
    "ApiError",
    "ClusterRejectedError",
    "NameTakenError",
    "NotReadyError",
    "Standing",
    "StillThereError",
    "is_ours",
    "question",
    "read_answer",
    "simulated_cluster",
    "standing_of",
]

MODEL: Final = "simulated"
_MARK: Final = {"app.kubernetes.io/component": "test", "app.kubernetes.io/managed-by": "pdcluster"}
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"


class ApiError(CliError):
    """The Kubernetes API, or the cluster's Service, did not do what it was asked."""

    reason: ClassVar[str] = "ApiUnusable"
    exit_code: ClassVar[ExitCode] = ExitCode.NOT_REACHABLE


class NameTakenError(CliError):
    """A PDCluster of the test's name is there that no test has made."""

    reason: ClassVar[str] = "NameTaken"
    exit_code: ClassVar[ExitCode] = ExitCode.WRONG_USE


class ClusterRejectedError(CliError):
    """The operator says that it can't act on the cluster."""

    reason: ClassVar[str] = "ClusterRejected"


class NotReadyError(CliError):
    """The cluster did not become ready in time."""

    reason: ClassVar[str] = "NotReady"
    exit_code: ClassVar[ExitCode] = ExitCode.TIMED_OUT


class AnswerError(CliError):
    """The answer was no whole answer."""

    reason: ClassVar[str] = "AnswerBroken"


class StillThereError(CliError):
    """The cluster was deleted, and what belongs to it did not go in time."""

    reason: ClassVar[str] = "StillThere"
    exit_code: ClassVar[ExitCode] = ExitCode.TIMED_OUT


def simulated_cluster(
    name: str, *, image: str, pull_policy: str, pull_secrets: tuple[str, ...]
) -> dict[str, object]:
    """Make the smallest cluster there is: one engine of each role, one proxy.

    Args:
        name: Its name.
        image: Image of simulated engines.
        pull_policy: When it is pulled.
        pull_secrets: Secrets that it is pulled with.
    """
    role = {
        "replicas": 1,
        "startupTimeoutSeconds": 120,
        "resources": {"requests": {"cpu": "50m", "memory": "192Mi"}},
    }
    return {
        "apiVersion": defaults.API_VERSION,
        "kind": "PDCluster",
        "metadata": {"name": name, "labels": _MARK},
        "spec": {
            "model": {"name": MODEL},
            "engine": {
                "image": image,
                "imagePullPolicy": pull_policy,
                "imagePullSecrets": [{"name": secret} for secret in pull_secrets],
            },
            "prefill": role,
            "decode": role,
            "proxy": {"replicas": 1},
        },
    }


def is_ours(raw: Mapping[str, object]) -> bool:
    """Whether a PDCluster is what an earlier test has left."""
    metadata = raw.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return isinstance(labels, Mapping) and _MARK.items() <= labels.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a cluster has got.

    Attributes:
        is_ready: It serves, in the generation that was asked for.
        url: Where clients connect; "" as long as nobody has said it.
        rejection: Why the operator can't act on it; "" where it can.
        words: Every condition that is not as it should be, for people.
    """

    is_ready: bool
    url: str
    rejection: str
    words: str


def standing_of(raw: Mapping[str, object]) -> Standing:
    """Read a PDCluster's status."""
    metadata, status = raw.get("metadata"), raw.get("status")
    assert isinstance(metadata, Mapping)
    told = status if isinstance(status, Mapping) else {}
    listed = told.get("conditions")
    conditions = {
        str(each.get("type")): each
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, Mapping)
    }
    ready, valid = conditions.get("Ready", {}), conditions.get("ConfigValid", {})
    is_current = told.get("observedGeneration") == metadata.get("generation")
    return Standing(
        is_ready=is_current and ready.get("status") == "True",
        url=str(told.get("url") or ""),
        rejection=_word(valid) if is_current and valid.get("status") == "False" else "",
        words="; ".join(
            _word(conditions[kind])
            for kind in ("Ready", "ConfigValid", "PrefillReady", "DecodeReady", "ProxyReady")
            if kind in conditions and conditions[kind].get("status") != "True"
        )
        or "its status says nothing yet: does the operator run, and watch this namespace?",
    )


def _word(condition: Mapping[str, object]) -> str:
    kind, status, reason = (condition.get(key) for key in ("type", "status", "reason"))
    return f"{kind}={status} ({reason}): {condition.get('message', '')}"


def question() -> dict[str, object]:
    """The one request."""
    return {
        "model": MODEL,
        "stream": True,
        "max_tokens": 32,
        "messages": [{"role": "user", "content": "Are you well installed?"}],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer.

    Attributes:
        num_events: Events of the stream before its end mark.
        text: What was generated.
    """

    num_events: int
    text: str


def read_answer(lines: Iterable[bytes]) -> Answer:
    """Read a stream of server-sent events to its end.

    Args:
        lines: The body's lines.

    Raises:
        AnswerError: It ended early, told of an error, or had no text.
    """
    texts: list[str] = []
    num_events = 0
    for line in lines:
        if not line.startswith(_DATA):
            continue
        data = line.removeprefix(_DATA).strip()
        if data == _DONE:
            if not "".join(texts):
                message = "the stream has no text"
                raise AnswerError(message)
            return Answer(num_events=num_events, text="".join(texts))
        num_events += 1
        texts.append(_text_of(data))
    message = f"the stream ended after {num_events} events and without [DONE]: it was cut"
    raise AnswerError(message)


def _text_of(data: bytes) -> str:
    try:
        event = json.loads(data)
    except ValueError as error:
        message = f"an event is no JSON: {data[:200]!r}"
        raise AnswerError(message) from error
    if not isinstance(event, dict) or "error" in event:
        message = f"the stream told of an error: {data[:500].decode(errors='replace')}"
        raise AnswerError(message)
    try:
        choices = event["choices"]
        return str(choices[0]["delta"].get("content") or "") if choices else ""
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        message = f"an event is no chat completion: {data[:200]!r}"
        raise AnswerError(message) from error
