"""Tasks that run for the life of a process: none of them ends unseen."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.scripted_engine import eventually

from pdcluster_proxy.background import first_end, kept_up
from pdcluster_proxy.errors import BackgroundEndedError


async def test_a_loop_that_is_kept_up_runs_again_after_it_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs: list[int] = []

    async def run() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise RuntimeError("a bug")
        await asyncio.Event().wait()

    kept = asyncio.create_task(kept_up(run))
    await eventually(lambda: len(runs) == 3)
    kept.cancel()
    await asyncio.gather(kept, return_exceptions=True)
    assert [record.message for record in caplog.records] == ["background.failed"] * 2


async def test_the_first_loop_to_fail_ends_all_and_is_named_as_the_cause() -> None:
    ended: list[str] = []

    async def lasting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("lasting")

    async def failing() -> None:
        await asyncio.sleep(0)
        raise RuntimeError("a bug")

    with pytest.raises(BackgroundEndedError) as caught:
        await first_end([lasting, failing])
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert ended == ["lasting"]


async def test_a_loop_that_returns_has_failed_too() -> None:
    async def returning() -> None:
        return

    with pytest.raises(BackgroundEndedError) as caught:
        await first_end([returning])
    assert caught.value.__cause__ is None


async def test_cancelling_ends_the_loops_and_is_no_failure() -> None:
    ended: list[str] = []

    async def lasting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("lasting")

    running = asyncio.create_task(first_end([lasting, lasting]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["lasting", "lasting"]
