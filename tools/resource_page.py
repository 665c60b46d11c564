"""Render ``docs/resource.md`` from the CRDs: every field, every rule, every column.

Pure. What stands in the schema is the source; what no program honours yet comes from
``pdcluster_api.support``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from pdcluster_api.crd import render_files
from pdcluster_api.findings import FORMS
from pdcluster_api.problems import format_path
from pdcluster_api.support import NOT_YET

__all__ = ["resource_page"]

Node = Mapping[str, Any]
"""One node of a schema. Any: JSON."""

HEAD = """\
# The resource

`PDCluster` and `PDPool`, group `pdcluster.io`, version `v1alpha1`. Rendered from the CRDs by
`make generate`; do not edit. `pdcluster render -f FILE` shows what a PDCluster becomes, `pdcluster
explain-lease` the times that follow from it. What no program honours yet is rejected with its path;
what only a Kubernetes cluster can honour is accepted everywhere and listed by `render`.

On a Kubernetes cluster the same texts are at hand: `kubectl explain pdcluster.spec.kvTransfer`.
"""
FIELDS_HEAD = """\
| Field | Type | Default | Allowed | Meaning |
|---|---|---|---|---|
"""
STATUS_HEAD = """\
| Field | Type | Meaning |
|---|---|---|
"""
RULES_HEAD = """\
## Rules between fields

The API server checks them when a PDCluster is applied, `pdcluster render` and `pdcluster up` when a
file is read. The message is what they say; it begins with the field.

| Field | Message |
|---|---|
"""
NOT_YET_HEAD = """\
## Not yet supported

The schema knows these fields; asking for one gives `ConfigValid=False` with the reason
`NotYetSupported`, and what runs goes on. A default that is among them can't be told from a wish
once an API server has written it into a PDCluster: there it is accepted and has no effect.

| Field | Instead |
|---|---|
"""
POOL_HEAD = """\
## PDPool

The number of engines of one role, for `kubectl scale`, HorizontalPodAutoscaler and KEDA. The
operator makes two per PDCluster, `<name>-prefill` and `<name>-decode`; nobody else does. What the
PDCluster says of `replicas` is passed on when it changes; in between the pool's own number holds.

