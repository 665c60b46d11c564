"""The CRDs on a real API server: what the models take it takes, what they reject it rejects."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.kubernetes import Kubectl, KubectlError
from tests.support.resource_table import BAD, GOOD
from tests.support.resources import broken_by

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("document", GOOD.values(), ids=GOOD)
def test_a_good_resource_is_taken(kubectl: Kubectl, document: Any) -> None:
    kubectl.apply(document, namespace="default", dry_run=True)


@pytest.mark.parametrize("document", [bad for bad, _ in BAD.values()], ids=BAD)
def test_a_bad_resource_is_rejected_with_the_models_words(kubectl: Kubectl, document: Any) -> None:
    with pytest.raises(KubectlError) as raised:
        kubectl.apply(document, namespace="default", dry_run=True)
    said = " ".join(str(raised.value).split())
    broken, _ = broken_by(document)
    # Where the structure is wrong the server does not come to the rules.
    if broken and "some validation rules were not checked" not in said:
        assert any(" ".join(message.split()) in said for message in broken), said


def test_an_unknown_field_is_named(kubectl: Kubectl) -> None:
    document = {
        "apiVersion": "pdcluster.io/v1alpha1",
        "kind": "PDCluster",
        "metadata": {"name": "x"},
        "spec": {"model": {"name": "m"}, "engine": {"image": "i"}, "prefil": {}},
    }
    with pytest.raises(KubectlError, match='unknown field "prefil"'):
        kubectl.apply(document, namespace="default", dry_run=True)


def described(schema: dict[str, Any], path: str) -> list[str]:
    """Paths of leaves that have no description."""
    missing = []
    for name, node in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        if not node.get("description") and "$ref" not in node:
            missing.append(here)
        for inner in (node, node.get("items", {}), node.get("additionalProperties", {})):
            if isinstance(inner, dict):
                missing += described(inner, here)
    return missing


def test_every_leaf_has_a_description_on_the_server(kubectl: Kubectl) -> None:
    for plural in ("pdclusters", "pdpools"):
        crd = kubectl.get("crd", f"{plural}.pdcluster.io")
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        standard = {".apiVersion", ".kind", ".metadata"}
        assert [path for path in described(schema, "") if path not in standard] == []


def test_a_fresh_resource_waits_for_an_operator(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(GOOD["only what is required"], namespace=namespace)
    (found,) = kubectl.get("pdclusters", "-n", namespace)["items"]
    (condition,) = found["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "Unknown")
    assert condition["reason"] == "WaitingForOperator"
    header = kubectl("get", "pdc", "-n", namespace).splitlines()[0].split()
    assert header == ["NAME", "MODEL", "PREFILL", "DECODE", "READY", "REASON", "AGE"]
