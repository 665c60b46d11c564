"""The engine's core: one step after the other, and the leases beside them.

Pure, given a memory. The engine's thread feeds it inputs and the time, does its effects and gives
its outputs to HTTP. A step is planned, lasts as long as the latency model says, and only then
computes and chooses tokens; leases are swept at any time, heartbeats leave only between steps, so
that a step longer than the extension loses leases here as it does in vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from pdcluster_lease.wire import Heartbeat, TransferComplete
from pdcluster_sim.core.blocks import BlockPool
from pdcluster_sim.core.connector import Connector
from pdcluster_sim.core.messages import (
    Cancel,
    Effect,
    FinishReason,
    HandshakeFailed,
    HandshakeSucceeded,
    Input,
    PeerLost,
    ReadArrived,
    ReadBroke,
    RejectUnread,
    Submit,
)
from pdcluster_sim.core.results import (
    Advance,
    EngineGauges,
    LoadFailed,
    Notice,
    Output,
    RequestStats,
    TransferFailed,
)
from pdcluster_sim.core.scheduler import Planned, Scheduler, SchedulerLimits
from pdcluster_sim.core.sequences import BlockMemory, Sequence, SequenceState
from pdcluster_sim.errors import EngineDeadError

if TYPE_CHECKING:
    from pdcluster_lease.engine_params import GrantingEngine
    from pdcluster_lease.params import RequestId
    from pdcluster_lease.timing import LeaseTiming
    from pdcluster_sim.core.latency import LatencyModel

__all__ = ["EngineCore"]


class EngineCore:
    """One engine without clock, thread or socket.

    Args:
        limits: Bounds of one step.
        memory: The KV memory; it has ``num_blocks`` blocks.
        num_blocks: Blocks, block 0 included.
        latency: How long things take.
        engine: What its grants say about it.
        timing: Its lease timing.
        recomputes: The load failure policy: prefill locally (True) or fail the request.
    """

    def __init__(
        self,
        *,
        limits: SchedulerLimits,
        memory: BlockMemory,
        num_blocks: int,
        latency: LatencyModel,
        engine: GrantingEngine,
        timing: LeaseTiming,
        recomputes: bool,
    ) -> None:
        self._memory = memory
        self._latency = latency
        self._recomputes = recomputes
        self._pool = BlockPool(num_blocks)
        self._connector = Connector(engine, timing, self._pool)
        self._scheduler = Scheduler(limits, pool=self._pool, memory=memory, remote=self._connector)
        # This is all the mutable state beside theirs.
        self._step: tuple[Planned, float] | None = None
        self._arrivals: list[tuple[float, RequestId]] = []
        self._read_started: dict[RequestId, float] = {}
        self._outputs: list[Output] = []
        self._notices: list[Notice] = []

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to do or to wait for: requests or leases."""
        return bool(len(self._scheduler) or self._connector.num_held)

    @property
    def leases(self) -> dict[str, list[int]]:
        """The blocks each lease held as P pins."""
        return self._connector.held

    def gauges(self) -> EngineGauges:
        """Return the figures of this moment."""
        waiting = self._scheduler.waiting
        reading = sum(each.state is SequenceState.READING for each in waiting)
        return EngineGauges(
            num_running=self._scheduler.num_running,
            num_waiting=len(waiting),
            num_deferred=reading,
            num_to_fetch=sum(each.reads_remote for each in waiting),
            num_fetching=reading,
            num_fetched=sum(each.state is SequenceState.RECEIVED for each in waiting),
            kv_usage=self._pool.usage,
            num_leases=self._connector.num_held,
            num_tracked=self._connector.num_tracked,
        )

    def handle(self, event: Input, *, now: float) -> None:  # noqa: C901 - one case per input
        """Take note of one input; what follows comes out of :meth:`advance`.

        Args:
            event: What happened.
            now: Monotonic seconds.

        Raises:
            EngineDeadError: vLLM's engine core ends by this input, so this one does.
        """
        match event:
            case Submit():
                self._submit(event, now=now)
            case Cancel():
                self._cancel(event.request_id, now=now)
            case RejectUnread():
                self._connector.release_unread(event.kv)
            case HandshakeSucceeded():
                self._connector.shook_hands(event)
            case HandshakeFailed():
                for request_id in self._connector.could_not_shake_hands(event):
                    self._broke(ReadBroke(request_id, "handshake_failed", event.reason), now=now)
            case PeerLost():
                self._connector.lost_peer(event.engine_id)
            case ReadArrived():
                self._arrived(event, now=now)
            case ReadBroke():
                self._broke(event, now=now)
            case Heartbeat() | TransferComplete():
                self._connector.notified(event, now=now)
            case _:
                assert_never(event)

    def advance(self, *, now: float) -> Advance:
        """Let time pass: end the step that is over, begin the next, sweep, renew.

        Raises:
            EngineDeadError: See :meth:`handle`.
        """
        self._connector.sweep(now=now)
        self._take_arrivals(now=now)
        step_tokens = None
        if self._step is not None and now >= self._step[1]:
            planned, _ = self._step
            self._step = None
            step_tokens = self._complete(planned, now=now)
        if self._step is None:
            self._connector.beat(now=now)
            self._begin(now=now)
        effects = self._connector.take_effects()
        notices = (*self._notices, *self._connector.take_notices())
        outputs, self._outputs, self._notices = tuple(self._outputs), [], []
        for effect in effects:
            self._note_read_start(effect, now=now)
        return Advance(
            outputs=outputs,
            effects=effects,
            notices=notices,
            step_tokens=step_tokens,
            next_at=self._next_at(now=now),
        )

    def abort_all(self, *, now: float) -> None:
        """Cancel every request; leases stay."""
        for sequence in self._scheduler:
            self._cancel(sequence.request.request_id, now=now)

    # --- inputs ---

    def _submit(self, event: Submit, *, now: float) -> None:
        sequence = Sequence(event.request, arrived_at=now)
        self._scheduler.add(sequence)
        if event.request.kv is not None:
            self._connector.arrived(event.request.request_id, event.request.kv)

    def _cancel(self, request_id: RequestId, *, now: float) -> None:
        sequence = self._scheduler.find(request_id)
        if sequence is None or sequence.was_cancelled:
            return
        kv = sequence.request.kv
        if sequence.state is SequenceState.READING:
            if kv is not None and kv.lease is None:
                raise EngineDeadError(
                    f"request {request_id} was aborted while it waited for blocks of nobody; "
                    "vLLM's engine core ends by a KeyError here"
                )
            # A read cannot be called back: its blocks stay taken until it is over.
            sequence.was_cancelled = True
            return
        if sequence.reads_remote and kv is not None:
            self._connector.release_unread(kv)
        self._end(sequence, FinishReason.ABORT, now=now)

    def _arrived(self, event: ReadArrived, *, now: float) -> None:
        started_at = self._read_started.pop(event.request_id, now)
        ready_at = started_at + self._latency.transfer_s(event.num_bytes)
        self._arrivals.append((ready_at, event.request_id))

    def _take_arrivals(self, *, now: float) -> None:
        due = [request_id for ready_at, request_id in self._arrivals if ready_at <= now]
        self._arrivals = [each for each in self._arrivals if each[0] > now]
        for request_id in due:
            sequence = self._scheduler.find(request_id)
            if sequence is not None:
                self._receive(sequence, now=now)

    def _receive(self, sequence: Sequence, *, now: float) -> None:
        self._connector.received(sequence.request.request_id)
        if sequence.was_cancelled:
            self._end(sequence, FinishReason.ABORT, now=now)
            return
        sequence.num_computed = len(sequence.tokens)
        self._name_blocks(sequence)
        # The last token is computed here in any case: a step needs something to compute.
        sequence.num_computed -= 1
        sequence.state = SequenceState.RECEIVED

    def _broke(self, event: ReadBroke, *, now: float) -> None:
        sequence = self._scheduler.find(event.request_id)
        self._read_started.pop(event.request_id, None)
        if sequence is None:
            return
        kv = sequence.request.kv
        assert kv is not None
        assert kv.lease is not None
        self._connector.received(event.request_id)
        self._notices.append(
            TransferFailed(event.kind, kv.lease.engine_id, event.request_id, event.reason)
        )
        if sequence.was_cancelled:
            self._end(sequence, FinishReason.ABORT, now=now)
            return
        policy = "recompute" if self._recomputes else "fail"
        self._notices.append(LoadFailed(event.request_id, policy, sequence.num_external))
        if not self._recomputes:
            self._end(sequence, FinishReason.ERROR, now=now)
            return
        self._pool.free(sequence.give_up_blocks())
        sequence.num_external = 0
        sequence.state = SequenceState.WAITING

    def _note_read_start(self, effect: Effect, *, now: float) -> None:
        request_id = getattr(effect, "request_id", None)
        if request_id is not None:
            self._read_started[request_id] = now

    # --- steps ---

    def _begin(self, *, now: float) -> None:
        planned = self._scheduler.plan(now=now)
        self._notices += planned.notices
        if planned.has_preempted and not planned.work:
            # The last one that ran gave its blocks up, so others may start: nobody else would look.
            planned = self._scheduler.plan(now=now)
            self._notices += planned.notices
        # Without work nobody has to look again soon: what is missing is blocks, and those come
        # back by a lease's end, a notification or a read, each of which wakes the engine.
        if planned.work:
            self._step = (planned, now + self._latency.step_s(planned.num_prefill_tokens))

    def _complete(self, planned: Planned, *, now: float) -> int:
        num_tokens = 0
        for work in planned.work:
            sequence = work.sequence
            if sequence.state is not SequenceState.RUNNING:
                continue  # it was cancelled while the step ran
            sequence.compute(self._memory, work.num_tokens)
            num_tokens += work.num_tokens
            self._name_blocks(sequence)
            if not sequence.num_missing:
                self._emit(sequence, now=now)
        return num_tokens

    def _emit(self, sequence: Sequence, *, now: float) -> None:
        token = sequence.choose_token(self._memory)
        sequence.tokens.append(token)
        last_at, sequence.last_token_at = sequence.last_token_at, now
        is_first = sequence.first_token_at is None
        if is_first:
            sequence.first_token_at = now
        reason = None
        if sequence.is_complete_by(token):
            reason = FinishReason.STOP
        elif sequence.num_output >= sequence.request.max_tokens:
            reason = FinishReason.LENGTH
        gap_s = None if last_at is None else now - last_at
        if reason is None:
            self._outputs.append(_output(sequence, tokens=(token,), is_first=is_first, gap_s=gap_s))
            return
        self._end(sequence, reason, now=now, tokens=(token,), is_first=is_first, gap_s=gap_s)

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        now: float,
        tokens: tuple[int, ...] = (),
        is_first: bool = False,
        gap_s: float | None = None,
    ) -> None:
        blocks = self._scheduler.remove(sequence)
        params = self._connector.finished(sequence, blocks, reason, now=now)
        self._outputs.append(
            _output(
                sequence,
                tokens=tokens,
                is_first=is_first,
                gap_s=gap_s,
                finish=reason,
                params=params,
                stats=RequestStats(
                    arrived_at=sequence.arrived_at,
                    scheduled_at=sequence.scheduled_at,
                    first_token_at=sequence.first_token_at,
                    last_token_at=sequence.last_token_at,
                    ended_at=now,
                    num_prompt_tokens=len(sequence.request.prompt),
                    num_output_tokens=sequence.num_output,
                    max_tokens=sequence.request.max_tokens,
                    num_preemptions=sequence.num_preemptions,
                ),
            )
        )

    def _name_blocks(self, sequence: Sequence) -> None:
        """Put every full block into the prefix cache, by its tokens, whatever it holds."""
        hashes = sequence.block_hashes(self._memory.block_size, sequence.num_computed)
        for block, name in zip(sequence.blocks, hashes, strict=False):
            self._pool.cache(block, name)

    def _next_at(self, *, now: float) -> float | None:
        # While a step runs no heartbeat leaves, so its due time must not keep us spinning.
        between_steps = self._step is None
        instants = [self._connector.next_event_at(now=now, may_beat=between_steps)]
        if self._step is not None:
            instants.append(self._step[1])
        instants += [ready_at for ready_at, _ in self._arrivals]
        return min((each for each in instants if each is not None), default=None)


def _output(
    sequence: Sequence,
    *,
    tokens: tuple[int, ...],
    is_first: bool,
    gap_s: float | None,
    finish: FinishReason | None = None,
    params: dict[str, object] | None = None,
    stats: RequestStats | None = None,
) -> Output:
    return Output(
        request_id=sequence.request.request_id,
        tokens=tokens,
        is_first=is_first,
        gap_s=gap_s,
        finish=finish,
        params=params,
        num_cached_tokens=sequence.num_cached,
        num_external_tokens=sequence.num_external,
        num_prompt_tokens=len(sequence.request.prompt),
        stats=stats,
    )