"""


def resource_page() -> str:
    """Render the page."""
    cluster = _version("pdcluster.io_pdclusters.yaml")
    pool = _version("pdcluster.io_pdpools.yaml")
    fields, pool_fields = (_properties(each) for each in (cluster, pool))
    parts = [
        HEAD,
        "## spec\n\nBold fields are required where what they belong to is given.\n",
        FIELDS_HEAD + "\n".join(_rows(fields["spec"], "spec")) + "\n",
        RULES_HEAD + "\n".join(_rule_rows(cluster["schema"]["openAPIV3Schema"])) + "\n",
        NOT_YET_HEAD
        + "\n".join(f"| `{format_path(each.path)}` | {each.remedy} |" for each in NOT_YET)
        + "\n",
        "## status\n\nWhat the operator saw; see [Conditions](conditions.md) for the reasons.\n",
        STATUS_HEAD + "\n".join(_status_rows(fields["status"], "status")) + "\n",
        "## Columns\n\nOf `kubectl get pdcluster` (short: `pdc`), and what `-o wide` adds.\n",
        _columns(cluster),
        POOL_HEAD + FIELDS_HEAD + "\n".join(_rows(pool_fields["spec"], "spec")) + "\n",
        STATUS_HEAD + "\n".join(_status_rows(pool_fields["status"], "status")) + "\n",
        "Columns of `kubectl get pdpool` (short: `pdp`):\n",
        _columns(pool),
    ]
    return "\n".join(parts)


def _version(file: str) -> Node:
    version: Node = yaml.safe_load(render_files()[file])["spec"]["versions"][0]
    return version


def _properties(version: Node) -> Mapping[str, Node]:
    found: Mapping[str, Node] = version["schema"]["openAPIV3Schema"]["properties"]
    return found


def _leaves(
    schema: Node, path: str, *, is_required: bool = True
) -> Iterator[tuple[str, Node, bool]]:
    """Every field below a schema that has no fields of its own, and whether it must be there."""
    fields = schema.get("properties")
    if schema.get("type") == "array" and "properties" in schema.get("items", {}):
        yield from _leaves(schema["items"], f"{path}[]")
    elif not fields:
        yield path, schema, is_required
    else:
        for name, inner in fields.items():
            asked = name in schema.get("required", ())
            yield from _leaves(inner, f"{path}.{name}", is_required=asked)


def _rows(schema: Node, path: str) -> Iterator[str]:
    for name, leaf, is_required in _leaves(schema, path):
        field = f"**`{name}`**" if is_required else f"`{name}`"
        default = f"`{json.dumps(leaf['default'])}`" if "default" in leaf else ""
        yield (
            f"| {field} | {_type(leaf)} | {default} | {'; '.join(_allowed(leaf))} | {_text(leaf)} |"
        )


def _status_rows(schema: Node, path: str) -> Iterator[str]:
    for name, leaf, _ in _leaves(schema, path):
        yield f"| `{name}` | {_type(leaf)} | {_text(leaf)} |"


def _type(leaf: Node) -> str:
    if leaf.get("x-kubernetes-int-or-string"):
        return "integer or string"
    kind = str(leaf.get("type", "any"))
    if kind == "array":
        return f"list of {_type(leaf.get('items', {}))}s"
    inner = leaf.get("additionalProperties")
    return f"map to {_type(inner)}" if isinstance(inner, Mapping) else kind


def _allowed(leaf: Node) -> Iterator[str]:
    """Bounds and forms in words."""
    if "enum" in leaf:
        yield " or ".join(f"`{value}`" if value else "empty" for value in leaf["enum"])
    low, high = leaf.get("minimum"), leaf.get("maximum")
    if low is not None and high is not None:
        yield f"{low} to {high}"
    elif low is not None:
        yield f"at least {low}"
    elif high is not None:
        yield f"at most {high}"
    for unit, least, most in (
        ("characters", "minLength", "maxLength"),
        ("items", "minItems", "maxItems"),
        ("entries", "minProperties", "maxProperties"),
    ):
        if least in leaf:
            yield f"at least {leaf[least]} {unit if leaf[least] != 1 else unit[:-1]}"
        if most in leaf:
            yield f"at most {leaf[most]} {unit}"
    if "pattern" in leaf:
        pattern = leaf["pattern"]
        yield _cell(FORMS.get(pattern, f"like `{pattern}`"))
    item = leaf.get("items", leaf.get("additionalProperties"))
    if isinstance(item, Mapping):
        yield from (f"each {each}" for each in _allowed(item))


def _text(leaf: Node) -> str:
    return _cell(str(leaf.get("description", "")))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _rule_rows(schema: Node) -> Iterator[str]:
    """One row per message: the same rule may hold for several fields."""
    fields: dict[str, list[str]] = {}
    for path, message in _rules(schema, ""):
        fields.setdefault(message, []).append(path or "metadata.name")
    for message, paths in fields.items():
        yield f"| {', '.join(f'`{path}`' for path in paths)} | {_cell(message)} |"


def _rules(node: Node, path: str) -> Iterable[tuple[str, str]]:
    for rule in node.get("x-kubernetes-validations", ()):
        yield (path + rule.get("fieldPath", "")).lstrip("."), rule["message"]
    for name, inner in node.get("properties", {}).items():
        yield from _rules(inner, f"{path}.{name}")
    if isinstance(node.get("items"), Mapping):
        yield from _rules(node["items"], f"{path}[]")
    if isinstance(node.get("additionalProperties"), Mapping):
        yield from _rules(node["additionalProperties"], f"{path}.*")


def _columns(version: Node) -> str:
    rows = ["| Column | From | Shown |", "|---|---|---|"]
    for column in version["additionalPrinterColumns"]:
        shown = "with `-o wide`" if column.get("priority") else "always"
        rows.append(f"| {column['name'].upper()} | `{column['jsonPath']}` | {shown} |")
    return "\n".join(rows) + "\n"
