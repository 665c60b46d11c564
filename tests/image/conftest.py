"""The images: built when an input changed, their contents read once, a node that runs them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.support.kubernetes import Kubectl, claimed_folder
from tools.image.archive import Contents, read_contents
from tools.image.build import Builder, ImageError, missing_programs
from tools.image.recipe import TARGETS
from tools.kubernetes.build import BuildError, build_all, default_cache
from tools.kubernetes.cluster.host import Cluster
from tools.kubernetes.cluster.shell import ClusterError


def give_up(reason: str) -> None:
    """Fail where everything has to be there, skip elsewhere."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def builder() -> Builder:
    return Builder(cache=default_cache() / "images")


@pytest.fixture(scope="session")
def archives(builder: Builder) -> Mapping[str, Path]:
    """Both archives, current."""
    if missing_programs():
        give_up(missing_programs())
    if os.geteuid():
        give_up("building an image without a container daemon needs root")
    try:
        return dict(zip(TARGETS, builder.build(), strict=True))
    except ImageError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def contents(archives: Mapping[str, Path]) -> Mapping[str, Contents]:
    """What is in them."""
    return {target: read_contents(archive) for target, archive in archives.items()}


@pytest.fixture(scope="session")
def kubectl(archives: Mapping[str, Path]) -> Iterator[Kubectl]:
    """A node that has the images, and kubectl as its administrator."""
    given = os.environ.get("PDCLUSTER_KUBERNETES_BIN")
    if given is None and shutil.which("go") is None:
        give_up("Go is missing: it builds Kubernetes")
    with claimed_folder("pdcluster-tests-image") as folder:
        cluster = Cluster(folder)
        try:
            programs = Path(given) if given else build_all(default_cache())
            layout = cluster.start(programs, images=list(archives.values()), ends_with_us=True)
        except (BuildError, ClusterError) as error:
            give_up(str(error))
            raise
        yield Kubectl(layout.bin / "kubectl", layout.kubeconfig)
        cluster.stop()
        shutil.rmtree(cluster.folder)
