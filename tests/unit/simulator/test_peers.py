"""Handshakes: what waits for them, what does not, and what a failure leaves behind."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_lease.agent import Peer
from pdcluster_lease.errors import LocalProtocolError
from pdcluster_lease.heartbeat import HeartbeatBatch
from pdcluster_lease.params import EngineId, RemoteLease, RequestId
from pdcluster_lease.wire import AgentMetadata
from pdcluster_sim.core.compatibility import Compatibility
from pdcluster_sim.core.latency import LatencyModel
from pdcluster_sim.core.messages import DropPeer, Effect, SendNote, ShakeHands, StartRead
from pdcluster_sim.core.peers import (
    TRANSITIONS,
    PeerEvent,
    Peers,
    PeerState,
    PendingNote,
    PendingRead,
)

P, Q = EngineId("p"), EngineId("q")
LEASE = RemoteLease(engine_id=P, request_id=RequestId("l"), host="h", port=5600)
READ = PendingRead(RequestId("d"), (1, 2), (8, 9), b"l:1")
BATCH = HeartbeatBatch(
    engine_id=P, host="h", port=5600, tp_size=1, pp_size=1, request_ids=(RequestId("l"),)
)


def connected() -> Peers:
    peers = Peers()
    peers.beat(BATCH, LEASE)
    peers.succeeded(P, Peer(7))
    return peers


def test_a_read_waits_for_the_handshake_it_starts() -> None:
    peers = Peers()
    assert peers.state(P) is PeerState.UNKNOWN
    assert peers.need(LEASE, READ) == (ShakeHands(LEASE),)
    assert peers.state(P) is PeerState.SHAKING
    (effect,) = peers.succeeded(P, Peer(7))
    assert effect == StartRead(
        request_id=RequestId("d"),
        engine_id=P,
        peer=Peer(7),
        local=(1, 2),
        remote=(8, 9),
        note=b"l:1",
    )
    assert peers.state(P) is PeerState.CONNECTED


def test_hands_are_shaken_once_however_many_wait() -> None:
    peers = Peers()
    assert len(peers.need(LEASE, READ)) == 1
    assert peers.need(LEASE, READ) == ()
    assert peers.beat(BATCH, LEASE) == ()
    assert len(peers.succeeded(P, Peer(7))) == 2


def test_a_heartbeat_starts_a_handshake_and_is_dropped() -> None:
    peers = Peers()
    assert peers.beat(BATCH, LEASE) == (ShakeHands(LEASE),)
    assert peers.succeeded(P, Peer(7)) == ()


def test_a_connected_peer_is_told_at_once() -> None:
    peers = connected()
    assert peers.num_connected == 1
    (beat,) = peers.beat(BATCH, LEASE)
    assert beat == SendNote(engine_id=P, peer=Peer(7), payload=b"HB:l", is_heartbeat=True)
    (note,) = peers.need(LEASE, PendingNote(b"l:1"))
    assert note == SendNote(engine_id=P, peer=Peer(7), payload=b"l:1", is_heartbeat=False)
    assert isinstance(peers.need(LEASE, READ)[0], StartRead)


def test_a_failed_handshake_names_the_reads_that_waited_and_is_forgotten() -> None:
    peers = Peers()
    peers.need(LEASE, READ)
    peers.need(LEASE, PendingNote(b"x:1"))
    assert peers.failed(P) == (RequestId("d"),)
    assert peers.state(P) is PeerState.UNKNOWN
    assert peers.need(LEASE, READ) == (ShakeHands(LEASE),)


def test_a_lost_peer_has_to_shake_hands_anew() -> None:
    peers = connected()
    peers.lost(P)
    assert peers.num_connected == 0
    assert peers.need(LEASE, READ) == (ShakeHands(LEASE),)


def test_an_engine_that_another_has_replaced_at_its_address_is_forgotten() -> None:
    peers = connected()
    restarted = RemoteLease(engine_id=Q, request_id=RequestId("l"), host="h", port=5600)
    peers.need(restarted, READ)
    drop, read = peers.succeeded(Q, Peer(8))
    assert drop == DropPeer(Peer(7))
    assert isinstance(read, StartRead)
    assert peers.state(P) is PeerState.UNKNOWN
    assert peers.num_connected == 1


def test_an_engine_at_another_address_replaces_nobody() -> None:
    peers = connected()
    other = RemoteLease(engine_id=Q, request_id=RequestId("l"), host="h", port=5601)
    peers.need(other, READ)
    assert len(peers.succeeded(Q, Peer(8))) == 1
    assert peers.num_connected == 2


def test_every_pair_of_state_and_event_has_a_row() -> None:
    assert set(itertools.product(PeerState, PeerEvent)) == set(TRANSITIONS)


def test_an_answer_that_nobody_asked_for_is_an_error_of_ours() -> None:
    for peers in (Peers(), connected()):
        with pytest.raises(LocalProtocolError, match="Succeeded cannot happen"):
            peers.succeeded(P, Peer(9))
        with pytest.raises(LocalProtocolError, match="Failed cannot happen"):
            peers.failed(P)


def test_a_loss_that_is_noticed_late_does_not_take_what_waits_for_the_next_handshake() -> None:
    peers = connected()
    peers.lost(P)
    peers.lost(P)
    peers.need(LEASE, READ)
    peers.lost(P)
    assert peers.state(P) is PeerState.SHAKING
    (effect,) = peers.succeeded(P, Peer(8))
    assert isinstance(effect, StartRead)


# --- whatever happens -----------------------------------------------------------------------------

ENGINES = {
    EngineId("a"): ("one", 1),
    EngineId("b"): ("one", 1),
    EngineId("c"): ("two", 2),
}


@dataclass
class World:
    """The agent and the side channels as far as the machine may rely on them."""

    peers: Peers = field(default_factory=Peers)
    asked: set[EngineId] = field(default_factory=set)
    live: dict[Peer, EngineId] = field(default_factory=dict)
    gone: set[Peer] = field(default_factory=set)
    wanted: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    count: int = 0

    def do(self, effects: tuple[Effect, ...]) -> None:
        lost: list[EngineId] = []
        for effect in effects:
            match effect:
                case ShakeHands():
                    engine_id = effect.lease.engine_id
                    assert engine_id not in self.asked, "one handshake at a time"
                    self.asked.add(engine_id)
                case DropPeer():
                    assert self.live.pop(effect.peer, None) is not None, "it is there to be dropped"
                case StartRead():
                    assert self.live.get(effect.peer) == effect.engine_id
                    self.settle(effect.request_id)
                    lost += [effect.engine_id] * (effect.peer in self.gone)
                case SendNote():
                    assert self.live.get(effect.peer) == effect.engine_id
                    lost += [effect.engine_id] * (effect.peer in self.gone)
        for engine_id in lost:
            # As the engine's thread: the agent forgets the peer, then the machine is told.
            for peer in [peer for peer, whose in self.live.items() if whose == engine_id]:
                del self.live[peer]
            self.peers.lost(engine_id)

    def settle(self, name: str) -> None:
        assert name in self.wanted - self.settled, "each read begins or fails once"
        self.settled.add(name)

    def answer(self, engine_id: EngineId, is_good: bool) -> None:
        if engine_id not in self.asked:
            return
        self.asked.discard(engine_id)
        if not is_good:
            for name in self.peers.failed(engine_id):
                self.settle(name)
            return
        self.count += 1
        peer = Peer(self.count)
        self.live[peer] = engine_id
        self.do(self.peers.succeeded(engine_id, peer))

    def lease(self, engine_id: EngineId) -> RemoteLease:
        host, port = ENGINES[engine_id]
        return RemoteLease(engine_id=engine_id, request_id=RequestId("l"), host=host, port=port)

    def read(self, engine_id: EngineId) -> None:
        name = RequestId(f"r{len(self.wanted)}")
        self.wanted.add(name)
        self.do(self.peers.need(self.lease(engine_id), PendingRead(name, (1,), (2,), b"l:1")))

    def beat(self, engine_id: EngineId) -> None:
        lease = self.lease(engine_id)
        batch = HeartbeatBatch(
            engine_id=engine_id, host=lease.host, port=lease.port, tp_size=1, pp_size=1,
            request_ids=(lease.request_id,),
        )  # fmt: skip
        self.do(self.peers.beat(batch, lease))


STEPS = st.tuples(
    st.sampled_from(["read", "release", "beat", "answer", "reject", "die"]),
    st.sampled_from(sorted(ENGINES)),
)


@given(st.lists(STEPS, max_size=60))
def test_each_read_begins_or_fails_once_and_nobody_unknown_is_spoken_to(
    steps: list[tuple[str, EngineId]],
) -> None:
    world = World()
    for what, engine_id in steps:
        match what:
            case "read":
                world.read(engine_id)
            case "release":
                world.do(world.peers.need(world.lease(engine_id), PendingNote(b"l:1")))
            case "beat":
                world.beat(engine_id)
            case "die":
                world.gone |= {peer for peer, whose in world.live.items() if whose == engine_id}
            case _:
                world.answer(engine_id, is_good=what == "answer")
    for engine_id in ENGINES:
        waits = world.peers.state(engine_id) is PeerState.SHAKING
        assert waits == (engine_id in world.asked)
        world.answer(engine_id, is_good=False)
    assert world.wanted == world.settled


# --- who may be a peer ----------------------------------------------------------------------------


def compatibility(**changes: object) -> Compatibility:
    fields: dict[str, object] = {
        "vllm_version": "0.32.0",
        "connector_version": 14,
        "model": "m",
        "dtype": "float32",
        "slot_bytes": 64,
        "block_size": 16,
    }
    return Compatibility(**{**fields, **changes})  # type: ignore[arg-type]  # named by the test


@pytest.mark.parametrize(
    "change",
    [{"vllm_version": "0.31.0"}, {"connector_version": 13}, {"model": "./m"}, {"dtype": "auto"}],
)
def test_whatever_is_hashed_has_to_be_equal(change: dict[str, object]) -> None:
    other = compatibility(**change)
    fault = compatibility().hash_fault(other.hash)
    assert fault is not None
    assert "NIXL compatibility hash mismatch" in fault
    assert compatibility(is_enforced=False).hash_fault(other.hash) is None


def test_equal_engines_have_equal_hashes() -> None:
    assert compatibility().hash_fault(compatibility(block_size=32).hash) is None
    assert len(compatibility().hash) == 64


def metadata(**changes: object) -> AgentMetadata:
    fields: dict[str, object] = {
        "engine_id": "p",
        "agent_metadata": b"",
        "kv_caches_base_addr": (1,),
        "num_blocks": 8,
        "block_lens": (1024,),
        "block_size": 16,
    }
    return AgentMetadata(**{**fields, **changes})  # type: ignore[arg-type]  # named by the test


def test_a_peer_has_to_be_the_engine_of_the_params_with_our_blocks() -> None:
    ours = compatibility()
    assert ours.metadata_fault(metadata(), expected=P) is None
    for change, words in (
        ({"engine_id": "q"}, "engine ID mismatch. Expected p,received q"),
        ({"block_size": 32}, "ours"),
        ({"block_lens": (2048,)}, "ours"),
        ({"block_lens": (1024, 1024)}, "ours"),
    ):
        fault = ours.metadata_fault(metadata(**change), expected=P)
        assert fault is not None
        assert words.replace(",received", ", received") in fault


# --- how long things take -------------------------------------------------------------------------


def test_a_step_is_its_base_and_its_prefill() -> None:
    model = LatencyModel(prefill_tokens_per_s=1000.0, step_time_s=0.01, transfer_gbps=8.0)
    assert model.step_s(0) == 0.01
    assert model.step_s(500) == pytest.approx(0.51)
    assert model.transfer_s(1_000_000_000) == pytest.approx(1.0)


def test_zero_means_at_once() -> None:
    model = LatencyModel(prefill_tokens_per_s=0.0, step_time_s=0.0, transfer_gbps=0.0)
    assert (model.step_s(10**9), model.transfer_s(10**12)) == (0.0, 0.0)
