"""What blocks hold is a function of the tokens, and the answer a function of what they hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdcluster_sim.core.digests import ROOT, choose, fold, prefix_hash, slots

TOKENS = st.lists(st.integers(0, 50_000), min_size=1, max_size=12)


def content(tokens: list[int], *, slot_bytes: int = 64) -> bytes:
    return slots(ROOT, b"", tokens, slot_bytes=slot_bytes)


@given(TOKENS)
def test_the_same_tokens_give_the_same_bytes(tokens: list[int]) -> None:
    assert content(tokens) == content(list(tokens))


@given(TOKENS, st.integers(1, 11))
def test_it_does_not_matter_in_how_many_pieces_a_block_is_computed(
    tokens: list[int], cut: int
) -> None:
    first, second = tokens[:cut], tokens[cut:]
    begun = slots(ROOT, b"", first, slot_bytes=128)
    rest = slots(ROOT, begun, second, slot_bytes=128)
    assert content(tokens, slot_bytes=128) == begun + rest


@given(TOKENS, st.integers(0, 11), st.integers(1, 1000))
def test_a_slot_depends_on_every_token_up_to_it_and_on_none_after(
    tokens: list[int], at: int, change: int
) -> None:
    at %= len(tokens)
    changed = [*tokens]
    changed[at] += change
    before, after = content(tokens), content(changed)
    assert before[: at * 64] == after[: at * 64]
    for index in range(at, len(tokens)):
        assert before[index * 64 : index * 64 + 64] != after[index * 64 : index * 64 + 64]


def test_a_block_depends_on_the_blocks_before_it() -> None:
    parent = fold(ROOT, content([1, 2, 3]))
    assert slots(parent, b"", [4], slot_bytes=64) != content([4])


@given(st.binary(min_size=1, max_size=300), st.integers(0, 299), st.integers(1, 255))
def test_one_changed_byte_changes_the_fold_and_the_choice(
    block: bytes, at: int, change: int
) -> None:
    at %= len(block)
    spoilt = bytearray(block)
    spoilt[at] ^= change
    assert fold(ROOT, block) != fold(ROOT, bytes(spoilt))
    assert choose(ROOT, block, position=9) != choose(ROOT, bytes(spoilt), position=9)


def test_position_and_choice_change_the_choice() -> None:
    numbers = {
        choose(ROOT, b"kv", position=position, choice=choice)
        for position in range(5)
        for choice in range(5)
    }
    assert len(numbers) == 25


@given(TOKENS, TOKENS)
def test_a_prefix_name_tells_prompts_and_salts_apart(first: list[int], second: list[int]) -> None:
    same = prefix_hash(b"", first) == prefix_hash(b"", second)
    assert same == (first == second)
    assert prefix_hash(b"", first, salt="a") != prefix_hash(b"", first, salt="b")
    assert prefix_hash(prefix_hash(b"", first), second) != prefix_hash(b"", second)


def test_a_slot_is_copies_of_its_digest() -> None:
    assert content([7], slot_bytes=256) == content([7]) * 4
