"""Which engines this one has shaken hands with, and what waits for a handshake.

Pure. A state machine per remote engine id:

    UNKNOWN  --needed-->  SHAKING  --succeeded-->  CONNECTED
    SHAKING  --failed-->  UNKNOWN                  CONNECTED  --lost-->  UNKNOWN

Reads and releases wait for the handshake; a heartbeat does not: it only starts one and is dropped,
so that the first effective one comes an interval later. A failed handshake is not remembered: the
next need tries again.

Source:
    vLLM 0.32.0, ``base_worker.py`` (``_background_nixl_handshake``) and ``pull_worker.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from pdcluster_lease.wire import Heartbeat, encode_notification
from pdcluster_sim.core.messages import DropPeer, Effect, SendNote, ShakeHands, StartRead

if TYPE_CHECKING:
    from pdcluster_lease.agent import Peer
    from pdcluster_lease.heartbeat import HeartbeatBatch
    from pdcluster_lease.params import EngineId, RemoteLease, RequestId

__all__ = ["PeerState", "Peers", "PendingNote", "PendingRead"]


class PeerState(StrEnum):
    """Where the acquaintance with one remote engine stands."""

    UNKNOWN = "unknown"
    SHAKING = "shaking"
    CONNECTED = "connected"


@dataclass(frozen=True, slots=True)
class PendingRead:
    """A read that waits for a handshake."""

    request_id: RequestId
    local: tuple[int, ...]
    remote: tuple[int, ...]
    note: bytes


@dataclass(frozen=True, slots=True)
class PendingNote:
    """A release that waits for a handshake."""

    note: bytes


@dataclass(slots=True)
class _Known:
    address: tuple[str, int]
    state: PeerState = PeerState.UNKNOWN
    peer: Peer | None = None
    waiting: list[PendingRead | PendingNote] = field(default_factory=list)


class Peers:
    """All remote engines this one has heard of."""

    def __init__(self) -> None:
        self._known: dict[EngineId, _Known] = {}  # this is all the mutable state

    @property
    def num_connected(self) -> int:
        """Engines that hands were shaken with."""
        return sum(each.state is PeerState.CONNECTED for each in self._known.values())

    def state(self, engine_id: EngineId) -> PeerState:
        """Return the state of one engine; unheard-of ones are UNKNOWN."""
        known = self._known.get(engine_id)
        return PeerState.UNKNOWN if known is None else known.state

    def need(self, lease: RemoteLease, what: PendingRead | PendingNote) -> tuple[Effect, ...]:
        """Read or release now if connected, else as soon as hands are shaken."""
        known = self._know(lease)
        if known.state is PeerState.CONNECTED:
            assert known.peer is not None
            return (_effect(lease.engine_id, known.peer, what),)
        known.waiting.append(what)
        return self._shake(known, lease)

    def beat(self, batch: HeartbeatBatch, lease: RemoteLease) -> tuple[Effect, ...]:
        """Send a heartbeat if connected; else only start a handshake, once."""
        known = self._know(lease)
        if known.state is not PeerState.CONNECTED:
            return self._shake(known, lease)
        assert known.peer is not None
        payload = encode_notification(Heartbeat(batch.request_ids))
        return (
            SendNote(
                engine_id=batch.engine_id, peer=known.peer, payload=payload, is_heartbeat=True
            ),
        )

    def succeeded(self, engine_id: EngineId, peer: Peer) -> tuple[Effect, ...]:
        """Take note of a new peer and do what waited for it.

        An engine that was met at the same address before has been replaced: its peer is dropped.
        """
        known = self._known.get(engine_id)
        if known is None:
            return (DropPeer(peer),)  # nobody wants it any more
        replaced = [
            (other, each.peer)
            for other, each in self._known.items()
            if each.address == known.address and each.peer is not None
        ]
        for other, _ in replaced:
            del self._known[other]
        known.state, known.peer = PeerState.CONNECTED, peer
        waiting, known.waiting = known.waiting, []
        return (
            *(DropPeer(old) for _, old in replaced),
            *(_effect(engine_id, peer, what) for what in waiting),
        )

    def failed(self, engine_id: EngineId) -> tuple[RequestId, ...]:
        """Forget what waited; return the requests whose reads will not happen."""
        known = self._known.pop(engine_id, None)
        if known is None:
            return ()
        return tuple(each.request_id for each in known.waiting if isinstance(each, PendingRead))

    def lost(self, engine_id: EngineId) -> None:
        """Take note that a peer is gone: the next need shakes hands anew."""
        self._known.pop(engine_id, None)

    def _know(self, lease: RemoteLease) -> _Known:
        return self._known.setdefault(lease.engine_id, _Known((lease.host, lease.port)))

    def _shake(self, known: _Known, lease: RemoteLease) -> tuple[Effect, ...]:
        if known.state is PeerState.SHAKING:
            return ()
        known.state = PeerState.SHAKING
        return (ShakeHands(lease),)


def _effect(engine_id: EngineId, peer: Peer, what: PendingRead | PendingNote) -> Effect:
    if isinstance(what, PendingNote):
        return SendNote(engine_id=engine_id, peer=peer, payload=what.note, is_heartbeat=False)
    return StartRead(
        request_id=what.request_id,
        engine_id=engine_id,
        peer=peer,
        local=what.local,
        remote=what.remote,
        note=what.note,
    )
