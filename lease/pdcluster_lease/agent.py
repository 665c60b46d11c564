"""The port to whatever moves KV and notifications between engines.

Pure: types and a protocol only. NIXL implements it (``nixl_agent.py``); tests use a fake held under
the same contract. An agent belongs to one thread, and :meth:`Agent.poll` is the only progress there
is: while the owner does not poll, a peer's read of its memory stands still.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Agent",
    "AgentEvent",
    "BlockId",
    "Notified",
    "Peer",
    "ReadDone",
    "ReadFailed",
    "RemoteBlocks",
    "TransferId",
]

BlockId: TypeAlias = int

Peer = NewType("Peer", int)
"""Names one added peer; never reused within an agent's life."""

TransferId = NewType("TransferId", int)
"""Names one read; never reused within an agent's life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBlocks:
    """A peer's registered memory.

    Attributes:
        base_addrs: First byte of each region in the peer's address space.
        block_bytes: Bytes per block, one figure per region.
        num_blocks: Blocks per region.
        device_id: The peer's device of that memory; 0 for host memory.
    """

    base_addrs: tuple[int, ...]
    block_bytes: tuple[int, ...]
    num_blocks: int
    device_id: int = 0


@dataclass(frozen=True, slots=True)
class Notified:
    """A peer sent a notification, alone or with its read."""

    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDone:
    """All bytes of one read have arrived.

    Attributes:
        transfer: Which read.
        num_bytes: Bytes moved.
        num_descriptors: Contiguous pieces they were moved in.
        post_s: Seconds spent posting.
        transfer_s: Seconds from posting to completion.
    """

    transfer: TransferId
    num_bytes: int
    num_descriptors: int
    post_s: float
    transfer_s: float


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """One read will never complete; the local blocks hold anything."""

    transfer: TransferId
    reason: str


AgentEvent: TypeAlias = Notified | ReadDone | ReadFailed


class Agent(Protocol):
    """One NIXL agent, owned by one thread."""

    def register(self, memory: memoryview, block_bytes: int) -> int:
        """Register writable memory, cut into blocks of ``block_bytes``, and return its address.

        May be called once; an agent without memory can still renew and release.

        Args:
            memory: Writable and contiguous; it must live as long as the agent.
            block_bytes: Bytes per block; the memory's length is a multiple of it.

        Returns:
            The first byte's address in this process.

        Raises:
            TransferError: Memory is registered already, or it is not whole blocks.
        """

    def metadata(self) -> bytes:
        """Describe this agent and its memory for a peer; changes once memory is registered.

        Raises:
            TransferError: NIXL cannot describe it.
        """

    def add_peer(self, metadata: bytes, remote: RemoteBlocks | None) -> Peer:
        """Add a peer from its handshake; without ``remote`` only notifications can be sent.

        Raises:
            TransferError: The metadata is not what NIXL accepts.
        """

    def drop_peer(self, peer: Peer) -> None:
        """Forget a peer; reads from it fail. One that is not known is no error."""

    def read(
        self, peer: Peer, local: Sequence[BlockId], remote: Sequence[BlockId], note: bytes
    ) -> TransferId:
        """Start to copy the peer's blocks into ours, pair by pair, and notify it when done.

        Args:
            peer: From :meth:`add_peer` with its blocks.
            local: Ids of our blocks, at least one.
            remote: As many ids of the peer's blocks.
            note: What the peer is told once all bytes have arrived.

        Raises:
            PeerGoneError: The peer is known to be gone.
            TransferError: Anything else, for example a block id out of range.
        """

    def notify(self, peer: Peer, payload: bytes) -> None:
        """Send a notification; nothing comes back, not even from a peer that ignores it.

        Raises:
            PeerGoneError: The peer is gone: drop it and shake hands anew.
            TransferError: Anything else.
        """

    def poll(self) -> tuple[AgentEvent, ...]:
        """Make progress and return what happened since the last call.

        Raises:
            TransferError: NIXL cannot be asked.
        """

    def close(self) -> None:
        """Release everything; idempotent."""
