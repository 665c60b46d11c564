"""What a person sees with kubectl alone: columns, description, waiting, the schema's own words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kubernetes import Kubectl, KubectlError, eventually
from tests.support.operator_rig import OperatorRig

pytestmark = pytest.mark.cluster

GROUP = "/openapi/v3/apis/pdcluster.io/v1alpha1"
STANDARD = {"apiVersion", "kind", "metadata"}
"""Kubernetes describes these itself."""


def leaves(schemas: dict[str, Any], node: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Each leaf's path and what is said of it; an object without known fields is a leaf, too."""
    if "$ref" in node:
        node = schemas[node["$ref"].rpartition("/")[2]] | {"description": node.get("description")}
    if len(node.get("allOf", [])) == 1:
        (inner,) = node["allOf"]
        yield from leaves(schemas, inner | {"description": node.get("description")}, path)
        return
    if node.get("properties"):
        for name, field in node["properties"].items():
            yield from leaves(schemas, field, f"{path}.{name}")
    elif node.get("type") == "array" and node["items"].get("properties"):
        yield from leaves(schemas, node["items"], f"{path}[]")
    else:
        yield path, node.get("description") or ""


def served_leaves(kubectl: Kubectl, kind: str) -> dict[str, str]:
    """The leaves of a kind as the server publishes them."""
    # Published a moment after the CRD is established.
    text = eventually("the schema is published", lambda: kubectl("get", "--raw", GROUP))
    schemas = json.loads(text)["components"]["schemas"]
    (root,) = (
        schema
        for schema in schemas.values()
        if any(each["kind"] == kind for each in schema.get("x-kubernetes-group-version-kind", ()))
    )
    return {
        path: text
        for name, field in root["properties"].items()
        if name not in STANDARD
        for path, text in leaves(schemas, field, name)
    }


@pytest.mark.parametrize(("kind", "at_least"), [("PDCluster", 150), ("PDPool", 5)])
def test_each_leaf_is_described_in_the_servers_openapi(
    kubectl: Kubectl, kind: str, at_least: int
) -> None:
    found = served_leaves(kubectl, kind)
    print(f"{kind}: {len(found)} leaves")
    assert len(found) >= at_least
    assert [path for path, text in found.items() if len(text) < 10] == []


def test_a_leaf_without_a_description_would_be_found() -> None:
    spec = {"properties": {"told": {"type": "string", "description": "What it is."}, "mute": {}}}
    assert dict(leaves({}, spec, "spec")) == {"spec.told": "What it is.", "spec.mute": ""}


def test_kubectl_explains_a_field(kubectl: Kubectl) -> None:
    said = kubectl("explain", "pdcluster.spec.kvTransfer.kvLeaseDurationSeconds")
    assert "How long a prefill engine keeps blocks" in said.partition("DESCRIPTION:")[2]


def row_of(text: str) -> dict[str, str]:
    """The one row of a table by its header; columns are at least two spaces apart."""
    header, row = (line for line in text.splitlines() if line.strip())
    starts = [header.index(word) for word in header.split()]
    ends = [*starts[1:], None]
    return {header[a:b].strip(): row[a:b].strip() for a, b in zip(starts, ends, strict=True)}


def test_columns_description_and_waiting(rig: OperatorRig) -> None:
    kubectl, namespace = rig.kubectl, ("-n", rig.namespace)
    rig.apply(decode={"replicas": 3})
    rig.wait_ready()

    row = row_of(kubectl("get", "pdc", *namespace))
    assert list(row) == ["NAME", "MODEL", "PREFILL", "DECODE", "READY", "REASON", "AGE"]
    model = rig.get("pdc", "qwen")["spec"]["model"]["name"]
    assert (row["NAME"], row["MODEL"]) == ("qwen", model)
    assert (row["PREFILL"], row["DECODE"]) == ("2/2", "3/3")
    assert (row["READY"], row["REASON"]) == ("True", "Serving")

    wide = row_of(kubectl("get", "pdc", "-o", "wide", *namespace))
    assert list(wide) == [*row, "REVISION", "KV", "LEASE", "URL"]
    assert wide["REVISION"] == rig.get("pdc", "qwen")["status"]["revision"]["current"]
    assert (wide["KV"], wide["LEASE"]) == ("Unknown", "30")
    assert wide["URL"] == f"http://qwen.{rig.namespace}.svc"

    # Else `kubectl delete all --all` would take clusters with it.
    assert "pdcluster.io/" not in kubectl("get", "all", "-o", "name", *namespace)

    said = kubectl("describe", "pdc", "qwen", *namespace)
    for words in ("Conditions:", "Hand Off Deadline Seconds:", "Ready Of Desired:", "Events:"):
        assert words in said, said

    wait = ("wait", "--for=condition=Ready", "pdc/qwen", *namespace)
    kubectl(*wait, "--timeout=10s")

    # Nobody has looked at this change: the condition still says True, of an older generation.
    rig.kill()
    rig.apply(decode={"replicas": 2})
    assert rig.condition("Ready") == ("True", "Serving")
    with pytest.raises(KubectlError, match="timed out"):
        kubectl(*wait, "--timeout=3s")
    rig.start()
    rig.wait_ready()
    kubectl(*wait, "--timeout=10s")
