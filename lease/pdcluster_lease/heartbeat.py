"""Which leases to renew, and when: D's side of the lease, and the keeper's.

Pure. One throttle for all peers, as in vLLM: a batch is due at most once per interval, counted from
the last one, whoever it went to. Sending, handshakes and ranks are the caller's.

Theory of operation. A request is tracked from its arrival, before it is scheduled, because the
queue is where leases run out. It is dropped when its blocks were received or it ended. Whoever is
tracked when the interval has passed goes into one batch per remote engine.

Source:
    vLLM 0.22.0 and later, ``nixl/base_scheduler.py``: ``on_new_request``, ``build_connector_meta``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdcluster_lease.params import EngineId, RemoteLease, RequestId
    from pdcluster_lease.timing import LeaseTiming

__all__ = ["HeartbeatBatch", "HeartbeatTracker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatBatch:
    """One message's worth of renewals, to be sent to every rank of one engine.

    Attributes:
        engine_id: The engine that granted.
        host: Host of its side channel.
        port: Port of its side channel.
        tp_size: Its tensor-parallel size.
        pp_size: Its pipeline-parallel size.
        request_ids: The leases' keys there, in the order they were first tracked.
    """

    engine_id: EngineId
    host: str
    port: int
    tp_size: int
    pp_size: int
    request_ids: tuple[RequestId, ...]


class HeartbeatTracker:
    """The leases that somebody here still needs.

    Args:
        timing: The renewing side's own lease timing: the interval is its, not the owner's.
    """

    def __init__(self, timing: LeaseTiming) -> None:
        self._interval_s = timing.heartbeat_interval_s
        # This is all the mutable state.
        self._tracked: dict[RequestId, RemoteLease] = {}
        self._last_at: float | None = None

    @property
    def num_tracked(self) -> int:
        """Local requests with a lease to renew."""
        return len(self._tracked)

    def track(self, request: RequestId, lease: RemoteLease) -> None:
        """Renew for as long as a local request needs it; idempotent.

        Args:
            request: The local request's id.
            lease: Where its remote lease lives.
        """
        self._tracked[request] = lease

    def stop(self, request: RequestId) -> None:
        """Renew no longer for this local request; one that is not tracked is no error."""
        self._tracked.pop(request, None)

    def next_due(self, *, now: float) -> float | None:
        """Return when :meth:`due` next yields something.

        Args:
            now: Monotonic seconds.

        Returns:
            Monotonic seconds, ``now`` or later; None while nothing is tracked.
        """
        if not self._tracked:
            return None
        return now if self._last_at is None else max(now, self._last_at + self._interval_s)

    def due(self, *, now: float) -> tuple[HeartbeatBatch, ...]:
        """Return what has to be sent now, one batch per remote engine, and restart the throttle.

        Args:
            now: Monotonic seconds.

        Source:
            vLLM 0.22.0 and later, ``base_scheduler.build_connector_meta``: one throttle for all.
        """
        next_due = self.next_due(now=now)
        if next_due is None or next_due > now:
            return ()
        self._last_at = now
        ids: dict[EngineId, dict[RequestId, RemoteLease]] = {}
        for lease in self._tracked.values():
            ids.setdefault(lease.engine_id, {})[lease.request_id] = lease
        return tuple(_batch(engine_id, leases) for engine_id, leases in ids.items())


def _batch(engine_id: EngineId, leases: dict[RequestId, RemoteLease]) -> HeartbeatBatch:
    # An engine id names one boot, so all its leases agree on the address; the newest wins, so
    # that one poisoned entry cannot fix a wrong address for all that follow.
    newest = list(leases.values())[-1]
    return HeartbeatBatch(
        engine_id=engine_id,
        host=newest.host,
        port=newest.port,
        tp_size=newest.tp_size,
        pp_size=newest.pp_size,
        request_ids=tuple(leases),
    )
