"""The plan for one cluster.

Pure. ``plan`` is total: a resource that is invalid, paused, on its way out or half made has a plan
too. What runs is never disturbed by a resource that can't be acted on. Everything is rendered once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from pdcluster_api.conditions import ConfigInvalidReason
from pdcluster_api.proxy_config import Role
from pdcluster_api.revision import revision_of
from pdcluster_api.support import KEEPER
from pdcluster_api.timing import derive_timing
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_operator.manifests.labels import OPERATOR_ANNOTATION, PAUSED_ANNOTATION
from pdcluster_operator.manifests.objects import ObjectKey
from pdcluster_operator.manifests.proxies import service_url
from pdcluster_operator.manifests.settings import RenderSettings
from pdcluster_operator.model.actions import Action, Apply, EmitEvent, Plan, SetStatus
from pdcluster_operator.model.drift import has_drifted
from pdcluster_operator.model.observed import Observed
from pdcluster_operator.model.sentences import joined
from pdcluster_operator.plan.children import (
    RenderedChildren,
    child_actions,
    owner_of,
    render_children,
    strangers,
)
from pdcluster_operator.plan.conditions import (
    TROUBLES,
    Finding,
    Situation,
    conditions_of,
    invalid_conditions,
)
from pdcluster_operator.plan.counts import has_followed, role_counts
from pdcluster_operator.plan.retries import sift
from pdcluster_operator.plan.rollout import next_step
from pdcluster_operator.plan.status import (
    cluster_status,
    conditions_with_times,
    pool_statuses,
)

__all__ = ["PENDING_S", "STRANGER_S", "plan"]

STRANGER_S: Final = 20.0
"""Between two looks whether a taken name is free again: strangers are not watched."""

PENDING_S: Final = 15.0
"""Between two looks at the Events of a pod that does not start: they are not watched."""


def plan(observed: Observed, settings: RenderSettings, *, now: str) -> Plan:
    """Decide what to do.

    Args:
        observed: The snapshot.
        settings: The installation's choices.
        now: The time, RFC 3339 in UTC: for conditions, and for when to try again what was rejected.
    """
    if observed.is_deleting:
        return Plan()  # Kubernetes collects the children; nothing outside of them is ours.
    cluster = observed.cluster
    if cluster is None:
        message = joined(*map(str, observed.problems))
        return _stuck(observed, observed.invalid_reason, message, now)
    other = _other_operator(observed, settings)
    if other:
        message = (
            f"The operator {other} manages this cluster. Two must not: uninstall one, or let "
            "each watch its own namespaces."
        )
        return _stuck(observed, ConfigInvalidReason.MANAGED_BY_ANOTHER, message, now)
    rendered = render_children(observed, cluster, settings)
    taken = strangers(observed, rendered)
    if taken:
        names = ", ".join(f"{child.key.kind} {child.key.name}" for child in taken)
        message = f"{names} exists and is not this cluster's. Delete it or rename the PDCluster."
        stuck = _stuck(observed, ConfigInvalidReason.NAME_TAKEN, message, now)
        return replace(stuck, again_in_s=STRANGER_S)
    return _act(observed, cluster, rendered, settings, now)


def _act(
    observed: Observed,
    cluster: PDCluster,
    rendered: RenderedChildren,
    settings: RenderSettings,
    now: str,
) -> Plan:
    revision = revision_of(cluster.spec)
    step = next_step(observed, cluster, revision)
    is_paused = observed.annotations.get(PAUSED_ANNOTATION) == "true" or cluster.spec.rollout.paused
    counts = {role: role_counts(observed, cluster, role, revision) for role in Role}
    owner = owner_of(observed, settings)
    sifted = sift(observed, child_actions(observed, cluster, step, rendered), now=now)
    situation = Situation(
        observed=observed,
        cluster=cluster,
        timing=derive_timing(cluster.spec, keeper=KEEPER),
        revision=revision,
        counts=counts,
        is_rolling=not step.is_over,
        is_changing=_is_changing(observed, sifted.untried),
        is_paused=is_paused,
        rejections=sifted.rejections,
        awaited=sifted.awaited,
    )
    findings = conditions_of(situation)
    status = cluster_status(situation, findings, url=service_url(owner, cluster), now=now)
    looks = [PENDING_S] if any(pod.is_being_made for pod in observed.pods) else []
    if sifted.again_in_s is not None and not is_paused:
        looks.append(sifted.again_in_s)
    return Plan(
        actions=(
            *(() if is_paused else sifted.due),
            *pool_statuses(observed, counts),
            *_written(observed, status, findings),
        ),
        again_in_s=min(looks, default=None),
    )


def _is_changing(observed: Observed, children: tuple[Action, ...]) -> bool:
    """Whether a Deployment is to be applied, or its controller has yet to follow."""
    if any(isinstance(each, Apply) and each.manifest["kind"] == "Deployment" for each in children):
        return True
    return any(not has_followed(deployment) for deployment in observed.own("Deployment"))


def _stuck(observed: Observed, reason: str, message: str, now: str) -> Plan:
    """Say why nothing is done, and leave everything as it is."""
    findings = invalid_conditions(reason, message)
    kept = {
        name: value
        for name, value in observed.status.items()
        if name not in {"conditions", "observedGeneration"}
    }
    status = {
        **kept,
        "observedGeneration": observed.generation,
        "conditions": conditions_with_times(findings, observed, now=now),
    }
    return Plan(actions=_written(observed, status, findings))


def _written(
    observed: Observed, status: Mapping[str, object], findings: Iterable[Finding]
) -> tuple[Action, ...]:
    """Write the status where it says something new, and an Event per condition that turned."""
    if not has_drifted(status, observed.status) and _same_conditions(status, observed.status):
        return ()
    events = tuple(_event(finding) for finding in findings if _has_turned(observed, finding))
    return (SetStatus(key=ObjectKey("PDCluster", observed.name), status=status), *events)


def _same_conditions(status: Mapping[str, object], before: Mapping[str, object]) -> bool:
    return status.get("conditions") == before.get("conditions")


_TOLD = frozenset({"Ready", "ConfigValid", "PrefillReady", "DecodeReady", "ProxyReady"})


def _has_turned(observed: Observed, finding: Finding) -> bool:
    """Whether a condition that people follow has another status or reason than before."""
    if finding.type.value not in _TOLD:
        return False
    conditions = observed.status.get("conditions")
    for each in conditions if isinstance(conditions, list | tuple) else ():
        if isinstance(each, Mapping) and each.get("type") == finding.type.value:
            before = (each.get("status"), each.get("reason"))
            return before != (finding.status.value, str(finding.reason))
    return finding.status.value != "True"


def _event(finding: Finding) -> EmitEvent:
    return EmitEvent(
        is_warning=finding.status.value == "False" and finding.reason in TROUBLES,
        reason=str(finding.reason),
        message=f"{finding.type.value}: {finding.message}",
    )


def _other_operator(observed: Observed, settings: RenderSettings) -> str:
    for child in observed.children.values():
        made_by = child.annotations.get(OPERATOR_ANNOTATION, settings.operator)
        if child.owner_uid == observed.uid and made_by != settings.operator:
            return made_by
    return ""
