"""The local cluster with stand-ins for engine and proxy: real processes, guards and probes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support import standin
from tests.support.resources import ENGINE, cluster

from pdcluster_api.proxy_config import EndpointsFile
from pdcluster_cli.errors import StartError, StartTimeoutError
from pdcluster_cli.guard import read_record
from pdcluster_cli.up.addresses import free_address
from pdcluster_cli.up.lifecycle import Phase
from pdcluster_cli.up.local_cluster import LocalCluster
from pdcluster_cli.up.processes import Launcher
from pdcluster_cli.up.snapshot import Member, Snapshot
from pdcluster_cli.up.wishes import EngineSource, Site
from pdcluster_lease.errors import TimingError

STANDIN = str(Path(standin.__file__))
WAIT_S = 30.0

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(90)]


class Listening:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.phases: list[tuple[str, Phase]] = []

    def changed(self, snapshot: Snapshot) -> None:
        for member in snapshot.members:
            entry = (member.name, member.phase)
            last = next((one for one in reversed(self.phases) if one[0] == member.name), None)
            if entry != last:
                self.phases.append(entry)

    def told(self, message: str) -> None:
        self.messages.append(message)


Run = Callable[..., AbstractAsyncContextManager[LocalCluster]]
SMALL = {"prefill": {"replicas": 1}, "decode": {"replicas": 1}, "drain": {"settleSeconds": 0}}


@pytest.fixture
def listening() -> Listening:
    return Listening()


@pytest.fixture
def run(tmp_path: Path, free_port: int, listening: Listening) -> Run:
    engine_port = free_port

    @asynccontextmanager
    async def run(env: dict[str, str] | None = None, **fields: Any) -> AsyncIterator[LocalCluster]:
        site = Site(
            source=EngineSource(
                label="stand-in",
                command=(sys.executable, STANDIN, "engine"),
                env=tuple((env or {}).items()),
            ),
            proxy_command=(sys.executable, STANDIN, "proxy"),
            proxy_port=engine_port + 1,
            admin_port=engine_port + 2,
            proxy_workers=1,
            run_dir=str(tmp_path),
            scratch_dir=str(tmp_path / "scratch"),
            models_dir=str(tmp_path / "models"),
        )
        local = LocalCluster(
            resource(engine_port, **fields),
            site=site,
            launcher=Launcher(run_dir=tmp_path, environ=os.environ),
            address=lambda taken, ports: free_address(taken, ports=ports),
            listener=listening,
        )
        async with asyncio.timeout(60), local:
            yield local

    return run


@pytest.fixture
def resource_on(free_port: int) -> Callable[..., Any]:
    """Return a builder of resources with the same ports as the running one."""
    return lambda **fields: resource(free_port, **fields)


def resource(engine_port: int, **fields: Any) -> Any:
    engine = ENGINE | {"port": engine_port} | fields.pop("engine", {})
    return cluster(**(SMALL | {"engine": engine} | fields))


async def until(holds: Callable[[], bool]) -> None:
    """Look again and again, with a deadline: what is awaited happens in other processes."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)


def phase_of(local: LocalCluster, name: str) -> Phase | None:
    member = local.snapshot.member(name)
    return member.phase if member is not None else None


def member_of(local: LocalCluster, name: str) -> Member:
    member = local.snapshot.member(name)
    assert member is not None
    return member


def tree_of(local: LocalCluster, name: str) -> list[psutil.Process]:
    guard = psutil.Process(member_of(local, name).pid)
    return [guard, *guard.children(recursive=True)]


def endpoints_on_disk(folder: Path) -> dict[str, bool]:
    text = (folder / "endpoints.json").read_text(encoding="utf-8")
    found = EndpointsFile.model_validate_json(text).endpoints
    return {endpoint.name: endpoint.draining for endpoint in found}


