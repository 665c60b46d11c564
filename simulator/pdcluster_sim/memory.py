"""The engine's KV memory: one buffer that NIXL registers and peers read.

Shell, and deliberately without any check of who reads or writes: a late read sees whatever is
there.
"""

from __future__ import annotations

import numpy as np

__all__ = ["KVMemory"]


class KVMemory:
    """KV blocks in host memory.

    Args:
        num_blocks: Blocks, block 0 included.
        block_size: Tokens per block.
        slot_bytes: Bytes per token.
    """

    def __init__(self, *, num_blocks: int, block_size: int, slot_bytes: int) -> None:
        self.block_size = block_size
        self.slot_bytes = slot_bytes
        self.block_bytes = block_size * slot_bytes
        # numpy's zeros are not touched until they are written: an idle engine stays small.
        self._array = np.zeros(num_blocks * self.block_bytes, dtype=np.uint8)
        self.view = self._array.data

    def read(self, block: int, start: int, stop: int) -> bytes:
        """Return slots ``start`` to ``stop``, exclusive, of a block."""
        base = block * self.block_bytes
        return bytes(self.view[base + start * self.slot_bytes : base + stop * self.slot_bytes])

    def write(self, block: int, start: int, content: bytes) -> None:
        """Write whole slots from ``start`` on."""
        at = block * self.block_bytes + start * self.slot_bytes
        self.view[at : at + len(content)] = content

    def spoil(self, block: int, offset: int) -> None:
        """Change one byte, as a stray write would."""
        self.view[block * self.block_bytes + offset] ^= 0xFF
