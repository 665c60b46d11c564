"""Which engines this one has shaken hands with, and what waits for a handshake.

Pure: a state machine as a table. :class:`Peers` is told what is needed and what happened, and says
what has to be done; shaking hands, reading and sending are the engine's thread's.

Theory of operation. Nothing is known of an engine until it is needed. Reads and releases wait for
the handshake; a heartbeat does not: it only starts one and is dropped, so that the first effective
one comes an interval later. A failed handshake is not remembered: the next need tries again. One
handshake is on its way per engine, and each has one answer. An engine that answers at an address
where another was met has replaced it. A loss that is noticed late, when hands are being shaken
anew, concerns the earlier peer and changes nothing.

Source:
    vLLM 0.32.0, ``base_worker.py`` (``_background_nixl_handshake``) and ``pull_worker.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from pdcluster_lease.errors import LocalProtocolError
from pdcluster_lease.wire import Heartbeat, encode_notification
from pdcluster_sim.core.messages import DropPeer, Effect, SendNote, ShakeHands, StartRead

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdcluster_lease.agent import Peer
    from pdcluster_lease.heartbeat import HeartbeatBatch
    from pdcluster_lease.params import EngineId, RemoteLease, RequestId

__all__ = [
    "TRANSITIONS",
    "Action",
    "PeerEvent",
    "PeerState",
    "Peers",
    "PendingNote",
    "PendingRead",
    "Transition",
]


class PeerState(StrEnum):
    """Where the acquaintance with one remote engine stands."""

    UNKNOWN = "unknown"
    SHAKING = "shaking"
    CONNECTED = "connected"


class PeerEvent(StrEnum):
    """What may happen to it."""

    NEEDED = "Needed"
    """Something has to be read from it, or released there."""
    BEAT_DUE = "BeatDue"
    """Leases there have to be renewed."""
    SUCCEEDED = "Succeeded"
    """The handshake made it a peer."""
    FAILED = "Failed"
    """The handshake did not."""
    LOST = "Lost"
    """The agent found its peer gone."""
    REPLACED = "Replaced"
    """Another engine answered at its address."""


class Action(StrEnum):
    """What follows from an event."""

    SHAKE_HANDS = "shake-hands"
    KEEP = "keep"
    """Keep what is needed until the handshake's end."""
    SEND = "send"
    """Do at once what is needed, or beat."""
    SEND_KEPT = "send-kept"
    GIVE_UP_KEPT = "give-up-kept"
    """The reads among it will not happen; a release that cannot be sent is left to time."""
    DROP = "drop"
    """Have the agent forget the peer."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One row.

    Attributes:
        to: The new state; None where the pair is an error of ours.
        actions: What follows, in order.
    """

    to: PeerState | None
    actions: tuple[Action, ...] = ()


_IMPOSSIBLE: Final = Transition(None)

TRANSITIONS: Final[Mapping[tuple[PeerState, PeerEvent], Transition]] = MappingProxyType(
    {
        (PeerState.UNKNOWN, PeerEvent.NEEDED): Transition(
            PeerState.SHAKING, (Action.KEEP, Action.SHAKE_HANDS)
        ),
        (PeerState.UNKNOWN, PeerEvent.BEAT_DUE): Transition(
            PeerState.SHAKING, (Action.SHAKE_HANDS,)
        ),
        # A handshake that nobody asked for has no answer.
        (PeerState.UNKNOWN, PeerEvent.SUCCEEDED): _IMPOSSIBLE,
        (PeerState.UNKNOWN, PeerEvent.FAILED): _IMPOSSIBLE,
        # Several messages to one peer may find it gone.
        (PeerState.UNKNOWN, PeerEvent.LOST): Transition(PeerState.UNKNOWN),
        # Only who was met can be replaced.
        (PeerState.UNKNOWN, PeerEvent.REPLACED): _IMPOSSIBLE,
        (PeerState.SHAKING, PeerEvent.NEEDED): Transition(PeerState.SHAKING, (Action.KEEP,)),
        (PeerState.SHAKING, PeerEvent.BEAT_DUE): Transition(PeerState.SHAKING),
        (PeerState.SHAKING, PeerEvent.SUCCEEDED): Transition(
            PeerState.CONNECTED, (Action.SEND_KEPT,)
        ),
        (PeerState.SHAKING, PeerEvent.FAILED): Transition(
            PeerState.UNKNOWN, (Action.GIVE_UP_KEPT,)
        ),
        (PeerState.SHAKING, PeerEvent.LOST): Transition(PeerState.SHAKING),
        # Its own handshake will say that another engine is there now.
        (PeerState.SHAKING, PeerEvent.REPLACED): Transition(PeerState.SHAKING),
        (PeerState.CONNECTED, PeerEvent.NEEDED): Transition(PeerState.CONNECTED, (Action.SEND,)),
        (PeerState.CONNECTED, PeerEvent.BEAT_DUE): Transition(PeerState.CONNECTED, (Action.SEND,)),
        # Whoever is connected is not asked for another handshake.
        (PeerState.CONNECTED, PeerEvent.SUCCEEDED): _IMPOSSIBLE,
        (PeerState.CONNECTED, PeerEvent.FAILED): _IMPOSSIBLE,
        # The agent has forgotten the peer already.
        (PeerState.CONNECTED, PeerEvent.LOST): Transition(PeerState.UNKNOWN),
        (PeerState.CONNECTED, PeerEvent.REPLACED): Transition(PeerState.UNKNOWN, (Action.DROP,)),
    }
)
"""(state, event) to what follows; pairs that cannot happen are listed as errors."""


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


