"""The supervisor with processes of the test's own: starts, restarts, and three ways to stop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.scripted_engine import eventually

from pdcluster_proxy.logs import LogFormat
from pdcluster_proxy.settings import Settings
from pdcluster_proxy.supervisor import ProcessPlan, Supervisor

START_S = 30.0
ROOT = Path(__file__).parents[3]


class Rig:
    """A supervisor of one companion and some workers, and what they noted."""

    def __init__(self, folder: Path) -> None:
        self.notes_path = folder / "notes"
        self.notes_path.touch()
        self.lives = folder / "lives"
        self.sockets: list[socket.socket] = []

    def supervise(
        self,
        *workers: str,
        companion: str = "obedient",
        drain_s: float = 0.0,
        grace_s: float = 20.0,
    ) -> asyncio.Task[int]:
        plans = [self._plan("companion", companion, 0)]
        plans += [self._plan(f"worker-{n}", module, n) for n, module in enumerate(workers)]
        config = {"notes": str(self.notes_path), "lives": str(self.lives)}
        self.supervisor = Supervisor(
            companion=plans[0],
            workers=plans[1:],
            config_json=json.dumps(config).encode(),
            link="@test",
            settings=Settings(
                config=Path("unused"), log_format=LogFormat.JSON, log_level="WARNING"
            ),
            drain_s=drain_s,
            grace_s=grace_s,
        )
        return asyncio.create_task(self.supervisor.run())

    def _plan(self, name: str, module: str, index: int) -> ProcessPlan:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.sockets.append(listener)
        module = f"tests.support.processes.{module}"
        return ProcessPlan(name=name, module=module, socket=listener, index=index)

    @property
    def notes(self) -> list[tuple[int, int, str]]:
        """(index, process, step) of each note."""
        lines = [line.split() for line in self.notes_path.read_text().splitlines()]
        return [(int(index), int(pid), step) for index, pid, step in lines]

    def steps(self, step: str) -> int:
        return sum(noted == step for _, _, noted in self.notes)

    async def until(self, step: str, number: int) -> None:
        await eventually(lambda: self.steps(step) >= number, within_s=START_S)

    def nobody_is_left(self) -> bool:
        return not any(psutil.pid_exists(pid) for pid in {pid for _, pid, _ in self.notes})


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.chdir(ROOT)  # They are started as modules of this repository.
    rig = Rig(tmp_path)
    yield rig
    for listener in rig.sockets:
        listener.close()
    assert rig.nobody_is_left()


async def code_of(running: asyncio.Task[int]) -> int:
    async with asyncio.timeout(START_S):
        return await running


async def test_a_stop_drains_first_then_ends_workers_then_the_companion(rig: Rig) -> None:
    running = rig.supervise("obedient", "obedient", drain_s=0.05)
    await rig.until("ready", 3)
    rig.supervisor.stop()
    assert await code_of(running) == 0
    companion = next(pid for _, pid, step in rig.notes if step == "drains")
    ends = [(pid == companion, step) for _, pid, step in rig.notes if step in {"drains", "ended"}]
    assert ends == [(True, "drains"), (False, "ended"), (False, "ended"), (True, "ended")]


async def test_sockets_are_open_during_the_drain_and_closed_after_it(rig: Rig) -> None:
    running = rig.supervise("obedient", drain_s=60.0)
    await rig.until("ready", 2)
    rig.supervisor.stop()
    await rig.until("drains", 1)
    assert [listener.fileno() >= 0 for listener in rig.sockets] == [True, True]
    rig.supervisor.stop()
    assert await code_of(running) == 1
    assert [listener.fileno() for listener in rig.sockets] == [-1, -1]


async def test_a_companion_that_is_still_beginning_hears_of_the_drain_later(rig: Rig) -> None:
    running = rig.supervise("obedient", companion="slow", drain_s=60.0)
    await eventually(rig.lives.exists, within_s=START_S)
    await rig.until("ready", 1)
    rig.supervisor.stop()
    await asyncio.sleep(0)  # It says so now, to a companion that has no handler.
    await asyncio.sleep(0)
    rig.lives.unlink()
    await rig.until("drains", 1)
    assert rig.steps("began") == 2  # Nobody was killed by the news and started again.
    rig.supervisor.stop()
    assert await code_of(running) == 1


async def test_a_companion_that_dies_during_the_drain_is_told_of_it_again(rig: Rig) -> None:
    running = rig.supervise("obedient", drain_s=60.0)
    await rig.until("ready", 2)
    rig.supervisor.stop()
    await rig.until("drains", 1)
    os.kill(next(pid for _, pid, step in rig.notes if step == "drains"), 9)
    await rig.until("drains", 2)
    rig.supervisor.stop()
    assert await code_of(running) == 1


async def test_the_supervisor_leaves_the_signal_mask_as_it_was(rig: Rig) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    running = rig.supervise("obedient")
    await rig.until("ready", 2)
    rig.supervisor.stop()
    await code_of(running)
    assert before == signal.pthread_sigmask(signal.SIG_BLOCK, ())


async def test_a_process_that_dies_is_started_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        running = rig.supervise("dying")
        await rig.until("ready", 2)
    died = [record for record in caplog.records if record.message == "process.died"]
    assert [vars(record)["exit_code"] for record in died] == [1, 1]
    assert [vars(record)["restart_in_s"] for record in died] == [0.1, 0.2]
    rig.supervisor.stop()
    assert await code_of(running) == 0


async def test_a_process_that_cannot_be_spawned_is_started_as_soon_as_it_can(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    python = sys.executable
    monkeypatch.setattr(sys, "executable", str(rig.lives))  # Nothing is there to be run.
    with caplog.at_level(logging.ERROR):
        running = rig.supervise("obedient")
        await eventually(
            lambda: [r.message for r in caplog.records].count("process.start.failed") >= 3,
            within_s=START_S,
        )
    assert not running.done()
    monkeypatch.setattr(sys, "executable", python)
    await rig.until("ready", 2)
    delays = [vars(r)["restart_in_s"] for r in caplog.records if r.message == "process.died"]
    assert delays[:2] == [0.1, 0.1]  # Of two processes, one after the other.
    rig.supervisor.stop()
    assert await code_of(running) == 0


async def test_a_process_that_is_killed_is_started_again_with_its_socket(rig: Rig) -> None:
    running = rig.supervise("obedient")
    await rig.until("ready", 2)
    victim = rig.notes[-1][1]
    os.kill(victim, 9)
    await rig.until("ready", 3)
    assert rig.notes[-1][1] != victim
    assert all(listener.fileno() >= 0 for listener in rig.sockets)
    rig.supervisor.stop()
    assert await code_of(running) == 0


async def test_a_process_that_cannot_use_its_configuration_stops_everything_with_2(
    rig: Rig,
) -> None:
    running = rig.supervise("misconfigured", "obedient", drain_s=60.0)
    assert await code_of(running) == 2


async def test_a_process_that_does_not_end_is_killed_after_its_grace(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    running = rig.supervise("stubborn", grace_s=-2.9)  # A tenth of a second in all.
    await rig.until("ready", 2)
    with caplog.at_level(logging.ERROR):
        rig.supervisor.stop()
        assert await code_of(running) == 0
    assert [r.message for r in caplog.records] == ["process.killed"]


async def test_a_second_stop_does_not_wait_for_anybody(rig: Rig) -> None:
    running = rig.supervise("stubborn", companion="stubborn", grace_s=600.0)
    await rig.until("ready", 2)
    rig.supervisor.stop()
    await rig.until("ignored", 1)
    rig.supervisor.stop()
    assert await code_of(running) == 1


async def test_cancelling_the_supervisor_leaves_nobody_behind(rig: Rig) -> None:
    running = rig.supervise("obedient")
    await rig.until("ready", 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(rig.nobody_is_left, within_s=START_S)
