"""The conditions of a cluster, from what was seen.

Pure. Positive polarity; what nobody measured is ``Unknown``, never ``False``. Reasons are part of
the interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pdcluster_api.conditions import ConditionType, ConfigInvalidReason, Reason, TroubleReason
from pdcluster_api.proxy_config import Role
from pdcluster_api.timing import DerivedTiming
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_api.v1alpha1.status import ConditionStatus
from pdcluster_operator.manifests.labels import ENGINE
from pdcluster_operator.manifests.objects import ObjectKey
from pdcluster_operator.model.observed import Observed, Rejection, Trouble
from pdcluster_operator.model.sentences import joined
from pdcluster_operator.plan.counts import RoleCounts, num_ready_proxies
from pdcluster_operator.plan.troubles import trouble_of_any, trouble_of_proxies, trouble_of_role

__all__ = ["TROUBLES", "Finding", "Situation", "conditions_of", "invalid_conditions"]

_TRUE, _FALSE, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
TROUBLES = frozenset({*ConfigInvalidReason, *TroubleReason})
"""What is no ordinary course of things: somebody should look."""

_ROLE_CONDITIONS = {
    Role.PREFILL: ConditionType.PREFILL_READY,
    Role.DECODE: ConditionType.DECODE_READY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One condition without its times.

    Attributes:
        type: What it speaks of.
        status: Whether it holds.
        reason: Stable word.
        message: For people.
        is_lasting: It does not pass before a person acts.
    """

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str
    is_lasting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What conditions are judged from.

    Attributes:
        observed: The snapshot.
        cluster: Its resource.
        timing: Its derived times.
        revision: The present revision.
        counts: Engines per role.
        is_rolling: Engines of another revision are left.
        is_changing: A Deployment has yet to be applied, or its pods to follow.
        is_paused: Nothing is changed, by the user's wish.
        rejections: What the API server would not have, and is still wanted, by child.
        awaited: What Deployments that are not there yet wait for, by their role; "" are proxies.
    """

    observed: Observed
    cluster: PDCluster
    timing: DerivedTiming
    revision: str
    counts: Mapping[Role, RoleCounts]
    is_rolling: bool
    is_changing: bool
    is_paused: bool
    rejections: Mapping[ObjectKey, Rejection] = field(default_factory=dict)
    awaited: Mapping[str, tuple[ObjectKey, ...]] = field(default_factory=dict)

    @property
    def is_asleep(self) -> bool:
        """Nobody wants engines."""
        return not any(counts.wanted for counts in self.counts.values())


def invalid_conditions(reason: str, message: str) -> tuple[Finding, ...]:
    """The conditions of a resource that can't be acted on; what runs goes on."""
    return (
        Finding(type=ConditionType.CONFIG_VALID, status=_FALSE, reason=reason, message=message),
        Finding(type=ConditionType.READY, status=_FALSE, reason=reason, message=message),
        Finding(
            type=ConditionType.RECONCILING,
            status=_FALSE,
            reason=Reason.NOTHING_DUE,
            message="Nothing is changed before the resource is valid.",
        ),
        Finding(type=ConditionType.STALLED, status=_TRUE, reason=reason, message=message),
    )


def conditions_of(situation: Situation) -> tuple[Finding, ...]:
    """All conditions of a valid resource."""
    config = _config(situation)
    roles = {role: _role(situation, role) for role in Role}
    proxy = _proxy(situation)
    gates = (config, *roles.values(), proxy)
    progressing = _progressing(situation, gates)
    ready = _ready(situation, gates, progressing)
    return (
        ready,
        _available(situation),
        progressing,
        *gates,
        *_measured(),
        _drain_budget(situation),
        _ratio(situation),
        *_kstatus(ready, progressing),
    )


def _finding(kind: ConditionType, status: ConditionStatus, reason: str, message: str) -> Finding:
    return Finding(type=kind, status=status, reason=reason, message=message)


def _config(situation: Situation) -> Finding:
    kind, rejections = ConditionType.CONFIG_VALID, situation.rejections
    if rejections:
        (_, first), *rest = rejections.items()
        others = _names(key for key, _ in rest)
        return Finding(
            type=kind,
            status=_FALSE,
            reason=first.reason,
            message=joined(first.message, f"Also: {others}" if others else ""),
            is_lasting=True,
        )
    unknown = ", ".join(situation.observed.unknown)
    message = "The resource can be acted on."
    if unknown:
        message += f" This version of the operator does not know {unknown} and ignores it."
    return _finding(kind, _TRUE, Reason.VALID, message)


