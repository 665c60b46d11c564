"""The block allocator: nothing is given out twice, and the prefix cache never lies about names."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pdcluster_sim.core.blocks import BlockPool

NUM_BLOCKS = 9


def test_block_zero_is_never_given_out() -> None:
    pool = BlockPool(4)
    assert pool.take((), 3) == (1, 2, 3)
    assert pool.take((), 1) is None
    assert pool.usage == 1.0


def test_usage_counts_what_is_in_use_and_not_what_is_cached() -> None:
    pool = BlockPool(5)
    taken = pool.take((), 2)
    assert taken is not None
    pool.cache(taken[0], b"name")
    assert pool.usage == 0.5
    pool.free(taken)
    assert pool.usage == 0.0
    assert pool.cached_prefix([b"name"]) == (taken[0],)


def test_a_failed_allocation_changes_nothing() -> None:
    pool = BlockPool(4)
    first = pool.take((), 2)
    assert first is not None
    pool.cache(first[0], b"a")
    pool.free(first)
    pool.take((), 2)
    before = pool.num_free
    # The cached block would be revived, which leaves one less for the new ones.
    assert pool.take(pool.cached_prefix([b"a"]), 2) is None
    assert before == pool.num_free


def test_the_last_block_of_a_request_is_reused_before_its_first() -> None:
    pool = BlockPool(4)
    taken = pool.take((), 3)
    assert taken == (1, 2, 3)
    pool.free(taken)
    assert pool.take((), 1) == (3,)


def test_a_reused_block_loses_its_name() -> None:
    pool = BlockPool(2)
    taken = pool.take((), 1)
    assert taken is not None
    pool.cache(taken[0], b"old")
    pool.free(taken)
    pool.take((), 1)
    assert pool.cached_prefix([b"old"]) == ()


def test_a_prefix_ends_at_the_first_miss() -> None:
    pool = BlockPool(5)
    taken = pool.take((), 3)
    assert taken is not None
    for block, name in zip(taken, (b"a", b"b", b"c"), strict=True):
        pool.cache(block, name)
    assert pool.cached_prefix([b"a", b"x", b"c"]) == (taken[0],)
    assert pool.cached_prefix([b"a", b"b", b"c", b"d"]) == taken


def test_of_equal_names_the_first_block_stays() -> None:
    pool = BlockPool(5)
    taken = pool.take((), 2)
    assert taken is not None
    pool.cache(taken[0], b"same")
    pool.cache(taken[1], b"same")
    assert pool.cached_prefix([b"same"]) == (taken[0],)


class PoolModel(RuleBasedStateMachine):
    """Requests that take, name, share and free blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.requests: list[tuple[int, ...]] = []
        self.names: dict[bytes, int] = {}
        self.count = 0

    @rule(num_new=st.integers(0, 4), wanted=st.integers(0, 3))
    def take(self, num_new: int, wanted: int) -> None:
        hits = self.pool.cached_prefix(sorted(self.names)[:wanted])
        used = {block for blocks in self.requests for block in blocks}
        revived = len(set(hits) - used)
        new = self.pool.take(hits, num_new)
        assert (new is None) == (num_new > NUM_BLOCKS - 1 - len(used) - revived)
        if new is not None:
            assert not used.intersection(new)
            assert not set(hits).intersection(new)
            self.requests.append((*hits, *new))
            self.names = {name: each for name, each in self.names.items() if each not in new}

    @rule(which=st.integers(0, 20))
    def free(self, which: int) -> None:
        if self.requests:
            self.pool.free(self.requests.pop(which % len(self.requests)))

    @rule(which=st.integers(0, 20))
    def name(self, which: int) -> None:
        used = sorted({block for blocks in self.requests for block in blocks})
        if not used:
            return
        block = used[which % len(used)]
        self.count += 1
        name = b"n%06d" % self.count
        self.pool.cache(block, name)
        if block not in self.names.values():
            self.names[name] = block

    @invariant()
    def free_and_used_add_up(self) -> None:
        used = {block for blocks in self.requests for block in blocks}
        assert self.pool.num_free == NUM_BLOCKS - 1 - len(used)

    @invariant()
    def every_name_finds_its_block(self) -> None:
        for name, block in self.names.items():
            assert self.pool.cached_prefix([name]) == (block,)


PoolModel.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestPoolModel = PoolModel.TestCase
