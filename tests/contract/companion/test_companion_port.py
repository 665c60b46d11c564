"""``CompanionPort``: the recorder of the exchange's tests and the real link behave alike."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import pytest

from pdcluster_proxy.core.messages import (
    DrainNotice,
    EndpointState,
    EndpointView,
    LeaseStep,
    LeaseStepKind,
    Outcome,
    OutcomeKind,
    PoolNotice,
    PoolSnapshot,
    Report,
)
from pdcluster_proxy.core.ports import CompanionPort
from pdcluster_proxy.wire.link import CompanionLink
from pdcluster_proxy.wire.link_server import LinkServer, WorkerPeer
from tests.support.exchange_rig import Recorder
from tests.support.scripted_engine import eventually

VIEW = EndpointView(
    name="p-0",
    role="prefill",
    host="10.0.0.1",
    port=8000,
    side_channel_host="10.0.0.1",
    side_channel_port=5600,
    revision="r1",
    state=EndpointState.READY,
    incarnation=1,
    lease_duration_s=30,
)
GRANTED = LeaseStep(LeaseStepKind.GRANTED, "p-0", "r", 0.5, "e", params=b"{}")
HANDED_OFF = LeaseStep(LeaseStepKind.HANDED_OFF, "p-0", "r", 1.0, "e", "d-0", 1)
RELEASED = LeaseStep(LeaseStepKind.ENDED, "p-0", "r", engine_id="e", release=True)


class Side(Protocol):
    """The companion's end of a port under test."""

    port: CompanionPort

    async def push(self, *endpoints: EndpointView) -> None:
        """Send the worker a snapshot, and wait until it is there."""

    async def drain(self) -> None:
        """Tell the worker that the proxy is on its way out."""

    @property
    def legs(self) -> dict[str, tuple[int, int]]:
        """(legs, prompt tokens) that are open, per endpoint; none where none are."""

    @property
    def outcomes(self) -> list[Outcome]:
        """How legs have ended."""

    @property
    def leases(self) -> list[LeaseStep]:
        """Steps of leases."""

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        """A counter, by its labels."""

    def observed(self, name: str) -> tuple[int, float]:
        """Number and sum of a histogram's values."""


class RecorderSide:
    """The recorder is both ends."""

    def __init__(self) -> None:
        self.port = Recorder()

    async def push(self, *endpoints: EndpointView) -> None:
        self.port.push(*endpoints)

    async def drain(self) -> None:
        self.port.is_draining = True

    @property
    def legs(self) -> dict[str, tuple[int, int]]:
        open_legs: dict[str, tuple[int, int]] = {}
        for name, tokens in self.port.began:
            legs, sum_of_tokens = open_legs.get(name, (0, 0))
            open_legs[name] = (legs + 1, sum_of_tokens + tokens)
        return open_legs

    @property
    def outcomes(self) -> list[Outcome]:
        return self.port.outcomes

    @property
    def leases(self) -> list[LeaseStep]:
        return self.port.leases

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        sums: Counter[tuple[str, ...]] = Counter()
        for each, labels, amount in self.port.counts:
            if each == name:
                sums[labels] += amount  # type: ignore[assignment]  # Counter adds floats as well.
        return dict(sums)

    def observed(self, name: str) -> tuple[int, float]:
        values = [value for each, _, value in self.port.counts if each == name]
        return len(values), sum(values)


class LinkSide:
    """A real link over a real socket, and what came of it there."""

    def __init__(self, name: str) -> None:
        self.port = CompanionLink(name, flush_s=0.001, reconnect_s=0.01)
        self._server = LinkServer(name, self)
        self._peers: list[WorkerPeer] = []
        self._reports: list[Report] = []
        self._seq = 0

    async def begin(self) -> None:
        await self._server.start()
        self.port.start()
        await eventually(lambda: bool(self._peers))

    async def end(self) -> None:
        await self.port.close()
        await self._server.close()
        await eventually(lambda: not self._peers)

    def joined(self, worker: WorkerPeer) -> None:
        self._peers.append(worker)

    def reported(self, worker: WorkerPeer, report: Report) -> None:
        assert worker in self._peers
        self._reports.append(report)

    def left(self, worker: WorkerPeer) -> None:
        self._peers.remove(worker)

    async def push(self, *endpoints: EndpointView) -> None:
        self._seq += 1
        self._peers[0].send(PoolNotice(PoolSnapshot(self._seq, endpoints)))
        await eventually(lambda: self.port.snapshot.seq == self._seq)

    async def drain(self) -> None:
        self._peers[0].send(DrainNotice())
        await eventually(lambda: self.port.is_draining)

    @property
    def legs(self) -> dict[str, tuple[int, int]]:
        last = {leg.endpoint: leg for report in self._reports for leg in report.in_flight}
        return {name: (leg.legs, leg.prompt_tokens) for name, leg in last.items() if leg.legs}

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for report in self._reports for outcome in report.outcomes]

    @property
    def leases(self) -> list[LeaseStep]:
        return [event for report in self._reports for event in report.leases]

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        sums: dict[tuple[str, ...], float] = {}
        for report in self._reports:
            for each, labels, amount in report.counters:
                if each == name:
                    sums[labels] = sums.get(labels, 0.0) + amount
        return sums

    def observed(self, name: str) -> tuple[int, float]:
        found = [h for report in self._reports for h in report.histograms if h.name == name]
        return sum(sum(h.counts) for h in found), sum(h.total for h in found)


