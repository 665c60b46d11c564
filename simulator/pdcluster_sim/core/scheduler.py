"""Who runs in the next step: continuous batching over a bounded number of blocks.

Pure. First come, first served, in the order of vLLM: running sequences first, then waiting ones
while there is room in the batch, in the token budget and in the block pool. A sequence that reads a
peer's blocks waits beside the queue and does not count as running; once they have arrived it goes
before those that still need blocks. Where a running sequence needs a
block and none is free, the last one that started gives its blocks up and waits again.

Source:
    vLLM 0.32.0, ``v1/core/sched/scheduler.py``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pdcluster_sim.core.results import InvalidParams, Notice, Preempted, PrefixLookup
from pdcluster_sim.core.sequences import BlockMemory, Sequence, SequenceState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdcluster_lease.params import RequestId
    from pdcluster_sim.core.blocks import BlockPool

__all__ = ["Planned", "RemoteSource", "Scheduler", "SchedulerLimits", "Work"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Bounds of one step.

    Attributes:
        max_num_seqs: Sequences that run at a time.
        max_num_batched_tokens: Tokens computed in one step.
        prefix_caching: Whether blocks are found again.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True)
class Work:
    """What one sequence does in one step."""

    sequence: Sequence
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Planned:
    """One step's batch, and what happened while it was put together.

    Attributes:
        work: What each sequence does; empty where none can do anything.
        notices: To count and log.
        has_preempted: A running sequence gave its blocks up, so no waiting one was looked at.
    """

    work: tuple[Work, ...]
    notices: tuple[Notice, ...]
    has_preempted: bool

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens beyond the one that each decoding sequence computes."""
        return sum(each.num_tokens - 1 for each in self.work)


class RemoteSource(Protocol):
    """Where sequences read KV from that they do not compute."""

    def begin_read(self, sequence: Sequence, new_blocks: tuple[int, ...]) -> bool:
        """Read the rest of the prompt into ``new_blocks``; False where it can never arrive."""


class Scheduler:
    """The queues of one engine.

    Args:
        limits: Bounds of one step.
        pool: The block allocator.
        memory: Only its block size is used here.
        remote: Reads peers' blocks.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        *,
        pool: BlockPool,
        memory: BlockMemory,
        remote: RemoteSource,
    ) -> None:
        self._limits = limits
        self._pool = pool
        self._block_size = memory.block_size
        self._remote = remote
        # This is all the mutable state.
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._by_id: dict[RequestId, Sequence] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(tuple(self._by_id.values()))

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Sequences that are not in the batch, reading ones included, in queue order."""
        return tuple(self._waiting)

    def find(self, request_id: RequestId) -> Sequence | None:
        """Return a sequence that has not ended."""
        return self._by_id.get(request_id)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._by_id[sequence.request.request_id] = sequence
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> list[int]:
        """End a sequence and return its blocks; freeing or pinning them is the caller's."""
        del self._by_id[sequence.request.request_id]
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.state = SequenceState.ENDED
        return sequence.give_up_blocks()

    def plan(self, *, now: float) -> Planned:
        """Put the next step's batch together.

        Args:
            now: Monotonic seconds.
        """
        notices: list[Notice] = []
        budget = self._limits.max_num_batched_tokens
        work, budget = self._plan_running(budget, notices)
        has_preempted = bool(notices)
        if not has_preempted:
            work += self._plan_waiting(budget, notices, now=now)
        return Planned(tuple(work), tuple(notices), has_preempted)

    def _plan_running(self, budget: int, notices: list[Notice]) -> tuple[list[Work], int]:
        work: list[Work] = []
        for sequence in tuple(self._running):
            if sequence.state is not SequenceState.RUNNING:
                continue  # it was preempted for one before it
            num_tokens = min(sequence.num_missing, budget)
            if not num_tokens:
                break
            while not self._grow(sequence, num_tokens):
                victim = self._running[-1]
                self._preempt(victim)
                notices.append(Preempted(victim.request.request_id))
                if victim is sequence:
                    return work, budget
            work.append(Work(sequence, num_tokens))
            budget -= num_tokens
        return work, budget

    def _plan_waiting(self, budget: int, notices: list[Notice], *, now: float) -> list[Work]:
        work: list[Work] = []
        skipped: list[Sequence] = []
        # Whoever holds blocks goes first: behind one that waits for blocks it would keep them from
        # it for ever. The sort is stable, so the order is the queue's otherwise.
        self._waiting = deque(
            sorted(self._waiting, key=lambda each: each.state is not SequenceState.RECEIVED)
        )
        while self._waiting and budget and len(self._running) < self._limits.max_num_seqs:
            sequence = self._waiting.popleft()
            if sequence.state is SequenceState.READING:
                skipped.append(sequence)
                continue
            reached = self._admit(sequence, budget, notices)
            if reached is SequenceState.WAITING:
                self._waiting.appendleft(sequence)
                break
            if reached is SequenceState.READING:
                skipped.append(sequence)
                continue
            sequence.state = SequenceState.RUNNING
            if sequence.scheduled_at is None:
                sequence.scheduled_at = now
            self._running.append(sequence)
            num_tokens = min(sequence.num_missing, budget)
            work.append(Work(sequence, num_tokens))
            budget -= num_tokens
        self._waiting.extendleft(reversed(skipped))
        return work

    def _admit(self, sequence: Sequence, budget: int, notices: list[Notice]) -> SequenceState:
        """Give a waiting sequence the blocks it needs to run or to read.

        Returns:
            RUNNING or READING, or WAITING where there are not enough blocks.
        """
        if sequence.state is SequenceState.RECEIVED:
            grown = self._grow(sequence, min(sequence.num_missing, budget))
            return SequenceState.RUNNING if grown else SequenceState.WAITING
        hits: tuple[int, ...] = ()
        if self._limits.prefix_caching:
            # The last token is always computed, or there would be nothing to choose from.
            hashes = sequence.block_hashes(self._block_size, len(sequence.tokens) - 1)
            hits = self._pool.cached_prefix(hashes)
        num_hits = len(hits) * self._block_size
        reads = sequence.reads_remote
        until = len(sequence.tokens) if reads else min(len(sequence.tokens), num_hits + budget)
        new = self._pool.take(hits, self._num_blocks(until) - len(hits))
        if new is None:
            return SequenceState.WAITING
        sequence.blocks = [*hits, *new]
        sequence.num_computed = num_hits
        if sequence.num_preemptions == 0:
            sequence.num_cached = num_hits
            sequence.num_external = len(sequence.tokens) - num_hits if reads else 0
            notices.append(
                PrefixLookup(len(sequence.tokens), num_hits, sequence.num_external, reads)
            )
        if not reads:
            return SequenceState.RUNNING
        sequence.reads_remote = False
        sequence.state = SequenceState.READING
        if not self._remote.begin_read(sequence, new):
            notices.append(InvalidParams(sequence.request.request_id))
        return SequenceState.READING

    def _grow(self, sequence: Sequence, num_tokens: int) -> bool:
        missing = self._num_blocks(sequence.num_computed + num_tokens) - len(sequence.blocks)
        if missing <= 0:
            return True
        new = self._pool.take((), missing)
        if new is None:
            return False
        sequence.blocks += new
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._pool.free(sequence.give_up_blocks())
        sequence.state = SequenceState.WAITING
        sequence.num_preemptions += 1
        self._waiting.appendleft(sequence)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
