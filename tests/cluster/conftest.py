"""A real Kubernetes: built once, started once for this folder, in namespaces of its own."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.kubernetes.cluster.layout import Layout

from tests.support.kubernetes import Kubectl
from tests.support.operator_rig import NODE, OperatorRig
from tests.support.real_kubernetes import find_programs, started_cluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def programs() -> Path:
    """Folder with Kubernetes' programs."""
    return find_programs()


@pytest.fixture(scope="package")
def control_plane(programs: Path) -> Iterator[Layout]:
    """A control plane without a node: a test plays the kubelet."""
    with started_cluster(programs, "pdcluster-tests-control-plane", is_full=False) as cluster:
        yield cluster.layout


@pytest.fixture(scope="package")
def kubectl(control_plane: Layout) -> Kubectl:
    """kubectl as the administrator, with our CRDs in place."""
    made = Kubectl(control_plane.bin / "kubectl", control_plane.kubeconfig)
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        made("apply", "--server-side", "-f", str(path))
    made.wait_established("--all")
    return made


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"t-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def rig(
    kubectl: Kubectl, namespace: str, control_plane: Layout, tmp_path: Path
) -> Iterator[OperatorRig]:
    if kubectl.find("node", "fake") is None:
        kubectl("create", "-f", "-", stdin=NODE)
        body = json.dumps({"status": NODE["status"]})
        kubectl("patch", "node", "fake", "--subresource=status", "--type=merge", "-p", body)
    made = OperatorRig(kubectl, namespace, control_plane, tmp_path)
    made.start()
    yield made
    if made.process is not None:
        made.kill()
