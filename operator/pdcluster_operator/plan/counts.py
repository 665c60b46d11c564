"""How many engines are wanted and how many there are.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdcluster_api.proxy_config import Role
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_operator.manifests.labels import ENGINE, PROXY, SEEDED_ANNOTATION, pool_name
from pdcluster_operator.manifests.objects import ObjectKey
from pdcluster_operator.model.observed import Child, Observed
from pdcluster_operator.model.reading import dig
from pdcluster_operator.program.engine import role_spec

__all__ = ["RoleCounts", "has_followed", "num_ready_proxies", "role_counts", "wanted_engines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCounts:
    """Engines of one role.

    Attributes:
        wanted: As the role's pool says.
        ready: Those that serve, of whatever revision.
        updated: Ready ones of the present revision.
        pods: Pods that do not leave, ready or not.
        draining: Pods that leave.
    """

    wanted: int
    ready: int
    updated: int
    pods: int
    draining: int


def wanted_engines(observed: Observed, cluster: PDCluster, role: Role) -> int:
    """Engines of a role: what its pool says, unless the resource says something new."""
    stated = role_spec(cluster.spec, role).num_engines
    pool = observed.children.get(ObjectKey("PDPool", pool_name(observed.name, role)))
    if pool is None or pool.owner_uid != observed.uid:
        return stated
    if pool.annotations.get(SEEDED_ANNOTATION) != str(stated):
        return stated
    replicas = dig(pool.live, "spec", "replicas")
    return replicas if isinstance(replicas, int) and replicas >= 0 else stated


def role_counts(observed: Observed, cluster: PDCluster, role: Role, revision: str) -> RoleCounts:
    """Count a role's engines.

    Args:
        observed: The snapshot.
        cluster: Its resource.
        role: The role.
        revision: The present revision.
    """
    pods = [pod for pod in observed.pods if pod.component == ENGINE and pod.role is role]
    ready = [pod for pod in pods if pod.is_ready]
    return RoleCounts(
        wanted=wanted_engines(observed, cluster, role),
        ready=len(ready),
        updated=sum(pod.revision == revision for pod in ready),
        pods=sum(not pod.is_terminating for pod in pods),
        draining=sum(pod.is_terminating for pod in pods),
    )


def has_followed(deployment: Child) -> bool:
    """Whether a Deployment's pods are those that it asks for."""
    live = deployment.live
    wanted, generation = dig(live, "spec", "replicas"), dig(live, "metadata", "generation")
    status = dig(live, "status")
    return (
        dig(status, "observedGeneration") == generation
        and (dig(status, "updatedReplicas") or 0) == wanted
        and (dig(status, "replicas") or 0) == wanted
    )


def num_ready_proxies(observed: Observed) -> int:
    """Proxies that serve."""
    return sum(pod.is_ready for pod in observed.pods if pod.component == PROXY)
