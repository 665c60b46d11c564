"""In which order engines of an old and a new revision pass.

Pure. Never stored: derived from the snapshot on every pass. P and D pair only within a revision, so
each revision needs both roles to serve. A prefill engine holds blocks that only decode engines of
its revision can read: old prefill engines go first, and old decode engines stay until none of them
is left, terminating ones included.

===========  ========================================  =====================================
Strategy     New engines come                          Old engines go
===========  ========================================  =====================================
Coordinated  decode first; prefill once that is ready  once both new roles are ready
DrainFirst   once no old engine is left                at once
===========  ========================================  =====================================
"""

from __future__ import annotations

from dataclasses import dataclass

from pdcluster_api.labels import REVISION_LABEL, ROLE_LABEL
from pdcluster_api.proxy_config import Role
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_api.v1alpha1.operation import RolloutStrategy
from pdcluster_operator.manifests.labels import ENGINE
from pdcluster_operator.model.observed import Child, Observed
from pdcluster_operator.plan.counts import role_counts

__all__ = ["RolloutStep", "next_step", "old_deployments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """What the rollout allows now.

    Attributes:
        may_exist: Roles whose Deployment of the present revision is to be there.
        to_delete: Old Deployments whose time has come.
        is_over: Only the present revision is left, pods included.
    """

    may_exist: tuple[Role, ...]
    to_delete: tuple[Child, ...] = ()
    is_over: bool = True


def old_deployments(observed: Observed, role: Role, revision: str) -> tuple[Child, ...]:
    """Deployments of a role whose revision is another."""
    return tuple(
        child
        for child in observed.own("Deployment")
        if child.labels.get(ROLE_LABEL) == role.value
        and child.labels.get(REVISION_LABEL) != revision
    )


def next_step(observed: Observed, cluster: PDCluster, revision: str) -> RolloutStep:
    """Say what may come and what may go.

    Args:
        observed: The snapshot.
        cluster: Its resource.
        revision: The present revision.
    """
    old = {role: old_deployments(observed, role, revision) for role in Role}
    old_pods = {
        role: any(
            pod.component == ENGINE and pod.role is role and pod.revision != revision
            for pod in observed.pods
        )
        for role in Role
    }
    if not any(old.values()) and not any(old_pods.values()):
        return RolloutStep(may_exist=tuple(Role))
    if cluster.spec.rollout.strategy is RolloutStrategy.DRAIN_FIRST:
        return RolloutStep(may_exist=(), to_delete=_leaving(old, old_pods), is_over=False)
    return _coordinated(observed, cluster, revision, old, old_pods)


def _coordinated(
    observed: Observed,
    cluster: PDCluster,
    revision: str,
    old: dict[Role, tuple[Child, ...]],
    old_pods: dict[Role, bool],
) -> RolloutStep:
    def is_up(role: Role) -> bool:
        counts = role_counts(observed, cluster, role, revision)
        return counts.updated >= counts.wanted

    # Where no old decode engine is left there is nothing to keep, and nobody to wait for.
    serves_old = bool(old[Role.DECODE]) or old_pods[Role.DECODE]
    may_exist = tuple(Role) if is_up(Role.DECODE) or not serves_old else (Role.DECODE,)
    # One that was made already stays, whatever happens to decode engines meanwhile.
    present = {
        child.labels.get(ROLE_LABEL)
        for child in observed.own("Deployment")
        if child.labels.get(REVISION_LABEL) == revision
    }
    may_exist = tuple(role for role in Role if role in may_exist or role.value in present)
    is_ready = all(is_up(role) for role in Role)
    return RolloutStep(
        may_exist=may_exist,
        to_delete=_leaving(old, old_pods) if is_ready else (),
        is_over=False,
    )


def _leaving(old: dict[Role, tuple[Child, ...]], old_pods: dict[Role, bool]) -> tuple[Child, ...]:
    if old[Role.PREFILL]:
        return old[Role.PREFILL]
    return () if old_pods[Role.PREFILL] else old[Role.DECODE]
