"""One request inside the engine: its tokens, its blocks, and the KV they hold.

Pure, given a memory. A sequence computes KV into blocks and its next token out of them; it never
looks at the prompt to choose a token.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from pdcluster_sim.core.digests import ROOT, Digest, choose, fold, prefix_hash, slots
from pdcluster_sim.core.tokens import END_TOKEN, next_token

if TYPE_CHECKING:
    from pdcluster_sim.core.messages import EngineRequest

__all__ = ["BlockMemory", "Sequence", "SequenceState"]


class BlockMemory(Protocol):
    """The engine's KV memory, cut into blocks."""

    @property
    def block_size(self) -> int:
        """Tokens per block."""

    @property
    def slot_bytes(self) -> int:
        """Bytes per token."""

    def read(self, block: int, start: int, stop: int) -> bytes:
        """Return the slots ``start`` to ``stop``, exclusive, of one block, whoever wrote them."""

    def write(self, block: int, start: int, content: bytes) -> None:
        """Write whole slots from ``start`` on."""


class SequenceState(StrEnum):
    """Where a request stands in the scheduler."""

    WAITING = "waiting"
    READING = "reading"
    """Its blocks are allocated and a peer's are being read into them."""
    RECEIVED = "received"
    """The blocks have arrived; it waits to run."""
    RUNNING = "running"
    ENDED = "ended"


class Sequence:
    """One request's tokens and blocks.

    Args:
        request: What was asked.
        arrived_at: Monotonic seconds.
    """

    __slots__ = (
        "_hashes",
        "_parents",
        "arrived_at",
        "blocks",
        "first_token_at",
        "last_token_at",
        "num_cached",
        "num_computed",
        "num_external",
        "num_preemptions",
        "reads_remote",
        "request",
        "scheduled_at",
        "state",
        "tokens",
        "was_cancelled",
    )

    def __init__(self, request: EngineRequest, *, arrived_at: float) -> None:
        self.request = request
        self.arrived_at = arrived_at
        # All that follows is the mutable state of one request; the scheduler owns it.
        self.tokens = list(request.prompt)
        self.blocks: list[int] = []
        self.num_computed = 0
        self.num_cached = 0
        self.num_external = 0
        self.num_preemptions = 0
        self.state = SequenceState.WAITING
        self.reads_remote = request.kv is not None and request.kv.do_remote_prefill
        self.was_cancelled = False
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self._parents: list[Digest] = [ROOT]
        self._hashes: list[bytes] = []

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_missing(self) -> int:
        """Tokens whose KV is not computed yet; one of them even where all of the prompt's is."""
        return len(self.tokens) - self.num_computed

    def block_hashes(self, block_size: int, num_tokens: int) -> list[bytes]:
        """Return the prefix-cache names of all full blocks of the first ``num_tokens`` tokens."""
        num_full = num_tokens // block_size
        while len(self._hashes) < num_full:
            start = len(self._hashes) * block_size
            parent = self._hashes[-1] if self._hashes else b""
            tokens = self.tokens[start : start + block_size]
            self._hashes.append(prefix_hash(parent, tokens, salt=self.request.cache_salt))
        return self._hashes[:num_full]

    def compute(self, memory: BlockMemory, num_tokens: int) -> None:
        """Compute the KV of the next ``num_tokens`` tokens into the blocks."""
        until = self.num_computed + num_tokens
        while self.num_computed < until:
            index, offset = divmod(self.num_computed, memory.block_size)
            count = min(until - self.num_computed, memory.block_size - offset)
            block = self.blocks[index]
            before = memory.read(block, offset - 1, offset) if offset else b""
            tokens = self.tokens[self.num_computed : self.num_computed + count]
            parent = self._parent(memory, index)
            memory.write(block, offset, slots(parent, before, tokens, slot_bytes=memory.slot_bytes))
            self.num_computed += count

    def choose_token(self, memory: BlockMemory) -> int:
        """Choose the next token from what the blocks hold."""
        position = len(self.tokens)
        index, offset = divmod(position, memory.block_size)
        partial = memory.read(self.blocks[index], 0, offset) if offset else b""
        number = choose(
            self._parent(memory, index), partial, position=position, choice=self.request.choice
        )
        may_end = not self.request.ignore_eos and self.num_output >= self.request.min_tokens
        return next_token(number, previous=self.tokens[-1], may_end=may_end)

    def is_complete_by(self, token: int) -> bool:
        """Say whether this token, the last one chosen, ends the answer by itself."""
        request = self.request
        if self.num_output <= request.min_tokens:
            return False
        return token in request.stop_token_ids or (token == END_TOKEN and not request.ignore_eos)

    def give_up_blocks(self) -> list[int]:
        """Take all blocks from it; whatever was computed has to be computed again."""
        blocks, self.blocks = self.blocks, []
        self.num_computed = 0
        self._parents = [ROOT]
        return blocks

    def _parent(self, memory: BlockMemory, index: int) -> Digest:
        """Fold the blocks before ``index``, by what memory holds; each is folded once."""
        while len(self._parents) <= index:
            full = len(self._parents) - 1
            content = memory.read(self.blocks[full], 0, memory.block_size)
            self._parents.append(fold(self._parents[full], content))
        return self._parents[index]
