"""The agent port over real NIXL, between two processes, without a progress thread."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from tests.support.nixl_peer import PeerProcess, peer_process

from pdcluster_lease.agent import AgentEvent, Notified, Peer, ReadDone, ReadFailed
from pdcluster_lease.errors import PeerGoneError, TransferError
from pdcluster_lease.nixl_agent import NixlAgent

pytestmark = pytest.mark.nixl

NUM_BLOCKS = 8
BLOCK_BYTES = 4096
WITHIN_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def loopback() -> None:
    """UCX over loopback; read when the first agent of this process is made."""
    os.environ.setdefault("UCX_TLS", "tcp,sm,self")
    os.environ.setdefault("UCX_NET_DEVICES", "lo")


@pytest.fixture
def owner() -> Iterator[PeerProcess]:
    env = {**os.environ, "UCX_TLS": "tcp,sm,self", "UCX_NET_DEVICES": "lo"}
    name = f"owner-{uuid.uuid4()}"
    with peer_process(name, num_blocks=NUM_BLOCKS, block_bytes=BLOCK_BYTES, env=env) as peer:
        yield peer


@pytest.fixture
def memory() -> bytearray:
    return bytearray(NUM_BLOCKS * BLOCK_BYTES)


@pytest.fixture
def reader(memory: bytearray) -> Iterator[NixlAgent]:
    agent = NixlAgent(f"reader-{uuid.uuid4()}")
    agent.register(memoryview(memory), BLOCK_BYTES)
    yield agent
    agent.close()


def poll_until(agent: NixlAgent, seen: Callable[[AgentEvent], bool]) -> AgentEvent:
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        for event in agent.poll():
            if seen(event):
                return event
        time.sleep(0.001)
    pytest.fail(f"nothing of that kind within {WITHIN_S} s")


def keep_polling(agent: NixlAgent, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        agent.poll()
        time.sleep(0.001)


def blocks_of(memory: bytearray) -> list[set[int]]:
    return [set(memory[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES]) for i in range(NUM_BLOCKS)]


def test_a_read_copies_blocks_pair_by_pair_and_notifies_the_owner(
    owner: PeerProcess, reader: NixlAgent, memory: bytearray
) -> None:
    peer = reader.add_peer(owner.metadata, owner.blocks)
    owner.tell("poll 1")
    transfer = reader.read(peer, (5, 0), (2, 7), b"request-1:1")
    done = poll_until(reader, lambda event: isinstance(event, ReadDone | ReadFailed))
    assert isinstance(done, ReadDone)
    assert done.transfer == transfer
    assert done.num_bytes == 2 * BLOCK_BYTES
    assert done.transfer_s >= 0
    assert blocks_of(memory) == [{8}, {0}, {0}, {0}, {0}, {3}, {0}, {0}]
    assert owner.answer() == ["request-1:1"]


def test_a_read_sees_what_the_memory_holds_when_it_happens(
    owner: PeerProcess, reader: NixlAgent, memory: bytearray
) -> None:
    # Nothing rejects a late read: this is the hazard that the whole lease is about.
    peer = reader.add_peer(owner.metadata, owner.blocks)
    owner.tell("fill 2 99")
    owner.tell("poll 0.01")
    owner.answer()  # The owner has written: orders are carried out one after the other.
    owner.tell("poll 1")
    reader.read(peer, (0,), (2,), b"late:1")
    assert isinstance(poll_until(reader, lambda e: not isinstance(e, Notified)), ReadDone)
    assert blocks_of(memory)[0] == {99}


def test_an_agent_without_memory_can_notify(owner: PeerProcess) -> None:
    keeper = NixlAgent(f"keeper-{uuid.uuid4()}")
    peer = keeper.add_peer(owner.metadata, None)
    owner.tell("poll 1")
    for payload in (b"HB:a,b", b"a:1", b"HB:" + b"x" * 100_000):
        keeper.notify(peer, payload)
    # The first send only begins to connect: without progress on this side nothing would leave.
    keep_polling(keeper, 1.0)
    got = owner.answer()
    assert isinstance(got, list)
    assert [each[:6] for each in got] == ["HB:a,b", "a:1", "HB:xxx"]
    assert len(got[2]) == 100_003
    keeper.close()


def test_while_the_owner_does_not_poll_a_read_stands_still(
    owner: PeerProcess, reader: NixlAgent
) -> None:
    peer = reader.add_peer(owner.metadata, owner.blocks)
    owner.tell("stall 1")
    reader.read(peer, (0,), (0,), b"x:1")
    still = time.monotonic() + 0.5
    while time.monotonic() < still:
        assert reader.poll() == ()
        time.sleep(0.01)
    owner.tell("poll 1")
    assert isinstance(poll_until(reader, lambda _: True), ReadDone)


def test_a_killed_owner_is_noticed_and_a_new_one_works(
    owner: PeerProcess, reader: NixlAgent
) -> None:
    peer = reader.add_peer(owner.metadata, owner.blocks)
    owner.tell("poll 0.5")
    reader.read(peer, (0,), (0,), b"first:1")
    poll_until(reader, lambda event: isinstance(event, ReadDone))
    owner.kill()
    with pytest.raises(PeerGoneError):
        notify_until_rejected(reader, peer)
    assert read_rejected(reader, peer)
    reader.drop_peer(peer)
    reader.drop_peer(peer)
    env = dict(os.environ)
    with peer_process("second", num_blocks=NUM_BLOCKS, block_bytes=BLOCK_BYTES, env=env) as second:
        second.tell("poll 2")
        reader.read(reader.add_peer(second.metadata, second.blocks), (1,), (1,), b"second:1")
        assert isinstance(poll_until(reader, lambda _: True), ReadDone)


def notify_until_rejected(agent: NixlAgent, peer: Peer) -> None:
    """The first sends may still be swallowed by a socket buffer."""
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        agent.notify(peer, b"HB:first")
        agent.poll()
        time.sleep(0.01)


def read_rejected(agent: NixlAgent, peer: Peer) -> bool:
    """A read from a peer that is gone fails at once or by its event; it never succeeds."""
    try:
        agent.read(peer, (0,), (0,), b"gone:1")
    except (PeerGoneError, TransferError):
        return True
    return isinstance(poll_until(agent, lambda event: not isinstance(event, Notified)), ReadFailed)


@pytest.mark.parametrize(
    ("local", "remote"),
    [((0,), (NUM_BLOCKS,)), ((NUM_BLOCKS,), (0,)), ((-1,), (0,)), ((0, 1), (0,)), ((), ())],
)
def test_block_ids_out_of_range_are_rejected_before_nixl_sees_them(
    owner: PeerProcess, reader: NixlAgent, local: tuple[int, ...], remote: tuple[int, ...]
) -> None:
    peer = reader.add_peer(owner.metadata, owner.blocks)
    with pytest.raises(TransferError):
        reader.read(peer, local, remote, b"x:1")


def test_metadata_that_nixl_does_not_accept_is_an_error_of_ours(reader: NixlAgent) -> None:
    with pytest.raises(TransferError, match="add a peer"):
        reader.add_peer(b"not metadata", None)


def test_a_dropped_peer_can_be_neither_read_nor_notified(
    owner: PeerProcess, reader: NixlAgent
) -> None:
    peer = reader.add_peer(owner.metadata, owner.blocks)
    reader.drop_peer(peer)
    with pytest.raises(PeerGoneError):
        reader.notify(peer, b"x")
    with pytest.raises(PeerGoneError):
        reader.read(peer, (0,), (0,), b"x:1")


def test_memory_is_registered_once_and_in_whole_blocks(memory: bytearray) -> None:
    agent = NixlAgent(f"once-{uuid.uuid4()}")
    with pytest.raises(TransferError, match="whole blocks"):
        agent.register(memoryview(memory), BLOCK_BYTES + 1)
    agent.register(memoryview(memory), BLOCK_BYTES)
    with pytest.raises(TransferError, match="register once"):
        agent.register(memoryview(memory), BLOCK_BYTES)
    agent.close()
    agent.close()
