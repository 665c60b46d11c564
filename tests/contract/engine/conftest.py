"""One suite for simulated and real engines: each case runs on either kind, or says why not.

At the end the cases are counted per kind; where ``CI`` is set, one that was skipped on either kind
fails the run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.engine.shared_engines import Engines
from tests.support.engine_kinds import KINDS, engine_kind
from tests.support.engines import EngineKind

_outcomes: dict[str, Counter[str]] = {name: Counter() for name in KINDS}


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> EngineKind:
    """The kind of engine a case runs on."""
    return engine_kind(request.param, "--sim-admin")


@pytest.fixture(scope="session")
def engines(kind: EngineKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Engines shared by all cases of one kind; one that a case killed is started anew."""
    running = Engines(kind, logs=tmp_path_factory.mktemp(f"logs-{kind.name}"))
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def quiet(engines: Engines) -> None:
    """Each case begins with an idle P and an idle D."""
    engines.settle()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real engines start slowly and may wait on long leases: these cases take their time."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(1200))
            item.add_marker(pytest.mark.nixl)
            if "[vllm" in item.nodeid:
                item.add_marker(pytest.mark.engine)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count each case once, by the kind in its id."""
    if "contract/engine/" not in report.nodeid:
        return
    if report.when == "call" or report.outcome != "passed":
        for name in KINDS:
            if f"[{name}" in report.nodeid:
                _outcomes[name][report.outcome] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the cases per kind."""
    if not any(_outcomes.values()):
        return
    terminalreporter.section("engine contract")
    for name, outcomes in _outcomes.items():
        counted = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
        terminalreporter.line(f"{name}: {sum(outcomes.values())} cases ({counted or 'none'})")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI a contract that was not held against both kinds has not been held."""
    skipped = [name for name, outcomes in _outcomes.items() if outcomes["skipped"]]
    ran = any(_outcomes.values())
    if ran and skipped and os.environ.get("CI") and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