@dataclass(frozen=True, slots=True)
class _Beat:
    """A renewal, which waits for nothing."""

    payload: bytes


_Message: TypeAlias = PendingRead | PendingNote | _Beat


@dataclass(slots=True)
class _Known:
    address: tuple[str, int]
    state: PeerState = PeerState.UNKNOWN
    peer: Peer | None = None
    kept: list[_Message] = field(default_factory=list)


class Peers:
    """All remote engines this one has heard of."""

    def __init__(self) -> None:
        # This is all the mutable state; an engine in state UNKNOWN has no entry.
        self._known: dict[EngineId, _Known] = {}

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
        return self._apply(lease.engine_id, PeerEvent.NEEDED, lease=lease, message=what)

    def beat(self, batch: HeartbeatBatch, lease: RemoteLease) -> tuple[Effect, ...]:
        """Send a heartbeat if connected; else only start a handshake, once."""
        beat = _Beat(encode_notification(Heartbeat(batch.request_ids)))
        return self._apply(batch.engine_id, PeerEvent.BEAT_DUE, lease=lease, message=beat)

    def succeeded(self, engine_id: EngineId, peer: Peer) -> tuple[Effect, ...]:
        """Take note of a new peer and do what waited for it.

        An engine that was met at the same address before has been replaced: its peer is dropped.

        Raises:
            LocalProtocolError: No handshake with it was on its way.
        """
        known = self._known.get(engine_id)
        dropped: tuple[Effect, ...] = ()
        for other, each in tuple(self._known.items()):
            if known is not None and other != engine_id and each.address == known.address:
                dropped += self._apply(other, PeerEvent.REPLACED)
        return dropped + self._apply(engine_id, PeerEvent.SUCCEEDED, peer=peer)

    def failed(self, engine_id: EngineId) -> tuple[RequestId, ...]:
        """Forget what waited; return the requests whose reads will not happen.

        Raises:
            LocalProtocolError: No handshake with it was on its way.
        """
        known = self._known.get(engine_id)
        self._apply(engine_id, PeerEvent.FAILED)
        kept = () if known is None else known.kept
        return tuple(each.request_id for each in kept if isinstance(each, PendingRead))

    def lost(self, engine_id: EngineId) -> None:
        """Take note that a peer is gone: the next need shakes hands anew."""
        self._apply(engine_id, PeerEvent.LOST)

    def _apply(
        self,
        engine_id: EngineId,
        event: PeerEvent,
        *,
        lease: RemoteLease | None = None,
        message: _Message | None = None,
        peer: Peer | None = None,
    ) -> tuple[Effect, ...]:
        """Move one engine on and return what has to be done.

        Args:
            engine_id: Which engine.
            event: What happened.
            lease: Where it is; given where it may have to be met.
            message: What is needed; given with NEEDED and BEAT_DUE.
            peer: Given with SUCCEEDED.
        """
        state = self.state(engine_id)
        row = TRANSITIONS[state, event]
        if row.to is None:
            raise LocalProtocolError(
                f"{event} cannot happen to the peer {engine_id!r} when {state}"
            )
        known = self._known.pop(engine_id, None)
        if known is None:
            known = _Known(("", 0) if lease is None else (lease.host, lease.port))
        if peer is not None:
            known.peer = peer
        known.state = row.to
        if row.to is not PeerState.UNKNOWN:
            self._known[engine_id] = known
        effects = (_effects(engine_id, known, each, lease, message) for each in row.actions)
        return tuple(effect for some in effects for effect in some)


def _effects(
    engine_id: EngineId,
    known: _Known,
    action: Action,
    lease: RemoteLease | None,
    message: _Message | None,
) -> tuple[Effect, ...]:
    """Do one action to what is known, and return what the engine's thread has to do for it."""
    match action:
        case Action.SHAKE_HANDS:
            assert lease is not None
            return (ShakeHands(lease),)
        case Action.KEEP:
            assert message is not None
            known.kept.append(message)
            return ()
        case Action.SEND:
            assert message is not None
            return (_effect(engine_id, known, message),)
        case Action.SEND_KEPT:
            kept, known.kept = known.kept, []
            return tuple(_effect(engine_id, known, each) for each in kept)
        case Action.GIVE_UP_KEPT:
            return ()  # the caller names what was kept
        case Action.DROP:
            assert known.peer is not None
            return (DropPeer(known.peer),)
        case _:
            assert_never(action)


def _effect(engine_id: EngineId, known: _Known, message: _Message) -> Effect:
    peer = known.peer
    assert peer is not None
    match message:
        case PendingNote():
            return SendNote(
                engine_id=engine_id, peer=peer, payload=message.note, is_heartbeat=False
            )
        case _Beat():
            return SendNote(
                engine_id=engine_id, peer=peer, payload=message.payload, is_heartbeat=True
            )
        case PendingRead():
            return StartRead(
                request_id=message.request_id,
                engine_id=engine_id,
                peer=peer,
                local=message.local,
                remote=message.remote,
                note=message.note,
            )
        case _:
            assert_never(message)
