"""The images: built when an input changed, their contents read once, a node that runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tools.image.archive import Contents, read_contents
from tools.image.build import Builder, ImageError, missing_programs
from tools.image.recipe import TARGETS
from tools.kubernetes.build import default_cache

from tests.support.kubernetes import Kubectl
from tests.support.real_kubernetes import find_programs, give_up, started_cluster


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


@pytest.fixture(scope="package")
def kubectl(archives: Mapping[str, Path]) -> Iterator[Kubectl]:
    """A node that has the images, and kubectl as its administrator."""
    images = list(archives.values())
    with started_cluster(find_programs(), "pdcluster-tests-image", images=images) as cluster:
        yield Kubectl(cluster.layout.bin / "kubectl", cluster.layout.kubeconfig)
