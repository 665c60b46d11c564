"""A whole node: kubelet, containers from our images, network policies, the chart installed."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kubernetes import Kubectl, KubectlError
from tests.support.node import CHART, CHART_VALUES, SYSTEM, Helm, Node
from tests.support.real_kubernetes import find_programs, give_up, started_cluster

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / ".cache" / "images"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nodes and images take their time."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def images() -> tuple[Path, ...]:
    """Archives of our images, built if their inputs have changed."""
    ended = subprocess.run(
        [sys.executable, "-m", "tools.image"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    if ended.returncode:
        give_up(f"the images could not be built: {ended.stdout[-1000:]}{ended.stderr[-2000:]}")
    return tuple(sorted(IMAGES.glob("*.tar")))


@pytest.fixture(scope="package")
def node(images: tuple[Path, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node with our images."""
    scratch = tmp_path_factory.mktemp("helm")
    wanted = {"has_policies": True, "images": images}
    with started_cluster(find_programs(), "pdcluster-tests-node", **wanted) as cluster:
        layout = cluster.layout
        yield Node(
            cluster,
            layout,
            Kubectl(layout.bin / "kubectl", layout.kubeconfig),
            Helm(layout.bin / "helm4", layout.kubeconfig, scratch),
        )


@pytest.fixture(scope="package")
def installed(node: Node) -> Iterator[Node]:
    """The node with the chart installed for all namespaces."""
    values = [word for value in CHART_VALUES for word in ("--set", value)]
    words = ("install", "pdcluster", str(CHART), "-n", SYSTEM, "--create-namespace", *values)
    try:
        node.helm(*words, "--wait", "--timeout=120s")
    except KubectlError:
        print(node.kubectl("get", "pods,events", "-A"))
        raise
    yield node
    node.helm("uninstall", "pdcluster", "-n", SYSTEM, "--wait")


@pytest.fixture
def namespace(installed: Node) -> Iterator[str]:
    """A namespace of the test's own; what went on in it is shown where the test fails."""
    name = f"t-{secrets.token_hex(4)}"
    installed.kubectl("create", "namespace", name)
    yield name
    for words in (("pdc,pdpools,pods", "-o", "wide"), ("events",)):
        print(installed.kubectl("get", *words, "-n", name))
    print(
        installed.kubectl(
            "logs", "-n", SYSTEM, "-l", "app.kubernetes.io/name=pdcluster", "--tail=80"
        )
    )
    installed.kubectl("delete", "namespace", name, "--wait=false")