async def test_everything_starts_serves_and_stops(
    run: Run, tmp_path: Path, free_port: int, listening: Listening
) -> None:
    async with run() as local:
        await local.wait_ready()
        assert local.url == f"http://127.0.0.1:{free_port + 1}"
        assert endpoints_on_disk(tmp_path) == {"prefill-0": False, "decode-0": False}
        assert [one.name for one in local.endpoints.endpoints] == ["prefill-0", "decode-0"]
        assert {one.phase for one in local.snapshot.members} == {Phase.READY}
    assert {one.phase for one in local.snapshot.members} == {Phase.EXITED}
    assert {one.exit_code for one in local.snapshot.members} == {0}
    assert listening.messages == []


async def test_the_end_is_in_order_proxy_then_prefill_then_decode(
    run: Run, listening: Listening
) -> None:
    async with run() as local:
        await local.wait_ready()
    left = [name for name, phase in listening.phases if phase is Phase.EXITED]
    assert [name for name in left if left.count(name) >= 1][-3:] == [
        "proxy",
        "prefill-0",
        "decode-0",
    ]


async def test_the_proxy_is_told_what_the_program_says(run: Run, tmp_path: Path) -> None:
    async with run(proxy={"idleTimeoutSeconds": 7}) as local:
        await local.wait_ready()
        config = json.loads((tmp_path / "proxy.json").read_text(encoding="utf-8"))
    assert config["timeouts"]["idleSeconds"] == 7
    assert config["endpointsFile"] == str(tmp_path / "endpoints.json")
    assert config["drainSeconds"] == 0


@pytest.mark.parametrize("victim", ["program", "guard"])
async def test_what_dies_is_started_again_and_nothing_of_it_is_left(
    run: Run, listening: Listening, victim: str
) -> None:
    async with run({"STANDIN_CHILD": "1"}) as local:
        await local.wait_ready()
        tree = tree_of(local, "prefill-0")
        assert len(tree) == 3
        tree[1 if victim == "program" else 0].kill()
        await until(lambda: phase_of(local, "prefill-0") is Phase.EXITED)
        assert not any(one.is_running() and one.status() != "zombie" for one in tree)
        await until(lambda: phase_of(local, "prefill-0") is Phase.READY)
        assert member_of(local, "prefill-0").launches == 2
    assert listening.messages == ["prefill-0 ended with code 137; it is started again"]


async def test_an_engine_that_ended_is_taken_out_of_the_proxys_list(
    run: Run, tmp_path: Path
) -> None:
    async with run() as local:
        await local.wait_ready()
        tree_of(local, "decode-0")[1].kill()
        await until(lambda: endpoints_on_disk(tmp_path) == {"prefill-0": False})
        await until(lambda: len(endpoints_on_disk(tmp_path)) == 2)


async def test_files_in_shared_memory_go_even_when_the_guard_is_killed(
    run: Run, shared_name: str, tmp_path: Path
) -> None:
    def files() -> list[Path]:
        return list(Path("/dev/shm").glob(f"{Path(shared_name).name}-*"))

    def recorded() -> int:
        records = (tmp_path / "guards").glob("*.txt")
        return sum(len(read_record(record)) for record in records)

    async with run({"STANDIN_SHARED": shared_name}) as local:
        await local.wait_ready()
        assert len(files()) == 2
        await until(lambda: recorded() == 2)
        tree_of(local, "prefill-0")[0].kill()
        await until(lambda: member_of(local, "prefill-0").launches == 2)
        await until(lambda: phase_of(local, "prefill-0") is Phase.READY)
        assert len(files()) == 2
    assert files() == []
    assert recorded() == 0


async def test_an_edit_starts_the_new_before_the_old_leave(
    run: Run, tmp_path: Path, resource_on: Callable[..., Any], listening: Listening
) -> None:
    async with run() as local:
        await local.wait_ready()
        assert local.apply(resource_on(decode={"replicas": 1, "args": ["--x"]})).is_felt
        seen: set[frozenset[str]] = set()

        def replaced() -> bool:
            seen.add(frozenset(endpoints_on_disk(tmp_path)))
            return endpoints_on_disk(tmp_path) == {"prefill-1": False, "decode-1": False}

        await until(replaced)
        assert all(
            any(name.startswith(role) for name in names)
            for names in seen
            for role in ("prefill", "decode")
        )
    order = listening.phases
    assert order.index(("decode-1", Phase.READY)) < order.index(("prefill-0", Phase.DRAINING))
    assert order.index(("prefill-1", Phase.READY)) < order.index(("prefill-0", Phase.DRAINING))
    assert order.index(("prefill-0", Phase.EXITED)) >= 0
    assert order.index(("prefill-0", Phase.DRAINING)) < order.index(("decode-0", Phase.DRAINING))


