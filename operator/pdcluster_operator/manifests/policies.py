"""Who may connect to engines and proxies.

Pure. A policy covers TCP between pods that have addresses of their own; RDMA and the host's network
pass it by, and the side channel has no authentication: so nobody but this cluster's own pods may
reach it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pdcluster_api import defaults
from pdcluster_api.labels import CLUSTER_LABEL
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_api.v1alpha1.operation import NetworkPeer
from pdcluster_operator.manifests.labels import (
    COMPONENT_LABEL,
    ENGINE,
    cluster_labels,
    engines_name,
    proxy_name,
    proxy_selector,
)
from pdcluster_operator.manifests.objects import Manifest, Owner, manifest

__all__ = ["network_policies"]

_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"


def network_policies(cluster: PDCluster, owner: Owner) -> Iterator[Manifest]:
    """The policies of a cluster; none where the resource asks for none."""
    asked = cluster.spec.network_policy
    if not asked.enabled:
        return
    name = owner.name
    own_pods: list[dict[str, object]] = [
        {"podSelector": {"matchLabels": {CLUSTER_LABEL: name}}},
    ]
    scrapers = [*_peers(asked.metrics_from), _operators(owner)]
    http = cluster.spec.engine.port
    yield _policy(
        engines_name(name),
        owner,
        selector={CLUSTER_LABEL: name, COMPONENT_LABEL: ENGINE},
        ingress=[
            # All ports: NIXL's transport between engines chooses its own.
            {"from": own_pods},
            {"from": scrapers, "ports": _tcp(http)},
        ],
    )
    clients: dict[str, object] = {"ports": _tcp(defaults.PROXY_PORT)}
    if asked.clients_from:  # An empty list in a policy means everybody as well.
        clients["from"] = _peers(asked.clients_from)
    yield _policy(
        proxy_name(name),
        owner,
        selector=proxy_selector(name),
        ingress=[clients, {"from": scrapers, "ports": _tcp(defaults.ADMIN_PORT)}],
    )


def _operators(owner: Owner) -> dict[str, object]:
    """The operator asks proxies how far a drain has got."""
    namespace = owner.operator.partition("/")[0]
    return {
        "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: namespace}},
        "podSelector": {"matchLabels": {COMPONENT_LABEL: "operator"}},
    }


def _policy(
    name: str, owner: Owner, *, selector: dict[str, str], ingress: list[dict[str, object]]
) -> Manifest:
    return manifest(
        "NetworkPolicy",
        name,
        owner,
        labels=cluster_labels(owner.name),
        spec={
            "podSelector": {"matchLabels": selector},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    )


def _peers(peers: tuple[NetworkPeer, ...]) -> list[dict[str, object]]:
    return [peer.model_dump(mode="json", by_alias=True, exclude_none=True) for peer in peers]


def _tcp(*ports: int) -> list[dict[str, object]]:
    return [{"port": port, "protocol": "TCP"} for port in ports]
