"""Both sides of the KV lease inside one engine: granting as P, reading and renewing as D.

Pure. Decides what to grant, read, renew and release; the engine's thread does it. What blocks hold
and who runs is the scheduler's.

Source:
    vLLM 0.32.0, ``nixl/pull_scheduler.py``, ``base_scheduler.py``, ``pull_worker.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from pdcluster_lease.engine_params import GrantingEngine, RequestParams, granted_params
from pdcluster_lease.heartbeat import HeartbeatTracker
from pdcluster_lease.lease import (
    Expired,
    Grant,
    Granted,
    Ignored,
    LateRead,
    LeaseOutcome,
    LeaseTable,
    PartlyRead,
    Released,
    Renewed,
    Sweep,
)
from pdcluster_lease.wire import Heartbeat, TransferComplete, encode_notification
from pdcluster_sim.core.messages import Effect, FinishReason, HandshakeFailed, HandshakeSucceeded
from pdcluster_sim.core.peers import Peers, PendingNote, PendingRead
from pdcluster_sim.core.results import Notice, TransferFailed
from pdcluster_sim.errors import EngineDeadError

if TYPE_CHECKING:
    from pdcluster_lease.params import EngineId, RemoteLease, RequestId
    from pdcluster_lease.timing import LeaseTiming
    from pdcluster_sim.core.blocks import BlockPool
    from pdcluster_sim.core.sequences import Sequence

__all__ = ["Connector"]

_GRANTING_REASONS = frozenset({FinishReason.LENGTH, FinishReason.STOP})


class Connector:
    """The leases this engine grants and those it needs.

    Args:
        engine: What its grants say about it.
        timing: Its own lease timing.
        pool: Where the blocks of ended leases go.
    """

    def __init__(self, engine: GrantingEngine, timing: LeaseTiming, pool: BlockPool) -> None:
        self._engine = engine
        self._pool = pool
        # This is all the mutable state, with the machines' own.
        self._leases = LeaseTable(timing)
        self._pinned: dict[RequestId, list[int]] = {}
        self._tracker = HeartbeatTracker(timing)
        self._remote: dict[RequestId, RemoteLease] = {}
        self._peers = Peers()
        self._effects: list[Effect] = []
        self._notices: list[Notice] = []

    @property
    def num_held(self) -> int:
        """Leases that have not ended."""
        return self._leases.held

    @property
    def held(self) -> dict[str, list[int]]:
        """The blocks each lease pins, for the admin endpoint."""
        return {request_id: list(blocks) for request_id, blocks in self._pinned.items()}

    @property
    def num_tracked(self) -> int:
        """Requests here whose remote lease is being renewed."""
        return self._tracker.num_tracked

    def take_effects(self) -> tuple[Effect, ...]:
        """Return what has to be done since the last call."""
        effects, self._effects = tuple(self._effects), []
        return effects

    def take_notices(self) -> tuple[Notice, ...]:
        """Return what has to be counted and logged since the last call."""
        notices, self._notices = tuple(self._notices), []
        return notices

    # --- as D ---

    def arrived(self, request_id: RequestId, kv: RequestParams) -> None:
        """Renew from arrival, before it is scheduled: the queue is where leases run out."""
        if kv.do_remote_prefill and kv.lease is not None and kv.may_renew:
            self._tracker.track(request_id, kv.lease)
            self._remote[request_id] = kv.lease

    def begin_read(self, sequence: Sequence, new_blocks: tuple[int, ...]) -> bool:
        """Read the end of the remote blocks into the new ones.

        Returns:
            False where the params do not say whose blocks they are: nothing will arrive.

        Raises:
            EngineDeadError: The params name no blocks. vLLM's engine dies of it too.
        """
        kv = sequence.request.kv
        assert kv is not None
        if not any(kv.block_ids):
            raise EngineDeadError(
                f"request {sequence.request.request_id}: do_remote_prefill without "
                "remote_block_ids; vLLM's engine core ends by an assertion here"
            )
        if kv.lease is None:
            return False
        remote = tuple(block for group in kv.block_ids for block in group)
        what = PendingRead(
            request_id=sequence.request.request_id,
            local=new_blocks,
            # The first blocks may be in the local prefix cache: the rest are the last ones.
            remote=remote[-len(new_blocks) :],
            note=encode_notification(TransferComplete(kv.lease.request_id)),
        )
        self._effects += self._peers.need(kv.lease, what)
        return True

    def received(self, request_id: RequestId) -> None:
        """Stop renewing: the blocks have arrived, or will not."""
        self._tracker.stop(request_id)
        self._remote.pop(request_id, None)

    def release_unread(self, kv: RequestParams) -> None:
        """Tell the owner that nobody here will read its blocks."""
        if kv.do_remote_prefill and kv.lease is not None:
            note = encode_notification(TransferComplete(kv.lease.request_id))
            self._effects += self._peers.need(kv.lease, PendingNote(note))

    def beat(self, *, now: float) -> None:
        """Renew what is due; only called between steps, as vLLM does."""
        for batch in self._tracker.due(now=now):
            lease = next(
                each for each in self._remote.values() if each.engine_id == batch.engine_id
            )
            self._effects += self._peers.beat(batch, lease)

    def shook_hands(self, event: HandshakeSucceeded) -> None:
        """Do what waited for this peer."""
        self._effects += self._peers.succeeded(event.engine_id, event.peer)

    def could_not_shake_hands(self, event: HandshakeFailed) -> tuple[RequestId, ...]:
        """Return the requests whose blocks will not arrive."""
        self._notices.append(
            TransferFailed("handshake_setup_failed", event.engine_id, None, event.reason)
        )
        return self._peers.failed(event.engine_id)

    def lost_peer(self, engine_id: EngineId) -> None:
        """Shake hands anew at the next need."""
        self._peers.lost(engine_id)

    # --- as P ---

    def finished(
        self, sequence: Sequence, blocks: list[int], reason: FinishReason, *, now: float
    ) -> dict[str, object] | None:
        """Pin or free the blocks of a sequence that has ended.

        Returns:
            The grant's params, or None where nothing was granted.
        """
        request = sequence.request
        self.received(request.request_id)
        grants = request.kv is not None and request.kv.do_remote_decode
        if not grants or reason not in _GRANTING_REASONS or not blocks:
            self._pool.free(blocks)
            return None
        self._leases.apply(Grant(request.request_id), now=now)
        self._pinned[request.request_id] = blocks
        return granted_params(
            self._engine,
            request.request_id,
            block_ids=blocks,
            num_tokens=len(sequence.tokens) - 1,
            num_cached_tokens=sequence.num_cached,
        )

    def notified(self, message: Heartbeat | TransferComplete, *, now: float) -> None:
        """Apply a peer's notification."""
        self._settle(self._leases.apply(message, now=now))

    def sweep(self, *, now: float) -> None:
        """End what nobody renewed; notifications are applied before."""
        self._settle(self._leases.apply(Sweep(), now=now))

    def next_event_at(self, *, now: float, may_beat: bool) -> float | None:
        """Return when a lease ends or, if heartbeats may leave, one is due; or None."""
        ends = [self._leases.next_end(), self._tracker.next_due(now=now) if may_beat else None]
        return min((end for end in ends if end is not None), default=None)

    def _settle(self, outcomes: tuple[LeaseOutcome, ...]) -> None:
        for outcome in outcomes:
            match outcome:
                case Released() | Expired():
                    self._pool.free(self._pinned.pop(outcome.request_id))
                    self._notices.append(outcome)
                case Renewed() | LateRead():
                    self._notices.append(outcome)
                case Granted() | PartlyRead() | Ignored():
                    pass
                case _:
                    assert_never(outcome)
