"""Every example, and everything the operator makes of it, as a real API server judges it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdcluster_api.loading import load_cluster
from pdcluster_api.proxy_config import Role
from pdcluster_operator.manifests.engines import engine_deployment
from pdcluster_operator.manifests.objects import Owner
from pdcluster_operator.manifests.rendering import shared_objects
from tests.support.kubernetes import Kubectl
from tests.support.kubernetes_world import SETTINGS

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*/*.yaml"))
PINS_MEMORY = {"04-gpu-rdma"}
"""Its README says so: every other example runs where Pod Security is strictest."""
RESOURCES = [path for path in FILES if path.name == "pdcluster.yaml"]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_an_example_is_taken_as_it_stands(kubectl: Kubectl, namespace: str, path: Path) -> None:
    kubectl(
        *("apply", "--server-side", "--validate=strict", "--dry-run=server"),
        *("-n", namespace, "-f", str(path)),
    )


@pytest.mark.parametrize("path", RESOURCES, ids=name_of)
def test_what_becomes_of_it_is_taken_too(kubectl: Kubectl, namespace: str, path: Path) -> None:
    cluster = load_cluster(path.read_text(encoding="utf-8"), source=str(path)).cluster
    uid = "00000000-0000-0000-0000-000000000000"
    owner = Owner(name=cluster.metadata.name, namespace=namespace, uid=uid, operator="a/b")
    manifests = [
        *shared_objects(cluster, owner, SETTINGS),
        *(engine_deployment(cluster, role, owner, SETTINGS) for role in Role),
    ]
    assert len(manifests) >= 12
    kubectl.apply(*manifests, namespace=namespace, dry_run=True)
    # Pods too: what a Deployment's template may hold, a namespace may still forbid in a pod.
    level = "privileged" if path.parent.name in PINS_MEMORY else "restricted"
    kubectl("label", "namespace", namespace, f"pod-security.kubernetes.io/enforce={level}")
    for deployment in manifests:
        if deployment["kind"] != "Deployment":
            continue
        template = json.loads(json.dumps(deployment))["spec"]["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": "as-a-pod"},
            "spec": {**template["spec"], "serviceAccountName": "default"},
        }
        kubectl.apply(pod, namespace=namespace, dry_run=True)
