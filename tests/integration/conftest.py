"""The whole way, on both kinds of engine: ``pdcluster up`` as a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.engines import EngineKind, sim_kind, vllm_kind

KINDS = ("sim", "vllm")


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> EngineKind:
    """The kind of engine a case runs on."""
    if request.param == "sim":
        return sim_kind()
    found = vllm_kind(os.environ)
    reason = found.missing
    if os.environ.get("PDCLUSTER_WITHOUT_VLLM"):
        reason = "PDCLUSTER_WITHOUT_VLLM is set"
    if reason is not None:
        if os.environ.get("CI"):
            pytest.fail(f"CI proves both kinds of engine: {reason}")
        pytest.skip(reason)
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real engines start slowly, and leases take their time."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))
            item.add_marker(pytest.mark.nixl)
            if "[vllm" in item.nodeid:
                item.add_marker(pytest.mark.engine)
