"""What KV blocks hold, and how an answer follows from it.

Pure. Every token's slot is a digest of what stands before it, so that a block's bytes are a
function of the tokens it holds and of all tokens before them, as real KV is. The next token is a
function of the bytes in memory, never of the prompt: a block that holds something else gives
another answer.

Chain. ``parent`` of block k is the fold of the contents of blocks 0 to k-1. The first slot of a
block is derived from its parent, each following one from the slot before it. Whether a block was
computed here, found in the prefix cache or read from a peer makes no difference, as long as its
bytes are right; if they are wrong, everything computed after them is wrong too.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NewType

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ROOT", "SLOT_BYTES_MIN", "Digest", "choose", "fold", "prefix_hash", "slots"]

Digest = NewType("Digest", bytes)
"""16 bytes that stand for some content and all that precedes it."""

_DIGEST_BYTES: Final = 16
SLOT_BYTES_MIN: Final = 64
"""Bytes of one token's digest; a slot is a whole number of copies of it."""

ROOT: Final = Digest(blake2b(b"pdcluster-sim", digest_size=_DIGEST_BYTES).digest())
"""The parent of the first block."""


def slots(parent: Digest, before: bytes, tokens: Sequence[int], *, slot_bytes: int) -> bytes:
    """Compute the slots of consecutive tokens of one block.

    Args:
        parent: The fold of all blocks before this one.
        before: What the block already holds in memory; empty at its start.
        tokens: The tokens to append.
        slot_bytes: Bytes per token, a multiple of 64.

    Returns:
        ``len(tokens) * slot_bytes`` bytes.
    """
    last = before[-SLOT_BYTES_MIN:] if before else parent
    copies = slot_bytes // SLOT_BYTES_MIN
    computed = []
    for token in tokens:
        # One compression: 72 bytes fit in a block, a keyed hash would take two.
        last = blake2b(last + token.to_bytes(8), digest_size=SLOT_BYTES_MIN).digest()
        computed.append(last * copies)
    return b"".join(computed)


def fold(parent: Digest, content: bytes) -> Digest:
    """Return the parent of the block after one that holds ``content``."""
    return Digest(blake2b(content, key=parent, digest_size=_DIGEST_BYTES).digest())


def choose(parent: Digest, partial: bytes, *, position: int, choice: int = 0) -> int:
    """Return a 64-bit number from all KV before ``position``, from which the next token follows.

    Args:
        parent: The fold of all full blocks.
        partial: What the last, not yet full block holds; empty where there is none.
        position: Index of the token to choose, counted from the prompt's start.
        choice: Which of several answers to one prompt (``n``).
    """
    person = position.to_bytes(8) + choice.to_bytes(8)
    return int.from_bytes(blake2b(partial, key=parent, person=person, digest_size=8).digest())


def prefix_hash(parent: bytes, tokens: Sequence[int], *, salt: str = "") -> bytes:
    """Name a full block by its tokens and all before them: the prefix cache's key.

    It is a function of the prompt, not of memory, so a block with wrong bytes is found again under
    the right name. That is how a late read poisons the prefix cache.

    Args:
        parent: The hash of the block before, empty for the first.
        tokens: The block's tokens.
        salt: The request's ``cache_salt``; separates tenants.
    """
    digest = blake2b(salt.encode(), key=parent, digest_size=_DIGEST_BYTES)
    digest.update(b"".join(token.to_bytes(4) for token in tokens))
    return digest.digest()
