"""The whole way, on both kinds of engine: ``pdcluster up`` as a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.engine_kinds import KINDS, engine_kind
from tests.support.engines import EngineKind


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> EngineKind:
    """The kind of engine a case runs on."""
    return engine_kind(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real engines start slowly, and leases take their time."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(1200))
            item.add_marker(pytest.mark.nixl)
            if "[vllm" in item.nodeid:
                item.add_marker(pytest.mark.engine)
