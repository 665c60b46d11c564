"""What ``kubectl pdcluster status`` shows, as plain values.

Pure. :mod:`pdcluster_cli.kubectl.text` writes it. Counts that nobody could take are None, never 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from pdcluster_api.conditions import ConditionType
from pdcluster_api.labels import REVISION_LABEL, ROLE_LABEL
from pdcluster_api.proxy_config import Role
from pdcluster_cli.kubectl.raw import Raw, at, int_at, maps_at, text_at
from pdcluster_operator.manifests.labels import (
    COMPONENT_LABEL,
    ENGINE,
    PAUSED_ANNOTATION,
    PROXY,
    engines_name,
    pool_name,
    proxy_name,
)

__all__ = [
    "MAX_EVENTS",
    "ConditionView",
    "EventView",
    "Fetched",
    "LeaseView",
    "PoolView",
    "StatusView",
    "is_ready_pod",
    "status_view",
]

MAX_EVENTS: Final = 10
"""Newest events that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What the API server gave.

    Attributes:
        cluster: The PDCluster.
        pods: Its pods; None where they could not be read.
        events: Events about it and what belongs to it, and maybe others; None as above.
        unread: What could not be read, and why.
    """

    cluster: Raw
    pods: tuple[Raw, ...] | None = None
    events: tuple[Raw, ...] | None = None
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """Prefill engines, decode engines or proxies.

    Attributes:
        name: ``prefill``, ``decode`` or ``proxy``.
        ready: Those that serve.
        desired: Those wanted.
        updated: Ready engines of the wanted revision.
        draining: Those that leave.
        revisions: Pods per revision, that of the most pods first.
    """

    name: str
    ready: int | None
    desired: int | None
    updated: int | None = None
    draining: int | None = None
    revisions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """What follows from the lease duration, in seconds; None where it was not told.

    Attributes:
        duration_s: The initial grant.
        heartbeat_s: Between two renewals.
        extension_s: What one renewal grants.
        hand_off_s: Latest start of decode for a pair that never met; None: no bound.
        grace_s: Termination grace of a prefill engine.
    """

    duration_s: int | None
    heartbeat_s: int | None
    extension_s: int | None
    hand_off_s: int | None
    grace_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionView:
    """One condition.

    Attributes:
        type: What it speaks of.
        status: ``True``, ``False`` or ``Unknown``.
        reason: Stable word.
        message: For people.
        since: When status last changed, RFC 3339.
    """

    type: str
    status: str
    reason: str
    message: str
    since: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventView:
    """One event.

    Attributes:
        at: When it was last seen, RFC 3339.
        is_warning: Whether something is wrong.
        about: Kind and name of the object.
        reason: Stable word.
        message: For people.
        count: How often.
    """

    at: str
    is_warning: bool
    about: str
    reason: str
    message: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """One PDCluster.

    Attributes:
        name: Its name.
        namespace: Its namespace.
        model: Its model.
        summary: Engines in short.
        ready: Status of the condition Ready.
        reason: Its reason.
        is_current: The status speaks of the present generation.
        url: Where clients connect; empty where there is none yet.
        pools: Prefill, decode, proxies.
        lease: Derived timing; None before an operator has told it.
        conditions: What holds and why.
        events: Newest last.
        notes: What else to know.
    """

    name: str
    namespace: str
    model: str
    summary: str
    ready: str
    reason: str
    is_current: bool
    url: str
    pools: tuple[PoolView, ...]
    lease: LeaseView | None
    conditions: tuple[ConditionView, ...]
    events: tuple[EventView, ...] | None
    notes: tuple[str, ...] = field(default=())

    @property
    def is_ready(self) -> bool:
        """Whether clients are served as the present resource wants it."""
        return self.ready == "True" and self.is_current


def status_view(fetched: Fetched) -> StatusView:
    """Gather what is shown."""
    cluster = fetched.cluster
    conditions = tuple(
        ConditionView(
            type=text_at(each, "type"),
            status=text_at(each, "status"),
            reason=text_at(each, "reason"),
            message=text_at(each, "message"),
            since=text_at(each, "lastTransitionTime"),
        )
        for each in maps_at(cluster, "status", "conditions")
    )
    ready = next((each for each in conditions if each.type == ConditionType.READY.value), None)
    name = text_at(cluster, "metadata", "name")
    return StatusView(
        name=name,
        namespace=text_at(cluster, "metadata", "namespace"),
        model=text_at(cluster, "spec", "model", "name"),
        summary=text_at(cluster, "status", "summary"),
        ready=ready.status if ready is not None else "Unknown",
        reason=ready.reason if ready is not None else "",
        is_current=_is_current(cluster),
        url=text_at(cluster, "status", "url"),
        pools=(*(_role(fetched, role) for role in Role), _proxies(fetched)),
        lease=_lease(cluster),
        conditions=conditions,
        events=None if fetched.events is None else _events(fetched, name),
        notes=(*_notes(cluster), *fetched.unread),
    )


def _is_current(cluster: Raw) -> bool:
    return int_at(cluster, "status", "observedGeneration") == int_at(
        cluster, "metadata", "generation"
    )


def _notes(cluster: Raw) -> Iterable[str]:
    if at(cluster, "metadata", "deletionTimestamp") is not None:
        yield "It is being deleted."
    paused = text_at(cluster, "metadata", "annotations", PAUSED_ANNOTATION) == "true"
    if paused or at(cluster, "spec", "rollout", "paused") is True:
        what = f"annotation {PAUSED_ANNOTATION}" if paused else "spec.rollout.paused"
        yield f"It is paused ({what}): nothing is changed."
    observed = int_at(cluster, "status", "observedGeneration")
    if observed is None:
        yield (
            "No operator has looked at it yet: is one installed, and does it watch this namespace?"
        )
    elif not _is_current(cluster):
        generation = int_at(cluster, "metadata", "generation")
        yield (
            f"The status speaks of generation {observed}, the resource is at {generation}: "
            "no operator has looked at the last change yet."
        )


def _role(fetched: Fetched, role: Role) -> PoolView:
    told = next(
        (
            each
            for each in maps_at(fetched.cluster, "status", "roles")
            if text_at(each, "name") == role.value
        ),
        {},
    )
    revisions: tuple[tuple[str, int], ...]
    if fetched.pods is None:
        current = text_at(fetched.cluster, "status", "revision", "current")
        ready = int_at(told, "ready")
        revisions = ((current, ready),) if current and ready is not None else ()
    else:
        counted = Counter(
            text_at(pod, "metadata", "labels", REVISION_LABEL)
            for pod in fetched.pods
            if _label(pod, ROLE_LABEL) == role.value and _label(pod, COMPONENT_LABEL) == ENGINE
        )
        revisions = tuple(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])))
    return PoolView(
        name=role.value,
        ready=int_at(told, "ready"),
        desired=int_at(told, "desired"),
        updated=int_at(told, "updated"),
        draining=int_at(told, "draining"),
        revisions=revisions,
    )


def _proxies(fetched: Fetched) -> PoolView:
    desired = int_at(fetched.cluster, "spec", "proxy", "replicas")
    if fetched.pods is None:
        return PoolView(name=PROXY, ready=None, desired=desired)
    mine = [pod for pod in fetched.pods if _label(pod, COMPONENT_LABEL) == PROXY]
    return PoolView(
        name=PROXY,
        ready=sum(is_ready_pod(pod) for pod in mine),
        desired=desired,
        draining=sum(_is_leaving(pod) for pod in mine),
    )


def _label(pod: Raw, key: str) -> str:
    return text_at(pod, "metadata", "labels", key)


def _is_leaving(pod: Raw) -> bool:
    return at(pod, "metadata", "deletionTimestamp") is not None


def is_ready_pod(pod: Raw) -> bool:
    """Whether a pod serves and does not leave."""
    return not _is_leaving(pod) and any(
        text_at(each, "type") == "Ready" and text_at(each, "status") == "True"
        for each in maps_at(pod, "status", "conditions")
    )


def _lease(cluster: Raw) -> LeaseView | None:
    told = at(cluster, "status", "lease")
    if told is None:
        return None
    return LeaseView(
        duration_s=int_at(told, "durationSeconds"),
        heartbeat_s=int_at(told, "heartbeatSeconds"),
        extension_s=int_at(told, "extensionSeconds"),
        hand_off_s=int_at(told, "handOffDeadlineSeconds"),
        grace_s=int_at(told, "terminationGraceSeconds"),
    )


def _events(fetched: Fetched, cluster: str) -> tuple[EventView, ...]:
    """Everything about the PDCluster, and what is wrong with what it owns; each thing once."""
    ready = {text_at(pod, "metadata", "name") for pod in fetched.pods or () if is_ready_pod(pod)}
    newest: dict[tuple[str, str, str], EventView] = {}
    for raw in fetched.events or ():
        view = _event(raw)
        # Every pod fails its probes while it starts: once it serves that is of no note.
        is_over = view.reason == "Unhealthy" and text_at(raw, "involvedObject", "name") in ready
        if is_over or not _is_of_note(raw, cluster, is_warning=view.is_warning):
            continue
        key = (view.about, view.reason, view.message)
        before = newest.get(key)
        if before is None or before.at <= view.at:
            newest[key] = view
    ordered = sorted(newest.values(), key=lambda view: (view.at, view.about, view.reason))
    starting = {f"Pod/{name}" for name in _never_restarted(fetched)}
    telling = [view for view in ordered if not _is_of_starting(view, starting)]
    # Where another warning tells a cause, these would only bury it.
    if any(view.is_warning for view in telling):
        ordered = telling
    return tuple(ordered[-MAX_EVENTS:])


def _never_restarted(fetched: Fetched) -> Iterator[str]:
    """Names of pods none of whose containers was started anew."""
    for pod in fetched.pods or ():
        statuses = maps_at(pod, "status", "containerStatuses")
        if not any(int_at(each, "restartCount") for each in statuses):
            yield text_at(pod, "metadata", "name")


def _is_of_starting(view: EventView, starting: Collection[str]) -> bool:
    """Whether an event only says that a pod has not started yet."""
    is_startup = view.reason == "Unhealthy" and view.message.startswith("Startup probe")
    return is_startup and view.about in starting


_REPLICA = r"(?:-[bcdf-hj-np-tv-z24-9]{1,10}(?:-[a-z0-9]{5})?)?"
"""What Kubernetes adds to a Deployment's name for a ReplicaSet, and then for a pod."""


