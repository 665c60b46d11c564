"""The link between worker and companion over a real socket."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.scripted_engine import eventually

from pdcluster_proxy.core.messages import (
    DrainNotice,
    InFlight,
    LeaseStep,
    LeaseStepKind,
    Outcome,
    OutcomeKind,
    PoolNotice,
    PoolSnapshot,
    Report,
)
from pdcluster_proxy.core.reporting import MAX_PENDING
from pdcluster_proxy.wire.frames import frame
from pdcluster_proxy.wire.link import CompanionLink
from pdcluster_proxy.wire.link_server import LinkServer, WorkerPeer

NUMBERS = iter(range(1_000_000))


class Watcher:
    """A companion that keeps what it hears."""

    def __init__(self) -> None:
        self.peers: list[WorkerPeer] = []
        self.reports: list[Report] = []
        self.num_left = 0

    def joined(self, worker: WorkerPeer) -> None:
        self.peers.append(worker)
        worker.send(PoolNotice(PoolSnapshot(seq=len(self.peers))))

    def reported(self, worker: WorkerPeer, report: Report) -> None:
        assert worker in self.peers
        self.reports.append(report)

    def left(self, worker: WorkerPeer) -> None:
        self.peers.remove(worker)
        self.num_left += 1


@asynccontextmanager
async def listening(name: str, watcher: Watcher) -> AsyncIterator[None]:
    server = LinkServer(name, watcher)
    await server.start()
    try:
        yield
    finally:
        await server.close()
        for peer in tuple(watcher.peers):
            peer.close()
        await eventually(lambda: not watcher.peers)


@pytest.fixture
def name() -> str:
    return f"@pdcluster-test-{os.getpid()}-{next(NUMBERS)}"


@pytest.fixture
async def link(name: str) -> AsyncIterator[CompanionLink]:
    link = CompanionLink(name, reconnect_s=0.01)
    yield link
    await link.close()


async def test_a_worker_gets_the_pool_as_soon_as_it_connects(
    name: str, link: CompanionLink
) -> None:
    seen: list[int] = []
    link.on_snapshot(lambda pool: seen.append(pool.seq))
    assert link.snapshot == PoolSnapshot(seq=0)
    async with listening(name, Watcher()):
        link.start()
        assert await link.first_snapshot(timeout_s=5)
        assert link.snapshot.seq == 1
        assert seen == [1]


async def test_without_a_companion_the_first_snapshot_does_not_come(link: CompanionLink) -> None:
    link.start()
    assert not await link.first_snapshot(timeout_s=0.05)


async def test_a_fault_in_the_links_own_loop_costs_one_connection_and_not_the_link(
    name: str, link: CompanionLink, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [RuntimeError("a bug")]

    def sample() -> tuple[int, int]:
        if faults:
            raise faults.pop()
        return 0, 0

    link.sample_with(sample)
    watcher = Watcher()
    async with listening(name, watcher):
        link.start()
        await eventually(lambda: not faults and bool(watcher.reports))
        assert link.snapshot.seq >= 1
        assert "background.failed" in [record.message for record in caplog.records]


async def test_a_drain_is_told(name: str, link: CompanionLink) -> None:
    watcher = Watcher()
    async with listening(name, watcher):
        link.start()
        await eventually(lambda: bool(watcher.peers))
        assert not link.is_draining
        watcher.peers[0].send(DrainNotice())
        await eventually(lambda: link.is_draining)


async def test_what_is_told_at_once_goes_out_in_one_report(name: str, link: CompanionLink) -> None:
    watcher = Watcher()
    lease = LeaseStep(
        kind=LeaseStepKind.GRANTED, endpoint="p-0", request_id="r", params=b'{"a": 1}'
    )
    async with listening(name, watcher):
        link.start()
        await link.first_snapshot(timeout_s=5)
        await eventually(lambda: len(watcher.reports) == 1)  # The one that opens a connection.
        link.sample_with(lambda: (3, 1))
        link.leg_began("p-0", 100)
        link.leg_began("p-0", 50)
        link.leg_ended("p-0", 100, Outcome("p-0", OutcomeKind.SUCCEEDED))
        link.leg_began("d-0", 0)
        link.leg_ended("d-0", 0, None)
        link.lease(lease)
        link.count("requests_total", ("chat", "200", ""))
        link.count("requests_total", ("chat", "200", ""), 2)
        link.observe("request_seconds", ("chat",), 0.5)
        await eventually(lambda: len(watcher.reports) == 2)
    report = watcher.reports[1]
    assert set(report.in_flight) == {InFlight("p-0", 1, 50), InFlight("d-0", 0, 0)}
    assert report.outcomes == (Outcome("p-0", OutcomeKind.SUCCEEDED),)
    assert report.leases == (lease,)
    assert set(report.counters) == {
        ("requests_total", ("chat", "200", ""), 3.0),
        ("leases_total", ("p-0", "granted"), 1.0),
        ("leg_outcomes_total", ("p-0", "succeeded"), 1.0),
    }
    assert [(h.name, sum(h.counts), h.total) for h in report.histograms] == [
        ("request_seconds", 1, 0.5)
    ]
    assert (report.running, report.queued) == (3, 1)


async def test_a_changed_occupancy_is_told_without_any_other_news(
    name: str, link: CompanionLink
) -> None:
    watcher = Watcher()
    async with listening(name, watcher):
        link.start()
        await eventually(lambda: len(watcher.reports) == 1)
        link.sample_with(lambda: (0, 7))
        await eventually(lambda: any(r.queued == 7 for r in watcher.reports))


async def test_a_worker_outlives_its_companion_and_tells_the_next_all_open_legs(
    name: str, link: CompanionLink
) -> None:
    first, second = Watcher(), Watcher()
    async with listening(name, first):
        link.start()
        await link.first_snapshot(timeout_s=5)
        link.leg_began("p-0", 10)
        await eventually(lambda: any(r.in_flight for r in first.reports))
    assert link.snapshot.seq == 1
    link.leg_began("d-0", 0)
    link.count("re_prefills_total", ())
    async with listening(name, second):
        await eventually(lambda: bool(second.reports))
        report = second.reports[0]
        assert set(report.in_flight) == {InFlight("p-0", 1, 10), InFlight("d-0", 1, 0)}
        assert report.counters == (("re_prefills_total", (), 1.0),)


async def test_what_waits_for_a_companion_is_bounded(name: str) -> None:
    link = CompanionLink(name, flush_s=0.0, reconnect_s=0.01)
    for number in range(MAX_PENDING + 5):
        link.lease(LeaseStep(kind=LeaseStepKind.GRANTED, endpoint="p-0", request_id=str(number)))
    await asyncio.sleep(0.01)
    watcher = Watcher()
    async with listening(name, watcher):
        link.start()
        await eventually(lambda: bool(watcher.reports))
        report = watcher.reports[0]
        assert len(report.leases) == MAX_PENDING
        assert report.leases[-1].request_id == str(MAX_PENDING + 4)
        assert ("reports_dropped_total", (), 5.0) in report.counters
        await link.close()


async def test_closing_sends_what_is_left(name: str) -> None:
    watcher = Watcher()
    async with listening(name, watcher):
        link = CompanionLink(name, flush_s=60.0)
        link.start()
        await link.first_snapshot(timeout_s=5)
        link.count("re_prefills_total", ())
        await link.close()
        await eventually(lambda: watcher.num_left == 1)
        assert ("re_prefills_total", (), 1.0) in [c for r in watcher.reports for c in r.counters]


async def test_a_report_that_is_garbage_ends_that_link_only(name: str) -> None:
    watcher = Watcher()
    async with listening(name, watcher):
        reader, writer = await asyncio.open_unix_connection(sock=_connected(name))
        writer.write(frame(b"\xc1 no msgpack"))
        async with asyncio.timeout(5):
            while await reader.read(4096):
                pass
        writer.close()
        await eventually(lambda: watcher.num_left == 1)
        assert watcher.reports == []


def _connected(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(name.replace("@", "\0", 1))
    return connection


async def test_a_failed_leg_is_told_at_once(name: str) -> None:
    watcher = Watcher()
    async with listening(name, watcher):
        link = CompanionLink(name, flush_s=60.0)
        link.start()
        await eventually(lambda: len(watcher.reports) == 1)
        link.leg_began("p-0", 0)
        failed = Outcome("p-0", OutcomeKind.FAILED_LOCALLY, "connect")
        link.leg_ended("p-0", 0, failed)
        await eventually(lambda: len(watcher.reports) == 2)
        assert watcher.reports[1].outcomes == (failed,)
        await link.close()
