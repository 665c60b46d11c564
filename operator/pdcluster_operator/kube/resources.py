"""Paths of the API for the kinds we use, so that nothing has to be discovered.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pdcluster_operator.manifests.objects import KINDS

__all__ = ["RESOURCES", "Resource"]

_PLURALS: Final[Mapping[str, str]] = {
    "ConfigMap": "configmaps",
    "ControllerRevision": "controllerrevisions",
    "Deployment": "deployments",
    "NetworkPolicy": "networkpolicies",
    "PDPool": "pdpools",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind as the API server calls it.

    Attributes:
        kind: Name of the kind.
        group: Its group, "" for the core one.
        version: Its version.
        plural: Its plural.
    """

    kind: str
    group: str
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """Group and version."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def collection(self, namespace: str = "") -> str:
        """Path of all objects of a namespace, or of all namespaces."""
        if namespace:
            return self.path(namespace)
        root = f"/apis/{self.group}" if self.group else "/api"
        return f"{root}/{self.version}/{self.plural}"

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Path of the collection, of one object, or of a part of it."""
        root = f"/apis/{self.group}" if self.group else "/api"
        parts = (name, subresource if name else "")
        tail = "".join(f"/{part}" for part in parts if part)
        return f"{root}/{self.version}/namespaces/{namespace}/{self.plural}{tail}"


def _resource(kind: str, api_version: str, plural: str) -> Resource:
    group, _, version = api_version.rpartition("/")
    return Resource(kind=kind, group=group, version=version, plural=plural)


RESOURCES: Final[Mapping[str, Resource]] = {
    **{
        kind.name: _resource(kind.name, kind.api_version, _PLURALS[kind.name])
        for kind in KINDS.values()
    },
    "PDCluster": _resource("PDCluster", KINDS["PDPool"].api_version, "pdclusters"),
    "Pod": _resource("Pod", "v1", "pods"),
    "Event": _resource("Event", "v1", "events"),
}
"""By kind."""