def _role(situation: Situation, role: Role) -> Finding:
    kind, counts = _ROLE_CONDITIONS[role], situation.counts[role]
    if counts.wanted == 0:
        return _finding(kind, _TRUE, Reason.ASLEEP, "No engine is wanted.")
    said = f"{counts.ready} of {counts.wanted} {role.value} engines are ready"
    if counts.updated >= counts.wanted:
        return _finding(kind, _TRUE, Reason.ENGINES_READY, f"{said}.")
    trouble = trouble_of_role(situation.observed, role, situation.revision)
    if trouble is not None:
        return _troubled(kind, said, trouble)
    message = f"{said}; {_doing(situation, role.value, has_some=counts.ready > 0)}."
    return _finding(kind, _FALSE, Reason.ENGINES_STARTING, message)


def _proxy(situation: Situation) -> Finding:
    kind, wanted = ConditionType.PROXY_READY, situation.cluster.spec.proxy.replicas
    num = num_ready_proxies(situation.observed)
    said = f"{num} of {wanted} proxies are ready"
    if num >= wanted:
        return _finding(kind, _TRUE, Reason.PROXIES_READY, f"{said}.")
    trouble = trouble_of_proxies(situation.observed)
    if trouble is not None:
        return _troubled(kind, said, trouble)
    if "" not in situation.awaited and not all(
        counts.ready for counts in situation.counts.values()
    ):
        return _finding(kind, _FALSE, Reason.WAITING_FOR_ENGINES, f"{said}; they wait for a pair.")
    message = f"{said}; {_doing(situation, '', has_some=num > 0)}."
    return _finding(kind, _FALSE, Reason.PROXIES_STARTING, message)


def _troubled(kind: ConditionType, said: str, trouble: Trouble) -> Finding:
    return Finding(
        type=kind,
        status=_FALSE,
        reason=trouble.reason,
        message=joined(said, trouble.message),
        is_lasting=trouble.is_lasting,
    )


def _doing(situation: Situation, role: str, *, has_some: bool) -> str:
    """What pods do that are not ready and in no trouble: they start, or can't be made yet."""
    awaited = _names(situation.awaited.get(role, ()))
    if not awaited:
        return "others start"
    return f"{'others' if has_some else 'they'} wait for {awaited}"


def _names(keys: Iterable[ObjectKey]) -> str:
    return ", ".join(f"{key.kind} {key.name}" for key in keys)


def _has_pair(situation: Situation) -> bool:
    ready = {
        role: {
            pod.revision
            for pod in situation.observed.pods
            if pod.component == ENGINE and pod.role is role and pod.is_ready
        }
        for role in Role
    }
    return bool(ready[Role.PREFILL] & ready[Role.DECODE])


def _available(situation: Situation) -> Finding:
    kind = ConditionType.AVAILABLE
    if not _has_pair(situation):
        reason = Reason.ASLEEP if situation.is_asleep else Reason.NO_PAIR
        return _finding(kind, _FALSE, reason, "No prefill and decode engine of one revision serve.")
    if not num_ready_proxies(situation.observed):
        return _finding(kind, _FALSE, Reason.NO_PROXY, "No proxy serves.")
    return _finding(kind, _TRUE, Reason.SERVING, "At least one pair and one proxy serve.")


def _progressing(situation: Situation, gates: tuple[Finding, ...]) -> Finding:
    kind = ConditionType.PROGRESSING
    if situation.is_paused:
        return _finding(kind, _UNKNOWN, Reason.PAUSED, "Paused: nothing is changed until resumed.")
    if situation.is_rolling:
        message = f"Rolling out revision {situation.revision}."
        return _finding(kind, _TRUE, Reason.ROLLING_OUT, message)
    if situation.is_changing:
        return _finding(kind, _TRUE, Reason.UPDATING, "Pods are being brought up to date.")
    if all(gate.status is _TRUE for gate in gates):
        return _finding(kind, _TRUE, Reason.COMPLETE, "All is as the resource wants it.")
    return _finding(kind, _TRUE, Reason.STARTING, "Engines or proxies start.")