def _is_of_note(raw: Raw, cluster: str, *, is_warning: bool) -> bool:
    kind = text_at(raw, "involvedObject", "kind")
    name = text_at(raw, "involvedObject", "name")
    if kind == "PDCluster":
        return name == cluster
    pools = "|".join(re.escape(pool_name(cluster, role)) for role in Role)
    proxies = re.escape(proxy_name(cluster))
    # Not by prefix: the engines of `a-prefill` are not the prefill engines of `a`.
    owned = rf"(?:{pools})(?:-[0-9a-f]{{8}}{_REPLICA})?|{proxies}{_REPLICA}"
    return is_warning and (name == engines_name(cluster) or re.fullmatch(owned, name) is not None)


def _event(raw: Raw) -> EventView:
    kind = text_at(raw, "involvedObject", "kind")
    seen = (
        text_at(raw, "series", "lastObservedTime"),
        text_at(raw, "lastTimestamp"),
        text_at(raw, "eventTime"),
        text_at(raw, "metadata", "creationTimestamp"),
    )
    return EventView(
        at=next((each for each in seen if each), ""),
        is_warning=text_at(raw, "type") == "Warning",
        about=f"{kind}/{text_at(raw, 'involvedObject', 'name')}",
        reason=text_at(raw, "reason"),
        message=text_at(raw, "message"),
        count=int_at(raw, "count") or int_at(raw, "series", "count") or 1,
    )
