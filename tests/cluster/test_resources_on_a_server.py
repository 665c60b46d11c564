"""The CRDs on a real API server: what the models take it takes, what they reject it rejects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from pdcluster_api.loading import load_cluster
from pdcluster_api.problems import ResourceError
from tests.support.kubernetes import Kubectl, KubectlError
from tests.support.resource_table import BAD, GOOD
from tests.support.resources import broken_by, text_of

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("document", GOOD.values(), ids=GOOD)
def test_a_good_resource_is_taken(kubectl: Kubectl, document: Any) -> None:
    kubectl.apply(document, namespace="default", dry_run=True)


def names(said: str, where: Sequence[str | int]) -> bool:
    """Whether an error names a field: whole, or by the object it is in and its own name.

    kubectl and the server write the kind before the path where the structure is wrong, and name a
    list without the place in it.
    """
    plain = ".".join(part for part in where if isinstance(part, str))
    parent, _, name = plain.rpartition(".")
    in_parent = f"PDCluster{'.' * bool(parent)}{parent})" in said and f'"{name}"' in said
    return in_parent or plain in re.sub(r"\[[^]]*\]", "", said)


def test_an_error_that_names_no_field_is_noticed() -> None:
    said = 'ValidationError(PDCluster.spec): unknown field "prefil" in io.pdcluster'
    assert names(said, ("spec", "prefil"))
    assert not names(said, ("spec", "decode"))
    of_env = ("spec", "engine", "env", 3)
    assert names("spec.engine.env[0]: Invalid value", of_env)
    assert not names("spec.engine.env[0]: Invalid value", (*of_env, "name"))


@pytest.mark.parametrize("document", [bad for bad, _ in BAD.values()], ids=BAD)
def test_a_bad_resource_is_rejected_with_the_models_words(kubectl: Kubectl, document: Any) -> None:
    with pytest.raises(KubectlError) as raised:
        kubectl.apply(document, namespace="default", dry_run=True)
    said = " ".join(str(raised.value).split())
    broken, _ = broken_by(document)
    # Where the structure is wrong the server does not come to the rules.
    if broken and "some validation rules were not checked" not in said:
        assert any(" ".join(message.split()) in said for message in broken), said
    with pytest.raises(ResourceError) as of_models:
        load_cluster(text_of(document), source="")
    assert any(names(said, problem.path) for problem in of_models.value.problems), said


def test_an_unknown_field_is_named(kubectl: Kubectl) -> None:
    document = {
        "apiVersion": "pdcluster.io/v1alpha1",
        "kind": "PDCluster",
        "metadata": {"name": "x"},
        "spec": {"model": {"name": "m"}, "engine": {"image": "i"}, "prefil": {}},
    }
    with pytest.raises(KubectlError, match='unknown field "prefil"'):
        kubectl.apply(document, namespace="default", dry_run=True)


def test_a_fresh_resource_waits_for_an_operator(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(GOOD["only what is required"], namespace=namespace)
    (found,) = kubectl.get("pdclusters", "-n", namespace)["items"]
    (condition,) = found["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "Unknown")
    assert condition["reason"] == "WaitingForOperator"
    header = kubectl("get", "pdc", "-n", namespace).splitlines()[0].split()
    assert header == ["NAME", "MODEL", "PREFILL", "DECODE", "READY", "REASON", "AGE"]
