"""One suite for the agent port: real NIXL and the fake, two agents in one process."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from pdcluster_lease.agent import (
    Agent,
    AgentEvent,
    Notified,
    Peer,
    ReadDone,
    ReadFailed,
    RemoteBlocks,
)
from pdcluster_lease.errors import PeerGoneError, TransferError
from pdcluster_lease.nixl_agent import NixlAgent
from tests.support.fake_agent import FakeNetwork

NUM_BLOCKS = 4
BLOCK_BYTES = 4096
WITHIN_S = 60.0


@dataclass
class Side:
    """One agent and its memory; block i is filled with ``first + i``."""

    agent: Agent
    memory: bytearray
    address: int

    @property
    def blocks(self) -> RemoteBlocks:
        return RemoteBlocks(
            base_addrs=(self.address,), block_bytes=(BLOCK_BYTES,), num_blocks=NUM_BLOCKS
        )

    def block(self, index: int) -> set[int]:
        return set(self.memory[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES])


@dataclass
class Two:
    """An owner, a reader that knows it, and what either of them saw."""

    owner: Side
    reader: Side
    peer: Peer

    def until(self, seen: Callable[[AgentEvent], bool]) -> list[AgentEvent]:
        """Poll both until ``seen`` holds for an event; return all events of both."""
        events: list[AgentEvent] = []
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            new = [*self.owner.agent.poll(), *self.reader.agent.poll()]
            events += new
            if any(map(seen, new)):
                return events
            time.sleep(0.001)
        pytest.fail(f"nothing of that kind within {WITHIN_S} s: {events}")


@pytest.fixture(params=["fake", pytest.param("nixl", marks=pytest.mark.nixl)])
def make_agent(request: pytest.FixtureRequest) -> Callable[[], Agent]:
    network = FakeNetwork()

    def make() -> Agent:
        name = str(uuid.uuid4())
        if request.param == "fake":
            return network.agent(name)
        os.environ.setdefault("UCX_TLS", "tcp,sm,self")
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
        return NixlAgent(name)

    return make


def side(agent: Agent, first: int) -> Side:
    memory = bytearray(b"".join(bytes([first + i]) * BLOCK_BYTES for i in range(NUM_BLOCKS)))
    return Side(agent, memory, agent.register(memoryview(memory), BLOCK_BYTES))


@pytest.fixture
def two(make_agent: Callable[[], Agent]) -> Iterator[Two]:
    owner, reader = side(make_agent(), 10), side(make_agent(), 100)
    peer = reader.agent.add_peer(owner.agent.metadata(), owner.blocks)
    yield Two(owner, reader, peer)
    reader.agent.close()
    owner.agent.close()


def is_end(event: AgentEvent) -> bool:
    return isinstance(event, ReadDone | ReadFailed)


def is_note(event: AgentEvent) -> bool:
    return isinstance(event, Notified)


def test_a_read_copies_pair_by_pair_and_notifies_the_owner(two: Two) -> None:
    transfer = two.reader.agent.read(two.peer, (3, 0), (1, 2), b"done:1")
    events = two.until(is_note)
    if not any(map(is_end, events)):
        events += two.until(is_end)
    (done,) = [each for each in events if isinstance(each, ReadDone)]
    assert (done.transfer, done.num_bytes) == (transfer, 2 * BLOCK_BYTES)
    assert [two.reader.block(index) for index in range(4)] == [{12}, {101}, {102}, {11}]
    assert Notified(b"done:1") in events


def test_a_read_sees_what_the_owner_holds_when_it_moves(two: Two) -> None:
    two.owner.memory[0:BLOCK_BYTES] = b"\xee" * BLOCK_BYTES
    two.reader.agent.read(two.peer, (0,), (0,), b"late:1")
    two.until(is_end)
    assert two.reader.block(0) == {0xEE}


def test_notifications_arrive_in_order_and_once(two: Two) -> None:
    for index in range(5):
        two.reader.agent.notify(two.peer, b"note-%d" % index)
    got: list[bytes] = []
    while len(got) < 5:
        got += [each.payload for each in two.until(is_note) if isinstance(each, Notified)]
    assert got == [b"note-%d" % index for index in range(5)]
    assert two.owner.agent.poll() == ()


def test_a_keeper_without_memory_can_notify(two: Two, make_agent: Callable[[], Agent]) -> None:
    keeper = make_agent()
    peer = keeper.add_peer(two.owner.agent.metadata(), None)
    keeper.notify(peer, b"HB:a")
    deadline = time.monotonic() + WITHIN_S
    got: list[AgentEvent] = []
    while not got and time.monotonic() < deadline:
        keeper.poll()
        got += two.owner.agent.poll()
    assert got == [Notified(b"HB:a")]
    keeper.close()


def test_without_events_a_poll_returns_nothing(two: Two) -> None:
    assert two.owner.agent.poll() == two.reader.agent.poll() == ()


@pytest.mark.parametrize(
    ("local", "remote"), [((0,), (NUM_BLOCKS,)), ((NUM_BLOCKS,), (0,)), ((0,), (-1,)), ((), ())]
)
def test_blocks_that_do_not_exist_are_rejected(
    two: Two, local: tuple[int, ...], remote: tuple[int, ...]
) -> None:
    with pytest.raises(TransferError):
        two.reader.agent.read(two.peer, local, remote, b"x:1")


def test_a_dropped_peer_is_gone(two: Two) -> None:
    two.reader.agent.drop_peer(two.peer)
    with pytest.raises(PeerGoneError):
        two.reader.agent.notify(two.peer, b"x")
    with pytest.raises(PeerGoneError):
        two.reader.agent.read(two.peer, (0,), (0,), b"x:1")


def test_what_is_no_metadata_is_rejected(two: Two) -> None:
    with pytest.raises(TransferError, match="add a peer"):
        two.reader.agent.add_peer(b"neither", None)


def test_memory_is_registered_once_and_in_whole_blocks(make_agent: Callable[[], Agent]) -> None:
    agent, memory = make_agent(), bytearray(BLOCK_BYTES)
    with pytest.raises(TransferError, match="whole blocks"):
        agent.register(memoryview(memory), BLOCK_BYTES + 1)
    agent.register(memoryview(memory), BLOCK_BYTES)
    with pytest.raises(TransferError, match="register once"):
        agent.register(memoryview(memory), BLOCK_BYTES)
    agent.close()
    agent.close()