async def test_an_edit_that_changes_no_program_changes_nothing(
    run: Run, resource_on: Callable[..., Any]
) -> None:
    async with run() as local:
        await local.wait_ready()
        before = [one.pid for one in local.snapshot.members]
        assert not local.apply(resource_on(ratio={"maxPrefillPerDecode": "3:1"})).is_felt
        assert [one.pid for one in local.snapshot.members] == before


async def test_more_replicas_are_added_to_those_that_serve(
    run: Run, resource_on: Callable[..., Any], tmp_path: Path
) -> None:
    async with run() as local:
        await local.wait_ready()
        pid = member_of(local, "decode-0").pid
        edit = local.apply(resource_on(decode={"replicas": 2}))
        assert (edit.num_kept, edit.num_started, edit.num_drained) == (3, 1, 0)
        await until(lambda: len(endpoints_on_disk(tmp_path)) == 3)
        assert member_of(local, "decode-0").pid == pid


async def test_a_changed_proxy_is_replaced_while_the_old_still_serves(
    run: Run, resource_on: Callable[..., Any], listening: Listening
) -> None:
    async with run() as local:
        await local.wait_ready()
        edit = local.apply(resource_on(proxy={"idleTimeoutSeconds": 9}))
        assert (edit.num_kept, edit.num_started, edit.num_drained) == (2, 1, 1)
        await until(lambda: local.snapshot.member("proxy") is None)
        assert phase_of(local, "proxy-1") is Phase.READY
        await local.wait_ready()
    order = listening.phases
    assert order.index(("proxy-1", Phase.READY)) < order.index(("proxy", Phase.DRAINING))


async def test_an_edit_whose_engine_cannot_start_is_taken_back(
    run: Run, resource_on: Callable[..., Any], tmp_path: Path, listening: Listening
) -> None:
    async with run() as local:
        await local.wait_ready()
        pids = {one.name: one.pid for one in local.snapshot.members}
        broken = [{"name": "STANDIN_FAIL", "value": "unrecognized arguments: --typo"}]
        assert local.apply(resource_on(decode={"replicas": 1, "env": broken})).is_felt
        await until(lambda: len(listening.messages) >= 1)
        await until(lambda: len(local.snapshot.members) == 3)
        assert {one.name: one.pid for one in local.snapshot.members} == pids
        assert endpoints_on_disk(tmp_path) == {"prefill-0": False, "decode-0": False}
        await local.wait_ready()
    [message] = listening.messages
    assert "The edit is undone, the old programs go on. decode-1 cannot start" in message
    assert "correct spec.engine.args" in message


async def test_an_impossible_edit_is_rejected_and_the_old_stay(
    run: Run, resource_on: Callable[..., Any]
) -> None:
    async with run() as local:
        await local.wait_ready()
        before = local.snapshot
        with pytest.raises(TimingError):
            local.apply(resource_on(kvTransfer={"kvLeaseDurationSeconds": 6}))
        assert [one.pid for one in local.snapshot.members] == [one.pid for one in before.members]


async def test_an_engine_that_cannot_start_ends_the_run_with_its_last_words(run: Run) -> None:
    with pytest.raises(StartError) as caught:
        async with run({"STANDIN_FAIL": "RuntimeError: NIXL is not available"}) as local:
            await local.wait_ready()
    told = str(caught.value)
    assert "cannot start: it ended with code 3" in told
    assert "    RuntimeError: NIXL is not available" in told
    assert "pip install 'pdcluster[nixl]'" in told
    assert {one.phase for one in local.snapshot.members} == {Phase.EXITED}


