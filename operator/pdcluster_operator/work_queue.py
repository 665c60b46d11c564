"""Which cluster is looked at when: one pass at a time per cluster, coalesced, with back-off.

Shell around asyncio. Knows nothing of what a pass does.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from pdcluster_operator.errors import ClusterApiError, OperatorError

__all__ = ["BACKOFF_MAX_S", "NUM_HASTY", "WorkQueue", "backoff_s"]

_LOG = logging.getLogger(__name__)

BACKOFF_FIRST_S: Final = 0.2
BACKOFF_MAX_S: Final = 60.0

NUM_HASTY: Final = 10
"""Passes in a row that may each ask for the next at once; what never comes to rest is slowed down:
somebody may undo each of our writes."""

K = TypeVar("K")


def backoff_s(failures: int) -> float:
    """Seconds to wait after so many failures in a row, from 1."""
    return min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 20))


class WorkQueue(Generic[K]):
    """Runs passes.

    Args:
        run_pass: One pass; says in how many seconds to look again, None for never.
        clock: Monotonic seconds.
        num_workers: Passes at a time.
        failed: Hears of each pass that failed.
    """

    def __init__(
        self,
        run_pass: Callable[[K], Awaitable[float | None]],
        *,
        clock: Callable[[], float],
        num_workers: int = 8,
        failed: Callable[[K, Exception], None] = lambda _key, _error: None,
    ) -> None:
        self._run_pass = run_pass
        self._clock = clock
        self._num_workers = num_workers
        self._failed = failed
        # This is all the mutable state.
        self._due: dict[K, float] = {}
        self._running: set[K] = set()
        self._failures: dict[K, int] = {}
        self._not_before: dict[K, float] = {}
        self._hasty: dict[K, int] = {}
        self._news: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """Clusters that wait or are being looked at."""
        return len(self._due.keys() | self._running)

    def add(self, key: K, *, in_s: float = 0.0) -> None:
        """Have a cluster looked at; an earlier time that was asked for stays."""
        at = self._clock() + in_s
        self._due[key] = min(at, self._due.get(key, at))
        self._tell()

    async def run(self) -> None:
        """Work for ever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._num_workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._next()
            again = await self._pass(key)
            self._running.discard(key)
            if again is not None:
                self.add(key, in_s=again)
            self._slow_down(key, again)
            self._tell()

    async def _next(self) -> K:
        while True:
            # One that is being looked at waits for that pass to end, and holds nobody up.
            waiting = [
                # Where the server asked for patience, news do not shorten it.
                (key, max(at, self._not_before.get(key, at)))
                for key, at in self._due.items()
                if key not in self._running
            ]
            key, at = min(waiting, key=lambda pair: pair[1], default=(None, math.inf))
            wait_s = at - self._clock()
            if key is not None and wait_s <= 0:
                del self._due[key]
                self._not_before.pop(key, None)
                self._running.add(key)
                return key
            if self._news is None:
                self._news = asyncio.get_running_loop().create_future()
            # Not asyncio.wait_for: in Python 3.11 it can swallow the cancellation that ends us.
            await asyncio.wait((self._news,), timeout=None if key is None else wait_s)

    def _slow_down(self, key: K, again: float | None) -> None:
        """Let a cluster wait whose passes always find something to do, whatever news come."""
        if again is None or again > 0:
            self._hasty.pop(key, None)
            return
        self._hasty[key] = num = self._hasty.get(key, 0) + 1
        if num > NUM_HASTY:
            self._not_before[key] = self._clock() + backoff_s(num - NUM_HASTY)

    def _tell(self) -> None:
        """Wake the workers that wait: something is due, or may be looked at again."""
        if self._news is not None:
            self._news.set_result(None)
            self._news = None

    async def _pass(self, key: K) -> float | None:
        try:
            again = await self._run_pass(key)
        except Exception as error:  # noqa: BLE001 - the outermost loop of all passes
            # The outermost loop: one cluster's fault must not stop the others.
            self._failures[key] = self._failures.get(key, 0) + 1
            if not isinstance(error, OperatorError):
                _LOG.exception("pass.crashed", extra={"key": str(key)})
            self._failed(key, error)
            wait_s = backoff_s(self._failures[key])
            if isinstance(error, ClusterApiError) and error.retry_after_s is not None:
                wait_s = max(wait_s, error.retry_after_s)
                self._not_before[key] = self._clock() + error.retry_after_s
            return wait_s
        self._failures.pop(key, None)
        return again
