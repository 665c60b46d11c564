"""What every manifest has in common: kind, metadata, the owner.

Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from pdcluster_api import defaults
from pdcluster_operator.manifests.labels import INPUT_ANNOTATION, OPERATOR_ANNOTATION

__all__ = ["KINDS", "Kind", "Manifest", "ObjectKey", "Owner", "hash_of", "key_of", "manifest"]

Manifest: TypeAlias = Mapping[str, object]
"""One Kubernetes object, as it is applied."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object.

    Attributes:
        api_version: Group and version.
        name: The kind.
    """

    api_version: str
    name: str


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind("v1", "ConfigMap"),
        Kind("v1", "Service"),
        Kind("v1", "ServiceAccount"),
        Kind("apps/v1", "ControllerRevision"),
        Kind("apps/v1", "Deployment"),
        Kind("networking.k8s.io/v1", "NetworkPolicy"),
        Kind(defaults.API_VERSION, "PDPool"),
        Kind("policy/v1", "PodDisruptionBudget"),
        Kind("rbac.authorization.k8s.io/v1", "Role"),
        Kind("rbac.authorization.k8s.io/v1", "RoleBinding"),
    )
}
"""What the operator makes."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Identifies a child within its cluster's namespace.

    Attributes:
        kind: Name of the kind.
        name: Name of the object.
    """

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The PDCluster that owns a child.

    Attributes:
        name: Its name.
        namespace: Its namespace.
        uid: Its uid: another object of the same name is another owner.
        operator: Who acts for it, as ``namespace/name``.
    """

    name: str
    namespace: str
    uid: str
    operator: str

    def reference(self) -> dict[str, object]:
        """The controller reference by which Kubernetes collects what is left."""
        return {
            "apiVersion": defaults.API_VERSION,
            "kind": "PDCluster",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def hash_of(content: object) -> str:
    """Hash a JSON value, independent of the order of keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def manifest(
    kind: str,
    name: str,
    owner: Owner,
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    inputs_hash: str = "",
    **body: object,
) -> Manifest:
    """Make one child.

    Args:
        kind: Name of its kind, of :data:`KINDS`.
        name: Its name.
        owner: Its cluster.
        labels: Its labels.
        annotations: Further annotations.
        inputs_hash: Hash of what it is made from, if not of its own content.
        body: Its fields beside metadata.
    """
    noted = {
        **(annotations or {}),
        OPERATOR_ANNOTATION: owner.operator,
        INPUT_ANNOTATION: inputs_hash or hash_of([labels, annotations or {}, body]),
    }
    return {
        "apiVersion": KINDS[kind].api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": dict(labels),
            "annotations": noted,
            "ownerReferences": [owner.reference()],
        },
        **body,
    }


def key_of(child: Manifest) -> ObjectKey:
    """Identify a manifest."""
    metadata = child["metadata"]
    assert isinstance(metadata, Mapping)
    return ObjectKey(str(child["kind"]), str(metadata["name"]))
