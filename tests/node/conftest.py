"""A whole node: kubelet, containers from our images, network policies, the chart installed."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.kubernetes import Kubectl, KubectlError, claimed_folder
from tests.support.node import CHART, CHART_VALUES, SYSTEM, Helm, Node
from tools.kubernetes.build import BuildError, build_all, default_cache
from tools.kubernetes.cluster.host import Cluster
from tools.kubernetes.cluster.shell import ClusterError

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / ".cache" / "images"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nodes and images take their time."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))


def unavailable(reason: str) -> None:
    """Skip, or fail where tests must not be left out."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def images() -> tuple[Path, ...]:
    """Archives of our images, built if their inputs have changed."""
    ended = subprocess.run(
        [sys.executable, "-m", "tools.image"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    if ended.returncode:
        unavailable(f"the images could not be built: {ended.stdout[-1000:]}{ended.stderr[-2000:]}")
    return tuple(sorted(IMAGES.glob("*.tar")))


@pytest.fixture(scope="session")
def node(images: tuple[Path, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node with our images."""
    given = os.environ.get("PDCLUSTER_KUBERNETES_BIN")
    if given is None and shutil.which("go") is None:
        unavailable("Go is missing: it builds Kubernetes")
    scratch = tmp_path_factory.mktemp("helm")
    with claimed_folder("pdcluster-tests-node") as folder:
        cluster = Cluster(folder)
        try:
            programs = Path(given) if given else build_all(default_cache())
            layout = cluster.start(programs, has_policies=True, images=images, ends_with_us=True)
        except (BuildError, ClusterError) as error:
            unavailable(str(error))
            raise
        yield Node(
            cluster,
            layout,
            Kubectl(layout.bin / "kubectl", layout.kubeconfig),
            Helm(layout.bin / "helm4", layout.kubeconfig, scratch),
        )
        cluster.stop()
        shutil.rmtree(cluster.folder)


@pytest.fixture(scope="session")
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
