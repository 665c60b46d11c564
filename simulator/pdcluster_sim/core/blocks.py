"""The block allocator and its prefix cache.

Pure. Ids only: what blocks hold is the memory's. As in vLLM, block 0 is never given out, freed
blocks keep their name in the cache until they are reused, and the least recently freed is reused
first, a request's last block before its first.

Source:
    vLLM 0.32.0, ``v1/core/block_pool.py`` and ``kv_cache_manager.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["BlockPool"]


class BlockPool:
    """All KV blocks of one engine.

    Args:
        num_blocks: Blocks in memory, block 0 included.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_usable = num_blocks - 1
        # This is all the mutable state.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._users: dict[int, int] = {}
        self._by_hash: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be given out, cached ones included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0 to 1; pinned ones count, cached ones do not."""
        return 1.0 - len(self._free) / self._num_usable

    def cached_prefix(self, hashes: Sequence[bytes]) -> tuple[int, ...]:
        """Return the cached blocks of the longest prefix, without taking them."""
        found: list[int] = []
        for each in hashes:
            block = self._by_hash.get(each)
            if block is None:
                break
            found.append(block)
        return tuple(found)

    def take(self, cached: Iterable[int], num_new: int) -> tuple[int, ...] | None:
        """Use cached blocks and allocate new ones, or change nothing and return None.

        Args:
            cached: From :meth:`cached_prefix`; another request may use them too.
            num_new: Blocks to allocate.

        Returns:
            The new blocks' ids; their old content is forgotten.
        """
        cached = tuple(cached)
        num_revived = sum(block in self._free for block in cached)
        if num_new > len(self._free) - num_revived:
            return None
        for block in cached:
            self._users[block] = self._users.get(block, 0) + 1
            self._free.pop(block, None)
        return tuple(self._allocate() for _ in range(num_new))

    def cache(self, block: int, name: bytes) -> None:
        """Name a full block, so that later prompts find it; the first of equal names stays."""
        if name not in self._by_hash and block not in self._hash_of:
            self._by_hash[name] = block
            self._hash_of[block] = name

    def free(self, blocks: Sequence[int]) -> None:
        """Give up one use of each block; unused ones can be reused, the last ones first."""
        for block in reversed(blocks):
            users = self._users[block] - 1
            if users:
                self._users[block] = users
            else:
                del self._users[block]
                self._free[block] = None

    def _allocate(self) -> int:
        block, _ = self._free.popitem(last=False)
        name = self._hash_of.pop(block, None)
        if name is not None:
            del self._by_hash[name]
        self._users[block] = 1
        return block
