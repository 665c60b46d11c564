"""Passes: one at a time per key, coalesced, again after failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pdcluster_operator.errors import ClusterApiError
from pdcluster_operator.work_queue import NUM_HASTY, WorkQueue

Pass = Callable[[str], Awaitable[float | None]]


@asynccontextmanager
async def running(run_pass: Pass, *, num_workers: int = 4) -> AsyncIterator[WorkQueue[str]]:
    loop = asyncio.get_running_loop()
    queue: WorkQueue[str] = WorkQueue(run_pass, clock=loop.time, num_workers=num_workers)
    task = loop.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - the queue tells nobody that it is idle
            await asyncio.sleep(0.002)


async def test_a_key_that_is_added_is_looked_at() -> None:
    seen: list[str] = []

    async def run_pass(key: str) -> None:
        seen.append(key)

    async with running(run_pass) as queue:
        queue.add("a")
        queue.add("b")
        await until(lambda: sorted(seen) == ["a", "b"])
        await until(lambda: len(queue) == 0)


async def test_one_key_has_one_pass_at_a_time_and_what_comes_meanwhile_is_one_more() -> None:
    began, go = asyncio.Event(), asyncio.Event()
    at_once = num_passes = most = 0

    async def run_pass(_key: str) -> None:
        nonlocal at_once, num_passes, most
        num_passes += 1
        at_once += 1
        most = max(most, at_once)
        began.set()
        await go.wait()
        at_once -= 1

    async with running(run_pass) as queue:
        queue.add("a")
        await began.wait()
        for _ in range(20):
            queue.add("a")
        go.set()
        await until(lambda: len(queue) == 0)
    assert (num_passes, most) == (2, 1)


async def test_a_slow_key_holds_no_other_up() -> None:
    stuck, seen = asyncio.Event(), asyncio.Event()

    async def run_pass(key: str) -> None:
        if key == "slow":
            await stuck.wait()
        else:
            seen.set()

    async with running(run_pass, num_workers=2) as queue:
        queue.add("slow")
        queue.add("slow")
        queue.add("quick")
        async with asyncio.timeout(10):
            await seen.wait()
        stuck.set()


async def test_a_failed_pass_is_tried_again_and_the_others_go_on() -> None:
    tries: dict[str, int] = {}

    async def run_pass(key: str) -> None:
        tries[key] = tries.get(key, 0) + 1
        if key == "bad" and tries[key] < 3:
            message = "away"
            raise ClusterApiError(message)
        if key == "crash" and tries[key] == 1:
            message = "a bug"
            raise ValueError(message)

    async with running(run_pass) as queue:
        for key in ("bad", "crash", "good"):
            queue.add(key)
        await until(lambda: tries == {"bad": 3, "crash": 2, "good": 1})


async def test_the_servers_patience_is_kept() -> None:
    loop = asyncio.get_running_loop()
    at: list[float] = []

    async def run_pass(_key: str) -> None:
        at.append(loop.time())
        if len(at) == 1:
            message = "slow down"
            raise ClusterApiError(message, retry_after_s=0.5)

    async with running(run_pass) as queue:
        queue.add("a")
        await until(lambda: len(at) == 1)
        queue.add("a")  # News do not shorten it.
        await until(lambda: len(at) == 2)
        queue.add("a")
        await until(lambda: len(at) == 3)
    assert at[1] - at[0] >= 0.5
    assert at[2] - at[1] < 0.4


async def test_a_pass_may_ask_for_another_and_news_come_before_it() -> None:
    loop = asyncio.get_running_loop()
    at: list[float] = []

    async def run_pass(_key: str) -> float | None:
        at.append(loop.time())
        return 60.0 if len(at) == 1 else None

    async with running(run_pass) as queue:
        queue.add("a")
        await until(lambda: len(at) == 1)
        assert len(queue) == 1
        queue.add("a")
        await until(lambda: len(at) == 2)
    assert at[1] - at[0] < 30.0


async def test_a_later_wish_does_not_put_off_an_earlier_one() -> None:
    seen: list[str] = []

    async def run_pass(key: str) -> None:
        seen.append(key)

    async with running(run_pass) as queue:
        queue.add("a", in_s=0.02)
        queue.add("a", in_s=60.0)
        await until(lambda: seen == ["a"])


async def test_one_that_hangs_and_is_asked_for_again_holds_no_timed_pass_up() -> None:
    stuck, seen = asyncio.Event(), asyncio.Event()
    began = asyncio.Event()

    async def run_pass(key: str) -> None:
        if key == "hangs":
            began.set()
            await stuck.wait()
        else:
            seen.set()

    async with running(run_pass, num_workers=2) as queue:
        queue.add("hangs")
        await began.wait()
        queue.add("hangs")
        queue.add("timed", in_s=0.05)
        async with asyncio.timeout(10):
            await seen.wait()
        stuck.set()


async def test_a_cancellation_is_never_lost_whatever_comes_with_it() -> None:
    async def run_pass(_key: str) -> float | None:
        await asyncio.sleep(0)
        return 0.001

    loop = asyncio.get_running_loop()
    for turns in range(60):
        queue: WorkQueue[str] = WorkQueue(run_pass, clock=loop.time, num_workers=3)
        task = loop.create_task(queue.run())
        for number in range(turns // 6):
            queue.add(f"{number}", in_s=0.0005 * number)
            await asyncio.sleep(0.0005 if number % 2 else 0)
        queue.add("a")
        for _ in range(turns % 6):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait((task,), timeout=5)
        assert done, f"still running after {turns} turns"


async def test_passes_that_never_come_to_rest_are_slowed_down_and_the_others_are_not() -> None:
    passes: dict[str, int] = {"restless": 0, "calm": 0}

    async def run_pass(key: str) -> float | None:
        passes[key] += 1
        if key == "restless":
            queue.add("restless")  # Its own write comes back as news.
            return 0.0
        return None

    async with running(run_pass) as queue:
        queue.add("restless")
        await asyncio.sleep(0.5)
        assert NUM_HASTY <= passes["restless"] <= NUM_HASTY + 4
        queue.add("calm")
        await until(lambda: passes["calm"] == 1)


async def test_passes_that_came_to_rest_are_quick_again() -> None:
    answers = [0.0] * NUM_HASTY + [None] + [0.0] * NUM_HASTY + [None]
    seen: list[float | None] = []

    async def run_pass(_key: str) -> float | None:
        seen.append(answers[len(seen)])
        return seen[-1]

    async with running(run_pass) as queue:
        queue.add("a")
        await until(lambda: len(seen) == NUM_HASTY + 1)
        queue.add("a")
        async with asyncio.timeout(0.15):
            await until(lambda: len(seen) == len(answers))