async def test_an_engine_that_never_gets_ready_times_out(run: Run) -> None:
    slow = {"replicas": 1, "startupTimeoutSeconds": 10}
    with pytest.raises(StartTimeoutError, match="start-up budget of 10 s"):
        async with run({"STANDIN_DEAF": "1"}, prefill=slow, decode=slow) as local:
            await local.wait_ready()


async def test_a_run_that_serves_has_not_failed(run: Run) -> None:
    async with run() as local:
        failing = asyncio.create_task(local.wait_failed())
        await local.wait_ready()
        assert not failing.done()
        failing.cancel()


async def test_a_stop_in_a_hurry_kills_what_would_drain_for_long(run: Run) -> None:
    async with run({"STANDIN_CHILD": "1"}) as local:
        await local.wait_ready()
        for name in ("prefill-0", "decode-0", "proxy"):
            # A stopped process cannot act on TERM: it would drain for its whole grace.
            tree_of(local, name)[1].suspend()
        draining = asyncio.create_task(local.stop())
        await until(lambda: phase_of(local, "proxy") is Phase.DRAINING)
        assert not draining.done()
        async with asyncio.timeout(WAIT_S):
            await local.stop(at_once=True)
            await draining
    assert {one.phase for one in local.snapshot.members} == {Phase.EXITED}


async def test_a_failing_block_stops_everything_at_once(run: Run) -> None:
    running: list[LocalCluster] = []

    async def fail() -> None:
        async with run() as local:
            running.append(local)
            await local.wait_ready()
            # It could not act on TERM: a drain would take its whole grace.
            tree_of(local, "proxy")[1].suspend()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await fail()
    assert {one.phase for one in running[0].snapshot.members} == {Phase.EXITED}


async def test_logs_are_kept_by_name_and_appended_by_restarts(run: Run, tmp_path: Path) -> None:
    async with run() as local:
        await local.wait_ready()
        tree_of(local, "decode-0")[1].kill()
        await until(lambda: member_of(local, "decode-0").launches == 2)
        await until(lambda: phase_of(local, "decode-0") is Phase.READY)
    log = (tmp_path / "logs" / "decode-0.log").read_text(encoding="utf-8")
    assert log == "starting engine\nstarting engine\n"


async def test_what_cannot_be_written_is_told_once_and_harms_no_engine(
    run: Run, tmp_path: Path, listening: Listening
) -> None:
    async with run() as local:
        await local.wait_ready()
        before = {member.name: member.pid for member in local.snapshot.members}
        in_the_way = tmp_path / "endpoints.new"
        in_the_way.mkdir()
        psutil.Process(member_of(local, "decode-0").pid).children()[0].kill()
        await until(lambda: any("can't be told" in text for text in listening.messages))
        await until(lambda: phase_of(local, "decode-0") is Phase.READY)
        in_the_way.rmdir()
        await until(lambda: endpoints_on_disk(tmp_path) == {"prefill-0": False, "decode-0": False})
        after = {member.name: member.pid for member in local.snapshot.members}
        assert {name for name in before if before[name] != after[name]} == {"decode-0"}
    assert sum("can't be told" in text for text in listening.messages) == 1


async def test_one_that_cannot_be_launched_again_is_tried_until_it_can(
    run: Run, tmp_path: Path, listening: Listening
) -> None:
    async with run() as local:
        await local.wait_ready()
        log = tmp_path / "logs" / "decode-0.log"
        log.rename(tmp_path / "kept.log")
        log.mkdir()
        psutil.Process(member_of(local, "decode-0").pid).children()[0].kill()
        await until(lambda: any("cannot be launched" in text for text in listening.messages))
        assert phase_of(local, "prefill-0") is Phase.READY
        log.rmdir()
        await until(lambda: phase_of(local, "decode-0") is Phase.READY)


async def test_one_that_cannot_be_launched_at_all_says_why(run: Run, tmp_path: Path) -> None:
    (tmp_path / "logs" / "decode-0.log").mkdir(parents=True)
    with pytest.raises(StartError, match="decode-0 cannot be launched"):
        async with run() as local:
            await local.wait_ready()
