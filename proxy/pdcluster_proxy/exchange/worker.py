"""What the exchanges of one worker share.

Shell. Holds the pool view, the open legs, the retry budget and the loop's tick; exchanges read them
and report through it. Decisions are ``core/``'s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from pdcluster_api.proxy_config import KeeperMode, LocalPrefillFallback, ProxyConfig
from pdcluster_lease.timing import LeaseTiming
from pdcluster_proxy.core.admission import AdmissionLimits, share
from pdcluster_proxy.core.messages import EndpointView, PoolSnapshot
from pdcluster_proxy.core.picker import Pool, make_pool
from pdcluster_proxy.core.ports import CompanionPort, Engines
from pdcluster_proxy.core.retry import RetryBudget, credit, take_retry
from pdcluster_proxy.exchange.gate import Gate
from pdcluster_proxy.exchange.journal import Journal
from pdcluster_proxy.exchange.legs import OpenLegs

__all__ = ["Bounds", "Worker"]

TICK_S = 0.1
"""How often the loop proves that it runs; the lease clock starts at the last proof."""


MAX_MET = 10_000
"""More pairs than any pool has in use; to forget one costs a pair its longer hand-off deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Times and sizes of every exchange, in seconds and bytes."""

    connect_s: float
    request_s: float
    first_byte_s: float
    idle_s: float
    max_hold_s: float
    hand_off_override_s: int | None
    max_body_bytes: int
    max_answer_bytes: int = 64 * 1024 * 1024
    max_event_bytes: int = 1024 * 1024
    flush_s: float = 5.0
    """How long a client may take to read the end of its stream; then its connection is cut."""


class Overdue(Protocol):
    """An exchange that can be told that its time is over."""

    def on_deadline(self) -> None:
        """End it; may be called again until it has ended."""


class Worker:
    """One worker's shared state.

    Attributes:
        num_uncredited: Admitted exchanges that the retry budget has not been credited with yet.
        running: Exchanges by the monotonic instant at which their time is over.

    Args:
        config: The proxy's configuration.
        workers: Number of worker processes, for this one's share of the bounds.
        engines: The pooled engine client.
        companion: The link to the companion.
        journal: Where ended exchanges are written.
        rng: Breaks ties.
        nonce: Distinguishes this worker's ids from all others'.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        config: ProxyConfig,
        *,
        workers: int,
        engines: Engines,
        companion: CompanionPort,
        journal: Journal,
        rng: Random,
        nonce: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.engines = engines
        self.companion = companion
        self.journal = journal
        self.rng = rng
        self.clock = clock
        self.keeper = config.keeper is KeeperMode.ENABLED
        self.may_prefill_locally = (
            config.local_prefill_fallback is LocalPrefillFallback.WHEN_NO_PREFILL
        )
        self.bounds = _bounds(config)
        limits = AdmissionLimits(
            max_in_flight=config.admission.max_in_flight,
            max_queue=config.admission.max_queue,
            queue_timeout_s=config.admission.queue_timeout_seconds,
        )
        # This is all the mutable state.
        self.gate = Gate(share(limits, workers=workers))
        self.legs = OpenLegs(companion)
        self.pool: Pool = make_pool(companion.snapshot)
        self.last_tick_at = clock()
        self.num_uncredited = 0
        self.running: dict[Overdue, float] = {}
        self._budget = RetryBudget(at=clock())
        self._met: set[tuple[str, str, int]] = set()
        self._timings: dict[int, LeaseTiming] = {}
        self._num_ids = 0
        self._num_dropped = 0
        self._nonce = nonce
        self._pool_changed = asyncio.Event()
        companion.on_snapshot(self._adopt)

    async def tick(self) -> None:
        """Run for the life of the worker: note that the loop runs, look for what is overdue.

        One look over all exchanges, ten times a second, is cheaper than a timer for each.
        """
        while True:
            self.last_tick_at = now = self.clock()
            for exchange in [x for x, at in self.running.items() if now >= at]:
                exchange.on_deadline()
            self._report_dropped()
            await asyncio.sleep(TICK_S)

    async def write_journal(self) -> None:
        """Run for the life of the worker: write the exchange log, off the loop.

        Where its reader stalls, lines are dropped; the loop and the lease clock go on.
        """
        while True:
            await asyncio.sleep(TICK_S)
            await self.journal.write_out()

    def _report_dropped(self) -> None:
        dropped = self.journal.num_dropped - self._num_dropped
        if dropped:
            self._num_dropped += dropped
            self.companion.count("exchange_log_lines_dropped_total", (), dropped)

    def new_id(self) -> str:
        """Make an id that no other worker of ours makes."""
        self._num_ids += 1
        return f"{self._nonce}{self._num_ids:x}"

    def may_retry(self) -> bool:
        """Tell whether the budget has a retry left; :meth:`spend_retry` takes it."""
        num_requests, self.num_uncredited = self.num_uncredited, 0
        self._budget = credit(self._budget, num_requests=num_requests, now=self.clock())
        return take_retry(self._budget)[1]

    def spend_retry(self) -> None:
        """Take one retry: another leg goes out for an exchange that failed on one."""
        self._budget, _ = take_retry(self._budget)

    def hand_off_s(
        self, prefill: EndpointView, decode: EndpointView, engine_id: str
    ) -> float | None:
        """Bound, from the lease clock's start, on the start of a decode leg on this pair.

        Uses the lease of the P that granted. None where the keeper renews.

        Raises:
            TimingError: The lease is too short; the configuration should have been rejected.
        """
        return self._timing(prefill).hand_off_deadline_s(
            met=self._has_met(engine_id, decode),
            keeper=self.keeper,
            override_s=self.bounds.hand_off_override_s,
        )

    def longest_hand_off_s(self, prefill: EndpointView) -> float | None:
        """Bound on a hand-off with whichever D: what a pair that has met may use."""
        return self._timing(prefill).hand_off_deadline_s(
            met=True, keeper=self.keeper, override_s=self.bounds.hand_off_override_s
        )

    def _timing(self, prefill: EndpointView) -> LeaseTiming:
        seconds = prefill.lease_duration_s
        timing = self._timings.get(seconds)
        if timing is None:
            timing = self._timings[seconds] = LeaseTiming.from_duration(seconds)
        return timing

    def note_met(self, engine_id: str, decode: EndpointView) -> None:
        """Remember that this pair has exchanged KV: its next first heartbeat is not lost."""
        self._met.add((engine_id, decode.name, decode.incarnation))

    async def pool_change(self, timeout_s: float) -> None:
        """Wait for the next snapshot, at most ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._pool_changed.wait()
        except TimeoutError:
            return

    def _has_met(self, engine_id: str, decode: EndpointView) -> bool:
        pair = (engine_id, decode.name, decode.incarnation)
        return pair in self._met or pair in self.pool.warm_pairs

    def _adopt(self, snapshot: PoolSnapshot) -> None:
        self.pool = make_pool(snapshot)
        alive = {(e.name, e.incarnation) for e in snapshot.endpoints}
        # Forget boots that are over, or the set would grow for ever.
        self._met = {pair for pair in self._met if pair[1:] in alive}
        if len(self._met) > MAX_MET:  # Boots of P that are over can't be told from new ones.
            self._met.clear()
        self._pool_changed.set()
        self._pool_changed = asyncio.Event()


def _bounds(config: ProxyConfig) -> Bounds:
    return Bounds(
        connect_s=config.timeouts.connect_seconds,
        request_s=config.timeouts.request_seconds,
        first_byte_s=config.timeouts.first_byte_seconds,
        idle_s=config.timeouts.idle_seconds,
        max_hold_s=config.lease.max_hold_seconds,
        hand_off_override_s=config.lease.hand_off_deadline_seconds,
        max_body_bytes=config.max_body_bytes,
    )