def _ready(situation: Situation, gates: tuple[Finding, ...], progressing: Finding) -> Finding:
    kind = ConditionType.READY
    closed = [gate for gate in gates if gate.status is not _TRUE]
    if closed:
        # What has to be mended goes before what only needs time: the first of the most urgent.
        gate = min(closed, key=_urgency)
        return replace(gate, type=kind, status=_FALSE)
    if situation.is_asleep:
        return _finding(kind, _FALSE, Reason.ASLEEP, "No engine is wanted.")
    if situation.is_rolling:
        return _finding(kind, _FALSE, progressing.reason, progressing.message)
    if situation.is_changing and not situation.is_paused:
        # Those of before serve all the while, so that no gate tells what keeps the new from coming.
        stuck = trouble_of_any(situation.observed, situation.revision)
        if stuck is not None:
            return _troubled(kind, progressing.message, stuck)
        return _finding(kind, _FALSE, progressing.reason, progressing.message)
    return _finding(kind, _TRUE, Reason.SERVING, "Every engine and proxy that is wanted serves.")


def _urgency(gate: Finding) -> int:
    """What is told first: 0 what a person must mend, 1 other troubles, 2 what takes its time."""
    if gate.is_lasting:
        return 0
    return 1 if gate.reason in TROUBLES else 2


def _measured() -> Iterator[Finding]:
    """What only a running exchange can show; nobody measures it yet."""
    for kind in (
        ConditionType.PAIR_COMPATIBLE,
        ConditionType.KV_TRANSFER_OBSERVED,
        ConditionType.LEASE_SUPPORTED,
        ConditionType.LEASE_HEALTHY,
    ):
        yield _finding(kind, _UNKNOWN, Reason.NOT_MEASURED, "Not measured by this version.")


def _drain_budget(situation: Situation) -> Finding:
    kind, timing = ConditionType.DRAIN_BUDGET_SUFFICIENT, situation.timing
    for role, has, needs in (
        (Role.PREFILL, timing.prefill_grace_s, timing.prefill_grace_needed_s),
        (Role.DECODE, timing.decode_grace_s, timing.decode_grace_needed_s),
    ):
        if has < needs:
            message = (
                f"A {role.value} engine needs {needs} s to drain and gets {has} s. Raise or leave "
                "out spec.drain.terminationGracePeriodSeconds."
            )
            return _finding(kind, _FALSE, Reason.GRACE_TOO_SHORT, message)
    return _finding(kind, _TRUE, Reason.GRACE_SUFFICIENT, "The grace covers a whole drain.")


def _ratio(situation: Situation) -> Finding:
    kind = ConditionType.RATIO_SATISFIED
    prefill, decode = (situation.counts[role].wanted for role in Role)
    if not prefill or not decode:
        return _finding(kind, _UNKNOWN, Reason.ASLEEP, "No engine is wanted.")
    asked = situation.cluster.spec.ratio
    low, high = _parts(asked.min_prefill_per_decode), _parts(asked.max_prefill_per_decode)
    said = f"{prefill} prefill to {decode} decode engines"
    if prefill * low[1] < low[0] * decode:
        message = f"{said} is below spec.ratio.minPrefillPerDecode {asked.min_prefill_per_decode}."
        return _finding(kind, _FALSE, Reason.TOO_FEW_PREFILL, message)
    if prefill * high[1] > high[0] * decode:
        message = f"{said} is above spec.ratio.maxPrefillPerDecode {asked.max_prefill_per_decode}."
        return _finding(kind, _FALSE, Reason.TOO_MANY_PREFILL, message)
    return _finding(kind, _TRUE, Reason.WITHIN_BOUNDS, f"{said} is within spec.ratio.")


def _parts(ratio: str) -> tuple[int, int]:
    prefill, _, decode = ratio.partition(":")
    return int(prefill), int(decode)


def _kstatus(ready: Finding, progressing: Finding) -> Iterator[Finding]:
    """Whether something moves, and whether a person must act: never both."""
    reconciling, stalled = ConditionType.RECONCILING, ConditionType.STALLED
    if ready.is_lasting:
        message = "It waits for a person: see Stalled."
        yield _finding(reconciling, _FALSE, Reason.NOTHING_DUE, message)
        yield _finding(stalled, _TRUE, ready.reason, ready.message)
        return
    is_done = ready.status is _TRUE or ready.reason == Reason.ASLEEP
    if is_done or progressing.reason == Reason.PAUSED:
        yield _finding(reconciling, _FALSE, Reason.NOTHING_DUE, "Nothing is due.")
    else:
        yield _finding(reconciling, _TRUE, ready.reason, ready.message)
    if ready.reason in TROUBLES:
        message = "It may pass by itself; if it does not, a person has to act: see Ready."
        yield _finding(stalled, _FALSE, ready.reason, message)
    else:
        yield _finding(stalled, _FALSE, Reason.NOTHING_DUE, "Nobody has to act.")
