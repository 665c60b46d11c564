"""PDPools: the number of engines of each role, for ``kubectl scale`` and autoscalers.

Pure. The operator makes a pool once and afterwards never applies ``spec.replicas``: a later apply
without it would delete the field, and one with it would overwrite a scaler's choice.
"""

from __future__ import annotations

from pdcluster_api.proxy_config import Role
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_operator.manifests.labels import (
    SEEDED_ANNOTATION,
    cluster_labels,
    engine_selector,
    pool_name,
    selector_text,
)
from pdcluster_operator.manifests.objects import Manifest, Owner, hash_of, manifest
from pdcluster_operator.program.engine import role_spec

__all__ = ["pool_manifest", "pool_selector"]


def pool_manifest(cluster: PDCluster, role: Role, owner: Owner) -> Manifest:
    """A role's pool as it is first made."""
    replicas = role_spec(cluster.spec, role).num_engines
    return manifest(
        "PDPool",
        pool_name(owner.name, role),
        owner,
        labels=cluster_labels(owner.name) | engine_selector(owner.name, role),
        annotations={SEEDED_ANNOTATION: str(replicas)},
        # It is never made anew from other inputs.
        inputs_hash=hash_of(role.value),
        spec={"clusterName": owner.name, "role": role.value, "replicas": replicas},
    )


def pool_selector(cluster: str, role: Role) -> str:
    """What a pool's scale status says its pods are."""
    return selector_text(engine_selector(cluster, role))
