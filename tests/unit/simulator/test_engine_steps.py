"""Steps of one engine: who runs, how long it takes, what is chosen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.sim_rig import BLOCK_SIZE, PREFILL_TOKENS_PER_S, STEP_S, Rig, wired

from pdcluster_lease.params import RequestId
from pdcluster_sim.core.messages import FinishReason
from pdcluster_sim.core.results import Preempted, PrefixLookup
from pdcluster_sim.core.tokens import END_TOKEN

PROMPT = tuple(range(300, 310))  # two full blocks and a half
R = RequestId("r")


def test_the_first_token_comes_after_the_prefill_and_a_step() -> None:
    rig = Rig()
    rig.submit(PROMPT, max_tokens=3)
    rig.advance()
    expected = STEP_S + (len(PROMPT) - 1) / PREFILL_TOKENS_PER_S
    assert rig.next_at == pytest.approx(rig.now + expected)
    rig.advance(expected - 0.0001)
    assert rig.outputs == []
    rig.advance(0.0002)
    assert [len(each.tokens) for each in rig.outputs] == [1]
    assert rig.outputs[0].is_first


def test_each_further_token_takes_a_step() -> None:
    rig = Rig()
    rig.complete(PROMPT, max_tokens=5)
    stats = rig.last(R).stats
    assert stats is not None
    assert stats.num_output_tokens == 5
    assert rig.finish() is FinishReason.LENGTH
    gaps = [each.gap_s for each in rig.outputs]
    assert gaps[0] is None
    assert all(gap is not None and gap > STEP_S * 0.999 for gap in gaps[1:])


def test_an_idle_engine_waits_for_input_alone() -> None:
    rig = Rig()
    rig.advance()
    assert rig.next_at is None
    rig.complete(PROMPT, max_tokens=1)
    rig.advance()
    assert rig.next_at is None
    assert not rig.core.is_busy


def test_the_answer_is_the_same_every_time_and_another_for_another_prompt() -> None:
    first = Rig().complete(PROMPT, max_tokens=12)
    assert first == Rig(name="other").complete(PROMPT, max_tokens=12)
    assert first != Rig().complete((*PROMPT[:-1], 999), max_tokens=12)
    assert first != Rig().complete((999, *PROMPT[1:]), max_tokens=12)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(300, 900), min_size=1, max_size=40).map(tuple),
    st.integers(1, 60),
    st.booleans(),
)
def test_the_answer_does_not_depend_on_how_it_was_computed(
    prompt: tuple[int, ...], budget: int, cached: bool
) -> None:
    plain = Rig(prefix_caching=False).complete(prompt, max_tokens=10)
    chunked = Rig(max_num_batched_tokens=budget, prefix_caching=cached)
    assert plain == chunked.complete(prompt, name="a", max_tokens=10)
    # Once more, now with a prefix in the cache.
    assert plain == chunked.complete(prompt, name="b", max_tokens=10)


def test_a_spoilt_byte_in_memory_changes_the_answer() -> None:
    right = Rig().complete(PROMPT, max_tokens=12)
    rig = Rig()
    rig.complete(PROMPT, name="first", max_tokens=1)
    # The first block holds the prompt's beginning and is found again by its name.
    rig.memory.content[1 * rig.memory.block_bytes + 5] ^= 1
    assert right != rig.complete(PROMPT, name="second", max_tokens=12)


def test_a_cached_prefix_is_not_computed_again() -> None:
    rig = Rig()
    rig.complete(PROMPT, name="first", max_tokens=1)
    rig.notices.clear()
    rig.complete(PROMPT, name="second", max_tokens=1)
    assert rig.noticed(PrefixLookup) == [PrefixLookup(10, 8, 0, False)]
    assert rig.last(RequestId("second")).num_cached_tokens == 8


def test_at_least_one_token_is_always_computed() -> None:
    rig = Rig()
    prompt = tuple(range(300, 300 + 2 * BLOCK_SIZE))
    rig.complete(prompt, name="first", max_tokens=1)
    rig.notices.clear()
    rig.complete(prompt, name="second", max_tokens=1)
    assert rig.noticed(PrefixLookup) == [PrefixLookup(8, 4, 0, False)]


def test_another_salt_finds_no_prefix() -> None:
    rig = Rig()
    rig.complete(PROMPT, name="first", max_tokens=1, cache_salt="a")
    rig.notices.clear()
    rig.complete(PROMPT, name="second", max_tokens=1, cache_salt="b")
    assert rig.noticed(PrefixLookup) == [PrefixLookup(10, 0, 0, False)]


def test_no_more_run_than_the_limit_and_the_rest_waits_its_turn() -> None:
    rig = Rig(max_num_seqs=2)
    for name in "abc":
        rig.submit(PROMPT, name=name, max_tokens=3)
    rig.advance()
    gauges = rig.core.gauges()
    assert (gauges.num_running, gauges.num_waiting) == (2, 1)
    rig.run_until(lambda: rig.is_over(RequestId("c")))
    ends = [each.request_id for each in rig.outputs if each.finish is not None]
    assert ends == ["a", "b", "c"]


def test_requests_of_one_step_get_their_tokens_together() -> None:
    rig = Rig()
    rig.submit(PROMPT, name="a", max_tokens=2)
    rig.submit((*PROMPT, 5), name="b", max_tokens=2)
    rig.run_until(lambda: rig.is_over(RequestId("b")))
    assert [each.request_id for each in rig.outputs] == ["a", "b", "a", "b"]


def test_a_long_prompt_is_computed_in_chunks_beside_others() -> None:
    rig = Rig(max_num_batched_tokens=8)
    rig.submit(tuple(range(300, 336)), name="long", max_tokens=1)
    rig.submit(PROMPT[:3], name="short", max_tokens=1)
    rig.run_until(lambda: rig.is_over(RequestId("long")))
    # Four chunks of eight and one of four: only there is room for the other one.
    assert [each.request_id for each in rig.outputs] == ["long", "short"]


def test_without_a_free_block_the_last_one_gives_way_and_still_answers_right() -> None:
    plain = Rig().complete(PROMPT, max_tokens=20)
    rig = Rig(num_blocks=11, prefix_caching=False)
    rig.submit(PROMPT, name="a", max_tokens=20)
    rig.submit(PROMPT, name="b", max_tokens=20)
    rig.run_until(lambda: rig.is_over(RequestId("b")))
    assert rig.noticed(Preempted)
    assert plain == rig.tokens(RequestId("a")) == rig.tokens(RequestId("b"))
    stats = rig.last(RequestId("b")).stats
    assert stats is not None
    assert stats.num_preemptions > 0
    assert rig.usage == 0.0


def test_a_request_that_gave_way_to_a_lease_runs_again_when_that_ends() -> None:
    # A lease pins what the only running request needs: it gives its own blocks up, and nobody
    # else is there to wake the engine.
    plain = Rig().complete(PROMPT, max_tokens=20)
    rig = Rig(num_blocks=8, prefix_caching=False)
    rig.prefill(PROMPT[::-1])
    rig.submit(PROMPT, max_tokens=12)
    rig.advance()
    while not rig.is_over(R):
        assert rig.next_at is not None
        rig.advance(max(0.0, rig.next_at - rig.now))
    assert len(rig.noticed(Preempted)) == 1
    assert plain[:12] == rig.tokens(R)


def test_a_request_that_does_not_fit_yet_waits() -> None:
    rig = Rig(num_blocks=5)
    rig.submit(PROMPT, name="a", max_tokens=4)
    rig.submit(PROMPT[::-1], name="b", max_tokens=1)
    rig.advance()
    assert rig.core.gauges().num_waiting == 1
    rig.run_until(lambda: rig.is_over(RequestId("b")))
    assert rig.usage == 0.0


def test_a_client_that_leaves_frees_its_blocks_at_once() -> None:
    rig = Rig()
    rig.submit(PROMPT, max_tokens=100)
    rig.run_until(lambda: len(rig.tokens(R)) == 5)
    assert rig.usage > 0
    rig.cancel()
    rig.advance()
    assert rig.usage == 0.0
    assert rig.finish() is FinishReason.ABORT
    rig.cancel()
    rig.advance()


def test_a_client_may_leave_while_a_step_runs() -> None:
    rig = Rig()
    rig.submit(PROMPT, name="a", max_tokens=100)
    rig.submit(PROMPT, name="b", max_tokens=3)
    rig.advance()
    rig.cancel("a")
    rig.run_until(lambda: rig.is_over(RequestId("b")))
    assert rig.tokens(RequestId("a")) == ()
    assert Rig().complete(PROMPT, max_tokens=3) == rig.tokens(RequestId("b"))


def test_an_answer_ends_by_itself_unless_it_must_not() -> None:
    rig = Rig(num_blocks=200)
    tokens = rig.complete(PROMPT, max_tokens=500, ignore_eos=False)
    assert rig.finish() is FinishReason.STOP
    assert tokens[-1] == END_TOKEN
    assert END_TOKEN not in tokens[:-1]
    longer = Rig(num_blocks=200).complete(PROMPT, max_tokens=500, ignore_eos=True)
    assert len(longer) == 500
    assert END_TOKEN not in longer


def test_min_tokens_keeps_the_end_away() -> None:
    short = Rig(num_blocks=200).complete(PROMPT, max_tokens=300, ignore_eos=False)
    rig = Rig(num_blocks=200)
    tokens = rig.complete(PROMPT, max_tokens=300, ignore_eos=False, min_tokens=len(short) + 5)
    assert len(tokens) > len(short) + 5


def test_a_stop_token_ends_the_answer() -> None:
    tokens = Rig().complete(PROMPT, max_tokens=12)
    stop = tokens[4]
    rig = Rig()
    stopped = rig.complete(PROMPT, max_tokens=12, stop_token_ids=frozenset({stop}))
    assert stopped == tokens[: tokens.index(stop) + 1]
    assert rig.finish() is FinishReason.STOP


def test_another_choice_is_another_answer() -> None:
    answers = {Rig().complete(PROMPT, max_tokens=12, choice=choice) for choice in range(4)}
    assert len(answers) == 4


def test_figures_add_up_at_the_end() -> None:
    rig = Rig()
    rig.complete(PROMPT, max_tokens=3)
    stats = rig.last(R).stats
    assert stats is not None
    assert stats.scheduled_at is not None
    assert stats.first_token_at is not None
    assert stats.last_token_at is not None
    assert stats.arrived_at <= stats.scheduled_at < stats.first_token_at < stats.last_token_at
    assert stats.last_token_at == stats.ended_at
    assert (stats.num_prompt_tokens, stats.num_output_tokens, stats.max_tokens) == (10, 3, 3)


# --- blocks that two want -------------------------------------------------------------------------


def look(rig: Rig) -> bool:
    """Look when the core asks for it; False where it asks for input."""
    if not rig.has_input:
        if rig.next_at is None:
            return False
        rig.now = max(rig.now, rig.next_at)
    rig.advance()
    return True


@pytest.mark.parametrize("num_looks", range(1, 14))
def test_whose_blocks_have_arrived_does_not_wait_for_one_that_needs_them(num_looks: int) -> None:
    # Of seven blocks two are read into, and the longer one outgrows the other five: it gives its
    # own up and stands at the queue's head again, before the one that could go on. The blocks
    # arrive before that, in the very pass, or later.
    p, d = Rig(name="p"), Rig(name="d", num_blocks=8, holds_reads=True)
    wired(p, d)
    params = p.prefill(tuple(range(300, 308)))
    d.now = p.now
    d.submit(tuple(range(400, 416)), name="long", max_tokens=8)
    d.submit(tuple(range(300, 308)), name="read", max_tokens=2, params=params)
    for _ in range(num_looks):
        look(d)
    d.holds_reads = False
    d.let_reads_arrive()
    for _ in range(500):
        assert not d.core.is_busy or look(d), "an engine with work waits for input"
    assert (d.finish("read"), d.finish("long")) == (FinishReason.LENGTH, FinishReason.LENGTH)
    assert d.usage == 0.0
