"""When what the API server has rejected is tried again.

Pure. The same may be taken later: a quota is raised, a policy goes, a definition is upgraded. None
of that is seen from here, so it is tried again: what is forbidden soon and then ever more seldom,
what was found wrong in itself seldom from the start. What is told does not depend on when the next
try is due, so that a try that ends as before changes no condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from pdcluster_api.conditions import ConfigInvalidReason
from pdcluster_api.labels import ROLE_LABEL
from pdcluster_operator.manifests.objects import ObjectKey, key_of
from pdcluster_operator.model.actions import Action, Apply, Target, is_new_deployment, target_of
from pdcluster_operator.model.observed import Observed, Rejection

__all__ = ["FORBIDDEN_FIRST_S", "FORBIDDEN_MAX_S", "REJECTED_S", "Sifted", "sift", "wait_s"]

FORBIDDEN_FIRST_S: Final = 1.0
FORBIDDEN_MAX_S: Final = 60.0
"""Between two tries of what was forbidden; the wait doubles from the first to this."""

REJECTED_S: Final = 300.0
"""Between two tries of a content that was rejected."""

_BEFORE_PODS: Final = frozenset(
    {"ConfigMap", "ControllerRevision", "NetworkPolicy", "Role", "RoleBinding", "ServiceAccount"}
)
"""What has to be there before pods are: without it they can't start, or nobody guards them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sifted:
    """Actions, with those left out that have to wait.

    Attributes:
        due: What to do now.
        untried: Those of them that nobody has rejected.
        rejections: What the API server said of the others, by child, in the order of the actions.
        awaited: What Deployments that are not there yet wait for, by their role; "" are proxies.
        again_in_s: When the next of the others is due; None: there is none that waits.
    """

    due: tuple[Action, ...]
    untried: tuple[Action, ...]
    rejections: Mapping[ObjectKey, Rejection] = field(default_factory=dict)
    awaited: Mapping[str, tuple[ObjectKey, ...]] = field(default_factory=dict)
    again_in_s: float | None = None


def sift(observed: Observed, actions: Iterable[Action], *, now: str) -> Sifted:
    """Leave out what was rejected and is not due again, and what stands on it.

    Args:
        observed: The snapshot.
        actions: What the children need.
        now: The time, RFC 3339 in UTC.
    """
    due: list[Action] = []
    untried: list[Action] = []
    rejections: dict[ObjectKey, Rejection] = {}
    waits: list[float] = []
    missing: list[ObjectKey] = []
    awaited: dict[str, tuple[ObjectKey, ...]] = {}
    for action in actions:
        if missing and is_new_deployment(action):
            awaited[_role(action)] = tuple(missing)
            continue
        target = target_of(action)
        rejection = _rejection_of(observed, target)
        if target is None or rejection is None:
            due.append(action)
            untried.append(action)
            continue
        rejections[target.key] = rejection
        if _is_missing(action):
            missing.append(target.key)
        elif is_new_deployment(action):
            awaited[_role(action)] = (target.key,)
        left_s = wait_s(rejection) - _elapsed_s(rejection.noted_at, now)
        # One that is noted in the future was noted by a clock that has been set back since.
        if left_s <= 0 or left_s > wait_s(rejection):
            due.append(action)
        else:
            waits.append(left_s)
    return Sifted(
        due=tuple(due),
        untried=tuple(untried),
        rejections=rejections,
        awaited=awaited,
        again_in_s=min(waits, default=None),
    )


def wait_s(rejection: Rejection) -> float:
    """Seconds from a rejection to the next try."""
    if rejection.reason != ConfigInvalidReason.APPLY_FORBIDDEN:
        return REJECTED_S
    return min(FORBIDDEN_MAX_S, FORBIDDEN_FIRST_S * 2.0 ** min(rejection.num - 1, 20))


def _rejection_of(observed: Observed, target: Target | None) -> Rejection | None:
    """What was said to the very same action."""
    if target is None:
        return None
    rejection = observed.rejections.get(target.key)
    return rejection if rejection is not None and rejection.content == target.content else None


def _is_missing(action: Action) -> bool:
    """Whether an action would make what has to be there before pods are."""
    return (
        isinstance(action, Apply)
        and not action.uid
        and key_of(action.manifest).kind in _BEFORE_PODS
    )


def _role(action: Action) -> str:
    """Role of a Deployment's pods; "" for proxies."""
    metadata = action.manifest["metadata"] if isinstance(action, Apply) else None
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return str(labels.get(ROLE_LABEL, "")) if isinstance(labels, Mapping) else ""


def _elapsed_s(since: str, now: str) -> float:
    return (datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds()
