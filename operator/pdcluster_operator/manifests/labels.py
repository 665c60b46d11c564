"""Labels, annotations and names of everything the operator makes.

Pure. Names are functions of the resource, so that a second look finds the same objects; labels of
selectors never change for an object's life.
"""

from __future__ import annotations

from typing import Final

from pdcluster_api import defaults
from pdcluster_api.labels import (
    CLUSTER_LABEL,
    REVISION_LABEL,
    ROLE_LABEL,
)
from pdcluster_api.proxy_config import Role

__all__ = [
    "COMPONENT_LABEL",
    "ENGINE",
    "FIELD_MANAGER",
    "INPUT_ANNOTATION",
    "MANAGED_BY_LABEL",
    "OPERATOR_ANNOTATION",
    "PAUSED_ANNOTATION",
    "PROXY",
    "SEEDED_ANNOTATION",
    "cluster_labels",
    "engine_deployment_name",
    "engine_labels",
    "engine_selector",
    "engine_service_name",
    "engines_name",
    "pool_name",
    "proxy_labels",
    "proxy_name",
    "proxy_selector",
    "selector_text",
    "service_name",
]

FIELD_MANAGER: Final = "pdcluster-operator"
"""The one field manager of all our server-side applies."""

COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
_NAME_LABEL: Final = "app.kubernetes.io/name"
_INSTANCE_LABEL: Final = "app.kubernetes.io/instance"

INPUT_ANNOTATION: Final = f"{defaults.API_GROUP}/input-hash"
"""On a child: hash of what it was rendered from. While it is unchanged the child is left alone, so
that a newer operator, which renders differently, restarts no engine."""

SEEDED_ANNOTATION: Final = f"{defaults.API_GROUP}/seeded-replicas"
"""On a PDPool: the number that the PDCluster gave it last."""

PAUSED_ANNOTATION: Final = f"{defaults.API_GROUP}/paused"
"""On a PDCluster: ``"true"`` makes the operator leave all of its children as they are."""

OPERATOR_ANNOTATION: Final = f"{defaults.API_GROUP}/operator"
"""On a child: which operator made it, as ``namespace/name``."""

ENGINE: Final = "engine"
"""Component of the engines, and name of their container."""

PROXY: Final = "proxy"
"""Component of the proxies, and name of their container."""


def cluster_labels(cluster: str) -> dict[str, str]:
    """Labels of every child of a cluster."""
    return {
        _NAME_LABEL: "pdcluster",
        _INSTANCE_LABEL: cluster,
        MANAGED_BY_LABEL: FIELD_MANAGER,
        CLUSTER_LABEL: cluster,
    }


def engine_selector(cluster: str, role: Role, revision: str = "") -> dict[str, str]:
    """Select the engines of a role, of one revision where it is given."""
    labels = {CLUSTER_LABEL: cluster, COMPONENT_LABEL: ENGINE, ROLE_LABEL: role.value}
    return labels | ({REVISION_LABEL: revision} if revision else {})


def engine_labels(cluster: str, role: Role, revision: str) -> dict[str, str]:
    """Labels of an engine's Deployment and pods."""
    return cluster_labels(cluster) | engine_selector(cluster, role, revision)


def proxy_selector(cluster: str) -> dict[str, str]:
    """Select the proxies."""
    return {CLUSTER_LABEL: cluster, COMPONENT_LABEL: PROXY}


def proxy_labels(cluster: str) -> dict[str, str]:
    """Labels of what belongs to the proxies."""
    return cluster_labels(cluster) | proxy_selector(cluster)


def selector_text(labels: dict[str, str]) -> str:
    """Write equality selectors as the API takes them in queries and in a scale status."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def engine_deployment_name(cluster: str, role: Role, revision: str) -> str:
    """One Deployment per role and revision: both revisions live side by side in a rollout."""
    return f"{cluster}-{role.value}-{revision}"


def pool_name(cluster: str, role: Role) -> str:
    """The PDPool of a role; also its PodDisruptionBudget."""
    return f"{cluster}-{role.value}"


def proxy_name(cluster: str) -> str:
    """The proxies' Deployment, ConfigMap, ServiceAccount, Role, budget and policy."""
    return f"{cluster}-proxy"


def engines_name(cluster: str) -> str:
    """The engines' ServiceAccount and NetworkPolicy."""
    return f"{cluster}-engine"


def engine_service_name(cluster: str) -> str:
    """The headless Service over all engines."""
    return f"{cluster}-engines"


def service_name(cluster: str) -> str:
    """The Service that clients use."""
    return cluster
