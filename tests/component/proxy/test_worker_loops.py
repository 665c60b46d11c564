"""What a worker runs for its whole life: nothing that happens to the exchange log ends it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import threading
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from tests.support.exchange_rig import Recorder, WatchedEngines, config
from tests.support.scripted_engine import eventually

from pdcluster_proxy.exchange.journal import (
    MAX_BUFFERED_BYTES,
    ExchangeRecord,
    Journal,
)
from pdcluster_proxy.exchange.worker import Worker

RECORD = ExchangeRecord(event="exchange.complete", request_id="r" * 1000)
DROPPED = "exchange_log_lines_dropped_total"


class FullDisk(io.BytesIO):
    """A log that can't be written until there is room again."""

    has_room = False

    def write(self, data: Any) -> int:  # Any: what BytesIO itself takes.
        if not self.has_room:
            raise OSError(28, "No space left on device")
        return super().write(data)


class StalledReader(io.BytesIO):
    """A log whose reader has stopped: writes block until it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writing = threading.Event()
        self.goes_on = threading.Event()

    def write(self, data: Any) -> int:  # Any: what BytesIO itself takes.
        self.is_writing.set()
        assert self.goes_on.wait(timeout=30.0)
        return super().write(data)


@contextlib.asynccontextmanager
async def working(log: io.BytesIO) -> AsyncIterator[tuple[Worker, Recorder]]:
    """Run a worker's loops until the block ends; they must not have ended by themselves."""
    companion, engines = Recorder(), WatchedEngines()
    worker = Worker(
        config(),
        workers=1,
        engines=engines,
        companion=companion,
        journal=Journal(log),
        rng=Random(7),
        nonce="n",
    )
    loops = [asyncio.create_task(run()) for run in (worker.tick, worker.write_journal)]
    try:
        yield worker, companion
        assert [False, False] == [loop.done() for loop in loops]
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await engines.client.close()


async def ticks(worker: Worker) -> None:
    """Wait until the worker has ticked again, twice: once may have been under way already."""
    for _ in range(2):
        before = worker.last_tick_at
        await eventually(lambda before=before: worker.last_tick_at > before)  # type: ignore[misc]


def dropped(companion: Recorder) -> float:
    return sum(amount for name, _, amount in companion.counts if name == DROPPED)


async def test_a_log_that_cannot_be_written_costs_lines_and_nothing_else() -> None:
    log = FullDisk()
    async with working(log) as (worker, companion):
        worker.journal.write(RECORD)
        worker.journal.write(RECORD)
        await eventually(lambda: dropped(companion) == 2)
        await ticks(worker)
        log.has_room = True
        worker.journal.write(RECORD)
        await eventually(lambda: log.getvalue().count(b"\n") == 1)
        await ticks(worker)
        assert 2 == dropped(companion)


async def test_a_log_whose_reader_stalls_blocks_nobody_and_is_bounded() -> None:
    log = StalledReader()
    try:
        async with working(log) as (worker, companion):
            worker.journal.write(RECORD)
            await eventually(log.is_writing.is_set)
            await ticks(worker)
            fits = MAX_BUFFERED_BYTES // 1000
            for _ in range(fits + 500):
                worker.journal.write(RECORD)
            # Told while the reader still stalls: nobody would hear of it otherwise.
            await eventually(lambda: dropped(companion) > 0)
            assert dropped(companion) < 600
            await ticks(worker)
            log.goes_on.set()
            lost = int(dropped(companion))
            await eventually(lambda: log.getvalue().count(b"\n") == 1 + fits + 500 - lost)
    finally:
        log.goes_on.set()


async def test_lines_that_come_while_others_are_written_are_kept_in_order() -> None:
    log = StalledReader()
    try:
        async with working(log) as (worker, _):
            worker.journal.write(ExchangeRecord(request_id="1"))
            await eventually(log.is_writing.is_set)
            for number in range(2, 50):
                worker.journal.write(ExchangeRecord(request_id=str(number)))
            log.goes_on.set()
            await eventually(lambda: log.getvalue().count(b"\n") == 49)
            lines = [json.loads(line) for line in log.getvalue().splitlines()]
            assert [str(number) for number in range(1, 50)] == [x["request_id"] for x in lines]
            assert 0 == worker.journal.num_dropped
    finally:
        log.goes_on.set()


def test_a_line_says_when_it_was_written_as_other_lines_do() -> None:
    out = io.BytesIO()
    now = iter([1_000_000_000.25, 1_000_000_000.5, 1_000_000_001.0])
    journal = Journal(out, now=lambda: next(now))
    for _ in range(3):
        journal.write(ExchangeRecord(event="exchange.complete"))
    journal.flush()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert list(lines[0]) == ["time", "level", "event"]
    times = [line["time"] for line in lines]
    assert [time.rpartition(",")[2] for time in times] == ["250", "500", "000"]
    assert times[0][:19] == times[1][:19] != times[2][:19]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", times[0])


@pytest.mark.parametrize("out", [None, io.BytesIO()])
async def test_a_log_that_holds_nothing_writes_nothing(out: io.BytesIO | None) -> None:
    journal = Journal(out)
    await journal.write_out()
    journal.flush()
    assert out is None or b"" == out.getvalue()
