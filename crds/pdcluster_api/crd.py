"""The CustomResourceDefinitions, rendered from the models.

Pure. pydantic makes a JSON schema; the structural pass makes it what an API server accepts: no
``$ref``, no ``oneOf``, no null and no ``default: null``, ``format`` on every integer, defaults that
spell out their children's. Kubernetes rejects or ignores the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final, TypeAlias

import yaml
from pydantic import BaseModel
from typing_extensions import override

from pdcluster_api import defaults
from pdcluster_api.v1alpha1 import PDCluster, PDPool

__all__ = ["CRD_FILES", "pdcluster_crd", "pdpool_crd", "render_files", "structural_schema"]

Node: TypeAlias = dict[str, object]
"""A JSON object."""

_HEADER: Final = "# Rendered from the models by `make generate`; do not edit.\n"
_KEY_ORDER: Final = (
    "type",
    "description",
    "format",
    "default",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "properties",
    "additionalProperties",
    "items",
)


def structural_schema(model: type[BaseModel]) -> Node:
    """Return the structural schema of a resource's model."""
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs", {})
    root = _structural(schema, definitions)
    properties = root["properties"]
    assert isinstance(properties, dict)
    # The API server owns these three and rejects most of what could be said about them.
    properties["apiVersion"] = {"type": "string"}
    properties["kind"] = {"type": "string"}
    properties["metadata"] = {"type": "object"}
    root["required"] = ["spec"]
    return root


def _structural(node: Mapping[str, object], definitions: Mapping[str, Node]) -> Node:
    flat = _translated(_inlined(node, definitions))
    for key in ("items", "additionalProperties"):
        below = flat.get(key)
        if isinstance(below, Mapping):
            flat[key] = _structural(below, definitions)
    properties = flat.get("properties")
    if isinstance(properties, Mapping):
        flat["properties"] = {
            name: _structural(child, definitions) for name, child in properties.items()
        }
    return _ordered(flat)


def _translated(flat: Node) -> Node:
    """Say one node's own keys as an API server wants them."""
    further = flat.get("additionalProperties")
    if isinstance(further, bool):
        del flat["additionalProperties"]
        if further:
            flat["x-kubernetes-preserve-unknown-fields"] = True
    if "const" in flat:
        flat["enum"] = [flat.pop("const")]
    if flat.get("type") == "integer":
        flat.setdefault("format", "int32")
    description = flat.get("description")
    if isinstance(description, str):
        flat["description"] = " ".join(description.split())
    default = _without_nothing(flat.pop("default", None))
    if default not in (None, [], {}):
        flat["default"] = default
    return flat


def _inlined(node: Mapping[str, object], definitions: Mapping[str, Node]) -> Node:
    """Resolve references and take null out; keys beside a reference win over the definition's."""
    flat = copy.deepcopy(dict(node))
    while True:
        flat.pop("title", None)
        reference = flat.pop("$ref", None)
        if isinstance(reference, str):
            flat = copy.deepcopy(definitions[reference.rsplit("/", 1)[-1]]) | flat
            continue
        choices = flat.get("anyOf")
        if isinstance(choices, list) and {"type": "null"} in choices:
            [only] = [choice for choice in choices if choice != {"type": "null"}]
            del flat["anyOf"]
            flat = only | flat
            continue
        return flat


def _without_nothing(value: object) -> object:
    """Drop unset fields, empty lists and empty maps from a default."""
    if isinstance(value, dict):
        kept = {key: _without_nothing(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, [], {})}
    if isinstance(value, list):
        return [_without_nothing(item) for item in value]
    return value


def _ordered(node: Node) -> Node:
    rank = {key: index for index, key in enumerate(_KEY_ORDER)}
    return dict(sorted(node.items(), key=lambda item: rank.get(item[0], len(rank))))


def _column(name: str, kind: str, path: str, *, wide: bool = False) -> Node:
    column: Node = {"name": name, "type": kind, "jsonPath": path}
    return column | {"priority": 1} if wide else column


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


def _role(name: str) -> str:
    return f'.status.roles[?(@.name=="{name}")].readyOfDesired'


_CLUSTER_COLUMNS: Final = (
    _column("Model", "string", ".spec.model.name"),
    _column("Prefill", "string", _role("prefill")),
    _column("Decode", "string", _role("decode")),
    _column("Ready", "string", _condition("Ready", "status")),
    _column("Reason", "string", _condition("Ready", "reason")),
    _column("Age", "date", ".metadata.creationTimestamp"),
    _column("Revision", "string", ".status.revision.current", wide=True),
    _column("KV", "string", _condition("KVTransferObserved", "status"), wide=True),
    _column("Lease", "string", ".spec.kvTransfer.kvLeaseDurationSeconds", wide=True),
    _column("URL", "string", ".status.url", wide=True),
)
_POOL_COLUMNS: Final = (
    _column("Cluster", "string", ".spec.clusterName"),
    _column("Role", "string", ".spec.role"),
    _column("Desired", "integer", ".spec.replicas"),
    _column("Replicas", "integer", ".status.replicas"),
    _column("Age", "date", ".metadata.creationTimestamp"),
)


def _definition(
    model: type[BaseModel],
    *,
    plural: str,
    short: str,
    columns: tuple[Node, ...],
    subresources: Node,
) -> Node:
    kind = model.__name__
    version: Node = {
        "name": defaults.API_VERSION.rsplit("/", 1)[-1],
        "served": True,
        "storage": True,
        "subresources": subresources,
        "additionalPrinterColumns": [dict(column) for column in columns],
        "schema": {"openAPIV3Schema": structural_schema(model)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{defaults.API_GROUP}"},
        "spec": {
            "group": defaults.API_GROUP,
            "scope": "Namespaced",
            # No category: `all` would let `kubectl delete all --all` take clusters with it.
            "names": {
                "plural": plural,
                "singular": kind.lower(),
                "kind": kind,
                "listKind": f"{kind}List",
                "shortNames": [short],
            },
            "versions": [version],
        },
    }


def pdcluster_crd() -> Node:
    """Return the CustomResourceDefinition of PDCluster."""
    return _definition(
        PDCluster,
        plural="pdclusters",
        short="pdc",
        columns=_CLUSTER_COLUMNS,
        subresources={"status": {}},
    )


def pdpool_crd() -> Node:
    """Return the CustomResourceDefinition of PDPool, with its scale subresource."""
    return _definition(
        PDPool,
        plural="pdpools",
        short="pdp",
        columns=_POOL_COLUMNS,
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
    )


CRD_FILES: Final = {
    "pdcluster.io_pdclusters.yaml": pdcluster_crd,
    "pdcluster.io_pdpools.yaml": pdpool_crd,
}
"""File name to the function that makes its content."""


class _Dumper(yaml.SafeDumper):
    """Writes every node in full: aliases would be rejected by strict readers."""

    @override
    def ignore_aliases(self, data: object) -> bool:
        """Say that no node may be an alias."""
        del data
        return True


def render_files() -> dict[str, str]:
    """Return the text of every CRD file by its name."""
    return {
        name: _HEADER
        + yaml.dump(make(), Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
        for name, make in CRD_FILES.items()
    }
