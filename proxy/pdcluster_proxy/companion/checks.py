"""Active checks: asks each engine for its health and its figures.

Shell. One task per endpoint, so that a hanging engine delays no other; a task that ends by itself
has failed, and :meth:`Checker.run` tells. Deliberately not here: what an answer means for the
endpoint's standing (``roster.py``).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pdcluster_proxy.companion.exposition import EngineFigures, parse_exposition
from pdcluster_proxy.errors import ConnectError, ProxyError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdcluster_api.proxy_config import EndpointConfig
    from pdcluster_proxy.clients import Answer

__all__ = ["CheckTiming", "CheckWatcher", "Checker", "Reader", "check_timing"]

_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTiming:
    """When to check.

    Attributes:
        interval_s: Between two checks of an endpoint that serves.
        return_interval_s: Between two checks of one that is ejected.
        timeout_s: Bound on each answer.
    """

    interval_s: float
    return_interval_s: float
    timeout_s: float


def check_timing(lease_duration_s: int) -> CheckTiming:
    """Derive the checks' timing: two failed ones must show before the shortest lease has ended.

    A busy engine's HTTP loop may stall for a second or two, so the answer's bound grows with the
    lease, up to 5 s. For the shortest lease, 6 s, two failures take 4 s.
    """
    return CheckTiming(
        interval_s=1.0, return_interval_s=0.25, timeout_s=min(5.0, max(1.0, lease_duration_s / 6))
    )


class Reader(Protocol):
    """GETs over HTTP (``clients.py``)."""

    async def get(self, url: str, *, timeout_s: float) -> Answer:
        """Read one resource; raises errors of this project only."""


class CheckWatcher(Protocol):
    """Hears of checks."""

    def check_passed(self, endpoint: str) -> None:
        """The engine says that it is healthy."""

    def check_failed(self, endpoint: str, reason: str, *, unreached: bool) -> None:
        """It does not, or did not answer; ``unreached`` where nothing listens there."""

    def scraped(self, endpoint: str, figures: EngineFigures) -> None:
        """Its figures were read."""

    def scrape_failed(self, endpoint: str, reason: str) -> None:
        """They were not."""

    def is_serving(self, endpoint: str) -> bool:
        """Whether the endpoint is not ejected."""


class Checker:
    """Checks all endpoints.

    Args:
        reader: Reads the engines' pages.
        watcher: Hears of the answers.
        lease_duration_s: The lease of endpoints that do not state their own, in seconds.
        timing: When to check; None derives it from the shortest lease of those that are checked.
    """

    def __init__(
        self,
        reader: Reader,
        watcher: CheckWatcher,
        *,
        lease_duration_s: int,
        timing: CheckTiming | None = None,
    ) -> None:
        self._reader = reader
        self._watcher = watcher
        self._lease_duration_s = lease_duration_s
        self._given = timing
        # This is all the mutable state.
        self._timing = timing or check_timing(lease_duration_s)
        self._failed = asyncio.Event()
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._due: dict[str, asyncio.Event] = {}

    def follow(self, endpoints: Iterable[EndpointConfig]) -> None:
        """Check exactly these endpoints from now on; new ones at once."""
        checked = tuple(endpoints)
        if self._given is None:
            own = [e.lease_duration_seconds for e in checked if e.lease_duration_seconds]
            self._timing = check_timing(min([self._lease_duration_s, *own]))
        wanted = {endpoint.name: endpoint.url.rstrip("/") for endpoint in checked}
        for name, (url, task) in tuple(self._tasks.items()):
            if wanted.get(name) != url:
                task.cancel()
                del self._tasks[name], self._due[name]
        loop = asyncio.get_running_loop()
        for name, url in wanted.items():
            if name not in self._tasks:
                self._due[name] = due = asyncio.Event()
                task = loop.create_task(self._watch(name, url, due))
                task.add_done_callback(self._ended)
                self._tasks[name] = (url, task)

    def check_soon(self, endpoint: str) -> None:
        """Do not wait for the interval: something happened to this endpoint."""
        due = self._due.get(endpoint)
        if due is not None:
            due.set()

    async def run(self) -> None:
        """Wait for ever, unless a check ends by itself.

        Raises:
            Exception: What ended it.
        """
        await self._failed.wait()
        for _, task in self._tasks.values():
            if task.done():
                task.result()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._failed.set()

    async def close(self) -> None:
        """End all checks."""
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def _watch(self, name: str, url: str, due: asyncio.Event) -> None:
        scraped_at = float("-inf")
        while True:
            due.clear()
            is_healthy = await self._check(name, url)
            if is_healthy and time.monotonic() - scraped_at >= self._timing.interval_s * 0.9:
                scraped_at = time.monotonic()
                await self._scrape(name, url)
            serving = self._watcher.is_serving(name)
            wait_s = self._timing.interval_s if serving else self._timing.return_interval_s
            try:
                async with asyncio.timeout(wait_s):
                    await due.wait()
            except TimeoutError:
                pass

    async def _check(self, name: str, url: str) -> bool:
        try:
            answer = await self._reader.get(f"{url}/health", timeout_s=self._timing.timeout_s)
        except ConnectError as error:
            self._watcher.check_failed(name, str(error), unreached=True)
            return False
        except ProxyError as error:
            self._watcher.check_failed(name, str(error), unreached=False)
            return False
        if answer.status != _OK:
            self._watcher.check_failed(name, f"status {answer.status}", unreached=False)
            return False
        self._watcher.check_passed(name)
        return True

    async def _scrape(self, name: str, url: str) -> None:
        try:
            answer = await self._reader.get(f"{url}/metrics", timeout_s=self._timing.timeout_s)
        except ProxyError as error:
            self._watcher.scrape_failed(name, str(error))
            return
        if answer.status != _OK:
            self._watcher.scrape_failed(name, f"status {answer.status}")
            return
        self._watcher.scraped(name, parse_exposition(answer.body))
