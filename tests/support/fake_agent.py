"""An agent port in one process, without NIXL: memories that read each other when polled.

It keeps NIXL's manners, and a contract suite holds it to them: nothing moves but in ``poll``; a
read needs both sides' polls; a late read sees whatever is there; a peer that is gone is noticed
when it is next used; a notification for a read arrives after its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from pdcluster_lease.agent import (
    Agent,
    AgentEvent,
    BlockId,
    Notified,
    Peer,
    ReadDone,
    ReadFailed,
    RemoteBlocks,
    TransferId,
)
from pdcluster_lease.errors import PeerGoneError, TransferError


@dataclass
class FakeNetwork:
    """All agents that can reach one another."""

    agents: dict[bytes, FakeAgent] = field(default_factory=dict)

    def agent(self, name: str) -> FakeAgent:
        """Make an agent."""
        made = FakeAgent(self, name.encode())
        self.agents[name.encode()] = made
        return made


@dataclass
class _Read:
    owner: FakeAgent
    local: tuple[int, ...]
    remote: tuple[int, ...]
    note: bytes


class FakeAgent(Agent):
    """One agent of a :class:`FakeNetwork`."""

    def __init__(self, network: FakeNetwork, name: bytes) -> None:
        self.network = network
        self.name = name
        self.memory: memoryview | None = None
        self.block_bytes = 0
        self.is_gone = False
        self._next_id = 0
        self._peers: dict[Peer, tuple[FakeAgent, int]] = {}
        self._reads: dict[TransferId, _Read] = {}
        self._waiting: list[tuple[FakeAgent, TransferId]] = []
        self._arrived: list[bytes] = []
        self._events: list[AgentEvent] = []

    @override
    def register(self, memory: memoryview, block_bytes: int) -> int:
        if self.memory is not None or block_bytes <= 0 or memory.nbytes % block_bytes:
            raise TransferError("cannot register: register once, whole blocks only")
        self.memory, self.block_bytes = memory, block_bytes
        return 4096

    @override
    def metadata(self) -> bytes:
        return b"fake:" + self.name

    @override
    def add_peer(self, metadata: bytes, remote: RemoteBlocks | None) -> Peer:
        agent = self.network.agents.get(metadata.removeprefix(b"fake:"))
        if agent is None or not metadata.startswith(b"fake:"):
            raise TransferError("cannot add a peer: not its metadata")
        self._next_id += 1
        peer = Peer(self._next_id)
        self._peers[peer] = (agent, 0 if remote is None else remote.num_blocks)
        return peer

    @override
    def drop_peer(self, peer: Peer) -> None:
        dropped = self._peers.pop(peer, None)
        if dropped is None:
            return
        for transfer, read in tuple(self._reads.items()):
            if read.owner is dropped[0]:
                del self._reads[transfer]
                self._events.append(ReadFailed(transfer, "the peer was dropped"))

    @override
    def read(
        self, peer: Peer, local: Sequence[BlockId], remote: Sequence[BlockId], note: bytes
    ) -> TransferId:
        owner, num_blocks = self._peer(peer)
        assert self.memory is not None
        num_local = self.memory.nbytes // self.block_bytes
        if not local or len(local) != len(remote):
            raise TransferError("cannot read")
        if min((*local, *remote)) < 0 or max(local) >= num_local or max(remote) >= num_blocks:
            raise TransferError("a block id is out of range")
        self._next_id += 1
        transfer = TransferId(self._next_id)
        self._reads[transfer] = _Read(owner, tuple(local), tuple(remote), note)
        owner._waiting.append((self, transfer))
        return transfer

    @override
    def notify(self, peer: Peer, payload: bytes) -> None:
        owner, _ = self._peer(peer)
        owner._arrived.append(payload)

    @override
    def poll(self) -> tuple[AgentEvent, ...]:
        for transfer, read in tuple(self._reads.items()):
            if read.owner.is_gone:
                del self._reads[transfer]
                self._events.append(ReadFailed(transfer, "the peer is gone"))
        # Peers' reads of this memory move now, and only now.
        waiting, self._waiting = self._waiting, []
        for reader, transfer in waiting:
            reader._copy(transfer)
        arrived, self._arrived = self._arrived, []
        events, self._events = self._events, []
        return (*(Notified(payload) for payload in arrived), *events)

    @override
    def close(self) -> None:
        self.is_gone = True
        self.network.agents.pop(self.name, None)

    def _peer(self, peer: Peer) -> tuple[FakeAgent, int]:
        known = self._peers.get(peer)
        if known is None or known[0].is_gone:
            raise PeerGoneError("the peer is gone")
        return known

    def _copy(self, transfer: TransferId) -> None:
        read = self._reads.pop(transfer, None)
        if read is None:
            return
        assert self.memory is not None
        assert read.owner.memory is not None
        size = self.block_bytes
        for local, remote in zip(read.local, read.remote, strict=True):
            content = read.owner.memory[remote * size : (remote + 1) * size]
            self.memory[local * size : (local + 1) * size] = content
        read.owner._arrived.append(read.note)
        self._events.append(
            ReadDone(
                transfer=transfer,
                num_bytes=len(read.local) * size,
                num_descriptors=len(read.local),
                post_s=0.0,
                transfer_s=0.0,
            )
        )
