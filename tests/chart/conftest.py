"""Both Helms."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.node import Helm
from tests.support.real_kubernetes import find_programs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Helm is built together with Kubernetes, so these run where that is there."""
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        if "programs" in getattr(item, "fixturenames", ()) or "options" in item.path.name:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def programs() -> Path:
    """Folder with both."""
    return find_programs()


@pytest.fixture(params=["helm3", "helm4"])
def helm(request: pytest.FixtureRequest, programs: Path, tmp_path: Path) -> Helm:
    """Each of both, without a cluster."""
    return Helm(programs / request.param, tmp_path / "none", tmp_path)


@pytest.fixture
def helm4(programs: Path, tmp_path: Path) -> Helm:
    """Helm 4, where both would do the same."""
    return Helm(programs / "helm4", tmp_path / "none", tmp_path)
