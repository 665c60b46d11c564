"""The status of a cluster and of its pools.

Pure. A condition keeps the time of its last transition while its status stays the same; a status
that says what stands there already is not written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pdcluster_api.proxy_config import Role
from pdcluster_api.timing import DerivedTiming
from pdcluster_operator.manifests.labels import pool_name
from pdcluster_operator.manifests.objects import ObjectKey
from pdcluster_operator.manifests.pools import pool_selector
from pdcluster_operator.model.actions import SetStatus
from pdcluster_operator.model.drift import has_drifted
from pdcluster_operator.model.observed import Observed
from pdcluster_operator.model.reading import dig
from pdcluster_operator.plan.conditions import Finding, Situation
from pdcluster_operator.plan.counts import RoleCounts

__all__ = ["cluster_status", "conditions_with_times", "pool_statuses", "serving_revision"]


def conditions_with_times(
    findings: Iterable[Finding], observed: Observed, *, now: str
) -> list[dict[str, object]]:
    """Write conditions.

    Args:
        findings: What holds.
        observed: The snapshot, with the conditions as they stand.
        now: The time, RFC 3339 in UTC.
    """
    before = observed.status.get("conditions")
    old = {
        str(each.get("type")): each
        for each in (before if isinstance(before, list | tuple) else ())
        if isinstance(each, Mapping)
    }
    written: list[dict[str, object]] = []
    for finding in findings:
        earlier = old.get(finding.type.value, {})
        since = earlier.get("lastTransitionTime")
        is_same = earlier.get("status") == finding.status.value and isinstance(since, str)
        written.append(
            {
                "type": finding.type.value,
                "status": finding.status.value,
                "observedGeneration": observed.generation,
                "lastTransitionTime": since if is_same else now,
                "reason": str(finding.reason),
                "message": finding.message,
            }
        )
    return written


def serving_revision(situation: Situation) -> str:
    """The revision that serves: the one before as long as any of its engines is left."""
    if not situation.is_rolling:
        return situation.revision
    stood = dig(situation.observed.status, "revision", "current")
    return stood if isinstance(stood, str) else situation.revision


def cluster_status(
    situation: Situation, findings: Iterable[Finding], *, url: str, now: str
) -> dict[str, object]:
    """The whole status of a valid resource."""
    counts = situation.counts
    prefill, decode = counts[Role.PREFILL], counts[Role.DECODE]
    return {
        "observedGeneration": situation.observed.generation,
        "url": url,
        "summary": f"{prefill.wanted}P{decode.wanted}D",
        "revision": {"current": serving_revision(situation), "updated": situation.revision},
        "roles": [_role(role, counts[role]) for role in Role],
        "lease": _lease(situation.timing),
        "conditions": conditions_with_times(findings, situation.observed, now=now),
    }


def _role(role: Role, counts: RoleCounts) -> dict[str, object]:
    return {
        "name": role.value,
        "desired": counts.wanted,
        "ready": counts.ready,
        "updated": counts.updated,
        "draining": counts.draining,
        "readyOfDesired": f"{counts.ready}/{counts.wanted}",
    }


def _lease(timing: DerivedTiming) -> dict[str, object]:
    lease = timing.lease
    told: dict[str, object] = {
        "durationSeconds": lease.duration_s,
        "heartbeatSeconds": lease.heartbeat_interval_s,
        "extensionSeconds": lease.extension_s,
        "terminationGraceSeconds": timing.prefill_grace_s,
    }
    if timing.hand_off_cold_s is not None:
        told["handOffDeadlineSeconds"] = int(timing.hand_off_cold_s)
    return told


def pool_statuses(observed: Observed, counts: Mapping[Role, RoleCounts]) -> tuple[SetStatus, ...]:
    """What scalers read of each pool, where it does not stand there already."""
    made: list[SetStatus] = []
    for role in Role:
        key = ObjectKey("PDPool", pool_name(observed.name, role))
        pool = observed.children.get(key)
        if pool is None or pool.owner_uid != observed.uid or pool.is_deleting:
            continue
        status = {
            "replicas": counts[role].pods,
            "selector": pool_selector(observed.name, role),
        }
        if has_drifted(status, pool.live.get("status")):
            made.append(SetStatus(key=key, status=status))
    return tuple(made)
