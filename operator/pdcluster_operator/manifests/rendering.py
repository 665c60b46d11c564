"""Every object of a cluster but its engines' Deployments and pools, in the order of creation.

Pure.
"""

from __future__ import annotations

from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_operator.manifests.engines import engine_objects
from pdcluster_operator.manifests.objects import Manifest, Owner
from pdcluster_operator.manifests.policies import network_policies
from pdcluster_operator.manifests.proxies import proxy_objects
from pdcluster_operator.manifests.settings import RenderSettings

__all__ = ["shared_objects"]


def shared_objects(
    cluster: PDCluster, owner: Owner, settings: RenderSettings
) -> tuple[Manifest, ...]:
    """What does not depend on how far a rollout has got.

    Policies come first: nothing listens before it is guarded.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    return (
        *network_policies(cluster, owner),
        *engine_objects(cluster, owner),
        *proxy_objects(cluster, owner, settings),
    )