NUMBERS = iter(range(1_000_000))


@asynccontextmanager
async def recorder() -> AsyncIterator[Side]:
    yield RecorderSide()


@asynccontextmanager
async def link() -> AsyncIterator[Side]:
    side = LinkSide(f"@pdcluster-contract-{os.getpid()}-{next(NUMBERS)}")
    await side.begin()
    try:
        yield side
    finally:
        await side.end()


@pytest.fixture(params=[recorder, link], ids=["recorder", "link"])
async def side(request: pytest.FixtureRequest) -> AsyncIterator[Side]:
    async with request.param() as made:
        yield made


async def told(condition: Callable[[], bool]) -> None:
    """Wait until the companion has heard of it."""
    await eventually(condition)


async def test_before_the_first_snapshot_the_pool_is_empty(side: Side) -> None:
    assert PoolSnapshot(seq=0) == side.port.snapshot
    assert not side.port.is_draining


async def test_each_snapshot_is_in_place_before_anybody_is_called(side: Side) -> None:
    seen: list[tuple[int, int]] = []
    side.port.on_snapshot(lambda pool: seen.append((pool.seq, side.port.snapshot.seq)))
    await side.push(VIEW)
    await side.push()
    assert [(1, 1), (2, 2)] == seen
    assert PoolSnapshot(seq=2) == side.port.snapshot


async def test_every_callback_is_called(side: Side) -> None:
    seen: list[str] = []
    for name in ("first", "second"):
        side.port.on_snapshot(lambda _, name=name: seen.append(name))  # type: ignore[misc]
    await side.push(VIEW)
    assert ["first", "second"] == seen
    assert (VIEW,) == side.port.snapshot.endpoints


async def test_a_drain_is_told(side: Side) -> None:
    await side.drain()
    assert side.port.is_draining


async def test_open_legs_are_known_per_endpoint_until_they_end(side: Side) -> None:
    port = side.port
    port.leg_began("p-0", 100)
    port.leg_began("p-0", 50)
    port.leg_began("d-0", 0)
    await told(lambda: side.legs == {"p-0": (2, 150), "d-0": (1, 0)})
    port.leg_ended("p-0", 100, Outcome("p-0", OutcomeKind.SUCCEEDED))
    port.leg_ended("d-0", 0, None)
    await told(lambda: side.legs == {"p-0": (1, 50)})
    port.leg_ended("p-0", 50, None)
    await told(lambda: side.legs == {})


async def test_only_an_outcome_that_is_given_is_told(side: Side) -> None:
    succeeded = Outcome("p-0", OutcomeKind.SUCCEEDED)
    failed = Outcome("d-0", OutcomeKind.FAILED_UPSTREAM, "decode-lost")
    for endpoint, outcome in (("p-0", succeeded), ("d-0", failed), ("d-0", None)):
        side.port.leg_began(endpoint, 0)
        side.port.leg_ended(endpoint, 0, outcome)
    await told(lambda: side.outcomes == [succeeded, failed])
    await told(lambda: side.legs == {})


async def test_steps_of_a_lease_that_is_not_read_are_told_in_order(side: Side) -> None:
    for event in (GRANTED, HANDED_OFF, RELEASED):
        side.port.lease(event)
    await told(lambda: side.leases == [GRANTED, HANDED_OFF, RELEASED])


async def test_counters_add_up_per_label_set(side: Side) -> None:
    side.port.count("requests_total", ("chat", "200", ""))
    side.port.count("requests_total", ("chat", "200", ""), 2)
    side.port.count("requests_total", ("chat", "429", "rejected-queue-full"))
    expected = {("chat", "200", ""): 3.0, ("chat", "429", "rejected-queue-full"): 1.0}
    await told(lambda: side.counted("requests_total") == expected)


async def test_values_of_a_histogram_are_counted_and_summed(side: Side) -> None:
    for value in (0.25, 0.5, 400.0):
        side.port.observe("request_seconds", ("chat",), value)
    await told(lambda: side.observed("request_seconds") == (3, 400.75))
