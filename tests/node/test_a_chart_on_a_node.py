"""The chart on a node, with both major versions of Helm. It installs it, so it comes first."""

from __future__ import annotations

import pytest

from tests.support.kubernetes import eventually
from tests.support.node import CHART, CHART_VALUES, SYSTEM, Helm, Node

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("major", ["helm3", "helm4"])
def test_install_test_and_uninstall(node: Node, major: str) -> None:
    kubectl = node.kubectl
    helm = Helm(node.layout.bin / major, node.layout.kubeconfig, node.helm.scratch)
    values = [word for value in CHART_VALUES for word in ("--set", value)]
    words = ("pdcluster", str(CHART), "-n", SYSTEM, *values, "--wait", "--timeout=120s")
    notes = helm("install", *words, "--create-namespace")
    try:
        assert "kubectl" in notes.partition("NOTES")[2]
        said = helm("test", "pdcluster", "-n", SYSTEM, "--timeout=200s", timeout_s=240)
        assert "Succeeded" in said
        helm("upgrade", *words, "--set", "logLevel=debug")
        helm("rollback", "pdcluster", "1", "-n", SYSTEM, "--wait")
    finally:
        helm("uninstall", "pdcluster", "-n", SYSTEM, "--wait")
    eventually(
        "no pod of ours",
        lambda: not kubectl.get("pods", "-n", SYSTEM)["items"] or None,
        within_s=60,
    )
    left = kubectl.get("clusterroles,clusterrolebindings")["items"]
    assert not [each for each in left if "pdcluster" in each["metadata"]["name"]]
    crds = {each["metadata"]["name"] for each in kubectl.get("crd")["items"]}
    assert {"pdclusters.pdcluster.io", "pdpools.pdcluster.io"} <= crds
    kubectl.delete_crds("pdclusters.pdcluster.io", "pdpools.pdcluster.io")
    kubectl("delete", "namespace", SYSTEM, "--wait=true", timeout_s=90)
