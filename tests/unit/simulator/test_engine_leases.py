"""P and D over a wire of virtual time: grant, renew, read, release, expire."""

from __future__ import annotations

import pytest
from tests.support.sim_rig import STEP_S, Rig, wired

from pdcluster_lease.engine_params import read_request_params
from pdcluster_lease.lease import Expired, LateRead, Released, Renewed
from pdcluster_lease.params import RequestId
from pdcluster_lease.wire import Heartbeat, TransferComplete
from pdcluster_sim.core.messages import (
    Cancel,
    FinishReason,
    PeerLost,
    ReadBroke,
    RejectUnread,
    SendNote,
    ShakeHands,
    StartRead,
)
from pdcluster_sim.core.results import InvalidParams, LoadFailed, TransferFailed
from pdcluster_sim.errors import EngineDeadError

PROMPT = tuple(range(300, 310))
OTHER = tuple(range(500, 510))
R = RequestId("r")
LEASE = RequestId("lease")


@pytest.fixture
def p() -> Rig:
    return Rig(name="p")


@pytest.fixture
def d(p: Rig) -> Rig:
    rig = Rig(name="d")
    wired(p, rig)
    return rig


def right(prompt: tuple[int, ...] = PROMPT, max_tokens: int = 8) -> tuple[int, ...]:
    return Rig(name="single").complete(prompt, max_tokens=max_tokens)


def together(p: Rig, d: Rig, seconds: float) -> None:
    """Let time pass on both."""
    d.now = p.now = max(p.now, d.now)
    until = p.now + seconds
    while p.now < until:
        p.advance(STEP_S)
        d.advance(STEP_S)


def settle(p: Rig, d: Rig) -> None:
    """Let D shake hands and then do what waited for that, all at one instant."""
    d.advance()
    d.advance()
    p.advance()


# --- P alone --------------------------------------------------------------------------------------


def test_a_grant_pins_the_blocks_and_says_where_they_are(p: Rig) -> None:
    params = p.prefill(PROMPT)
    assert params["remote_block_ids"] == [[1, 2, 3]]
    assert params["remote_num_tokens"] == 10
    assert params["remote_request_id"] == "lease"
    assert params["remote_engine_id"] == "engine-p"
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert p.core.leases == {"lease": [1, 2, 3]}
    assert p.usage == pytest.approx(3 / 31)
    assert p.core.is_busy


def test_an_unread_lease_ends_after_its_duration_and_never_earlier(p: Rig) -> None:
    p.prefill(PROMPT)
    granted_at = p.now
    p.run_for(6.0 - 2 * STEP_S)
    assert p.usage > 0
    p.run_for(3 * STEP_S)
    assert p.usage == 0.0
    assert p.now - granted_at >= 6.0
    assert p.noticed(Expired) == [Expired(LEASE, 0)]
    assert not p.core.is_busy


def test_the_next_look_at_an_engine_that_only_holds_a_lease_is_at_its_end(p: Rig) -> None:
    p.prefill(PROMPT)
    p.advance()
    assert p.next_at is not None
    assert p.next_at - p.now == pytest.approx(6.0, abs=2 * STEP_S)


def test_heartbeats_hold_a_lease(p: Rig) -> None:
    p.prefill(PROMPT)
    for _ in range(20):
        p.handle(Heartbeat((LEASE,)))
        p.run_for(1.0)
        assert p.usage > 0
    assert p.noticed(Renewed)
    p.run_for(4.0)
    assert p.usage == 0.0


def test_a_completion_releases_at_once(p: Rig) -> None:
    p.prefill(PROMPT)
    p.handle(TransferComplete(LEASE))
    p.advance()
    assert p.usage == 0.0
    assert p.noticed(Released) == [Released(LEASE, 1)]
    p.handle(TransferComplete(LEASE))
    p.advance()
    assert p.noticed(LateRead) == [LateRead(LEASE)]


def test_an_aborted_prefill_grants_nothing(p: Rig) -> None:
    p.submit(PROMPT, max_tokens=50, params={"do_remote_decode": True})
    p.run_until(lambda: len(p.tokens(R)) == 3)
    p.cancel()
    p.advance()
    assert p.usage == 0.0
    assert p.last(R).params is None


def test_a_prefill_that_ends_by_itself_grants_too(p: Rig) -> None:
    # The first word of an answer never ends it, but a stop token may.
    (first,) = Rig().complete(PROMPT, max_tokens=1)
    p.submit(
        PROMPT, max_tokens=9, stop_token_ids=frozenset({first}), params={"do_remote_decode": True}
    )
    p.run_until(lambda: p.is_over(R))
    assert p.finish() is FinishReason.STOP
    assert p.last(R).params is not None


def test_leased_blocks_are_not_given_to_others() -> None:
    p = Rig(name="p", num_blocks=5)
    p.prefill(PROMPT)
    p.submit(OTHER, name="other", max_tokens=1)
    p.run_for(5.0)
    assert not p.is_over(RequestId("other"))
    p.run_until(lambda: p.is_over(RequestId("other")))
    assert p.noticed(Expired)


def test_a_prefix_found_in_ps_cache_is_reported(p: Rig) -> None:
    p.complete(PROMPT, name="before", max_tokens=1)
    assert p.prefill(PROMPT)["remote_prefill_cached_tokens"] == 8


# --- P and D --------------------------------------------------------------------------------------


def test_two_engines_answer_like_one(p: Rig, d: Rig) -> None:
    params = p.prefill(PROMPT)
    assert right() == d.complete(PROMPT, max_tokens=8, params=params)
    last = d.last(R)
    assert (last.num_cached_tokens, last.num_external_tokens) == (0, 10)
    p.advance()
    assert p.usage == 0.0
    assert p.noticed(Released)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 12, 13, 40])
def test_every_prompt_length_is_handed_over_right(p: Rig, d: Rig, length: int) -> None:
    prompt = tuple(range(300, 300 + length))
    params = p.prefill(prompt)
    assert right(prompt) == d.complete(prompt, max_tokens=8, params=params)
    assert d.usage == 0.0


def test_a_cached_prefix_on_d_is_not_read(p: Rig, d: Rig) -> None:
    d.complete(PROMPT, name="before", max_tokens=1)
    params = p.prefill(PROMPT)
    assert right() == d.complete(PROMPT, max_tokens=8, params=params)
    (read,) = [each for each in d.effects if isinstance(each, StartRead)]
    assert len(read.remote) == 1
    assert read.remote[0] == params["remote_block_ids"][0][-1]  # type: ignore[index]  # a list


def test_another_prompts_blocks_give_another_answer(p: Rig, d: Rig) -> None:
    params = p.prefill(OTHER)
    assert right() != d.complete(PROMPT, max_tokens=8, params=params)


def test_one_spoilt_byte_of_a_remote_block_changes_the_answer(p: Rig, d: Rig) -> None:
    params = p.prefill(PROMPT)
    p.memory.content[2 * p.memory.block_bytes + 70] ^= 1
    assert right() != d.complete(PROMPT, max_tokens=8, params=params)


def test_d_shakes_hands_once_for_many_reads(p: Rig, d: Rig) -> None:
    for name in "abc":
        d.complete(PROMPT, name=name, max_tokens=1, params=p.prefill(PROMPT, name=f"l{name}"))
    assert len([each for each in d.effects if isinstance(each, ShakeHands)]) == 1


def test_a_lost_peer_is_met_anew(p: Rig, d: Rig) -> None:
    d.complete(PROMPT, name="a", max_tokens=1, params=p.prefill(PROMPT))
    d.handle(PeerLost(p.engine_id))
    d.complete(OTHER, name="b", max_tokens=1, params=p.prefill(OTHER, name="l2"))
    assert len([each for each in d.effects if isinstance(each, ShakeHands)]) == 2


def test_a_slow_transfer_delays_the_answer(p: Rig) -> None:
    num_bytes = 3 * p.memory.block_bytes
    d = Rig(name="d", transfer_gbps=num_bytes * 8 / 1e9 / 2.0)
    wired(p, d)
    params = p.prefill(PROMPT)
    d.now = p.now
    started_at = d.now
    d.complete(PROMPT, max_tokens=1, params=params)
    assert d.now - started_at == pytest.approx(2.0, abs=5 * STEP_S)


def test_while_a_read_stands_still_others_run_and_its_blocks_stay_taken(p: Rig, d: Rig) -> None:
    d.holds_reads = True
    d.submit(PROMPT, params=p.prefill(PROMPT))
    d.advance()
    gauges = d.core.gauges()
    assert (gauges.num_deferred, gauges.num_fetching, gauges.num_running) == (1, 1, 0)
    d.complete(OTHER, name="other", max_tokens=3)
    assert d.usage == pytest.approx(3 / 31)
    d.let_reads_arrive()
    d.run_until(lambda: d.is_over(R))


# --- renewing -------------------------------------------------------------------------------------


def queued(p: Rig, *, recomputes: bool = False) -> Rig:
    """Return a D that is busy with one long request, one more queued with P's lease."""
    d = Rig(name="d", max_num_seqs=1, num_blocks=2000, recomputes=recomputes)
    wired(p, d)
    d.now = p.now
    d.submit(OTHER, name="long", max_tokens=100_000)
    d.advance()
    d.submit(PROMPT, params=p.prefill(PROMPT), max_tokens=8)
    return d


def test_a_queued_request_renews_its_lease_for_as_long_as_it_waits(p: Rig) -> None:
    d = queued(p)
    together(p, d, 30.0)
    assert p.usage > 0
    assert not p.noticed(Expired)
    d.cancel("long")
    d.run_until(lambda: d.is_over(R))
    assert right() == d.tokens(R)
    p.advance()
    assert p.usage == 0.0


def test_beats_come_once_per_interval(p: Rig) -> None:
    d = queued(p)
    together(p, d, 10.0)
    beats = [each for each in d.effects if isinstance(each, SendNote) and each.is_heartbeat]
    # The first one was spent on the handshake.
    assert 9 <= len(beats) <= 10
    assert {each.payload for each in beats} == {b"HB:lease"}


def test_without_tp_size_nothing_is_renewed(p: Rig) -> None:
    d = Rig(name="d", max_num_seqs=1, num_blocks=2000)
    wired(p, d)
    d.submit(OTHER, name="long", max_tokens=100_000)
    params = {name: value for name, value in p.prefill(PROMPT).items() if name != "tp_size"}
    d.submit(PROMPT, params=params)
    together(p, d, 7.0)
    assert p.noticed(Expired)
    assert d.core.gauges().num_tracked == 0


def test_no_beat_leaves_while_a_step_runs(p: Rig) -> None:
    d = Rig(name="d", max_num_seqs=1, num_blocks=2000, step_s=20.0)
    wired(p, d)
    d.now = p.now
    d.submit(OTHER, name="long", max_tokens=10)
    d.advance()
    d.submit(PROMPT, params=p.prefill(PROMPT))
    together(p, d, 10.0)
    assert not [each for each in d.effects if isinstance(each, SendNote)]
    assert p.noticed(Expired)


def test_renewing_stops_when_the_blocks_have_arrived(p: Rig, d: Rig) -> None:
    d.complete(PROMPT, max_tokens=1, params=p.prefill(PROMPT))
    assert d.core.gauges().num_tracked == 0


def test_a_late_read_is_a_wrong_answer_and_poisons_the_prefix_cache(p: Rig) -> None:
    p = Rig(name="p", num_blocks=8)
    d = Rig(name="d")
    wired(p, d)
    params = p.prefill(PROMPT)
    p.run_for(7.0)
    assert p.noticed(Expired)
    for index in range(6):
        p.complete(tuple(range(600 + 20 * index, 612 + 20 * index)), name=f"o{index}", max_tokens=1)
    wrong = d.complete(PROMPT, max_tokens=8, params=params)
    assert d.finish() is FinishReason.LENGTH
    assert right() != wrong
    p.advance()
    assert p.noticed(LateRead) == [LateRead(LEASE)]
    assert right() != d.complete(PROMPT, name="again", max_tokens=8)


# --- leaving --------------------------------------------------------------------------------------


def test_a_client_that_leaves_while_queued_releases_the_lease(p: Rig) -> None:
    d = queued(p)
    together(p, d, 2.0)
    d.cancel()
    d.advance()
    p.advance()
    assert p.usage == 0.0
    assert not p.noticed(Expired)
    assert d.finish() is FinishReason.ABORT


def test_a_client_that_leaves_before_hands_were_shaken_releases_the_lease(p: Rig) -> None:
    d = queued(p)
    d.cancel()
    settle(p, d)
    assert p.usage == 0.0


def test_a_client_that_leaves_while_reading_frees_both_sides_when_the_read_is_over(
    p: Rig, d: Rig
) -> None:
    d.holds_reads = True
    d.submit(PROMPT, params=p.prefill(PROMPT))
    d.advance()
    d.cancel()
    d.advance()
    # A read cannot be called back: freed now, the blocks could be given to another request.
    assert d.usage > 0
    d.let_reads_arrive()
    d.advance()
    p.advance()
    assert (d.usage, p.usage) == (0.0, 0.0)
    assert d.finish() is FinishReason.ABORT


def test_a_request_rejected_before_the_engine_releases_its_lease(p: Rig, d: Rig) -> None:
    d.handle(RejectUnread(read_request_params(p.prefill(PROMPT))))
    settle(p, d)
    assert p.usage == 0.0


def test_a_rejected_prefill_request_releases_nothing(d: Rig) -> None:
    d.handle(RejectUnread(read_request_params({"do_remote_decode": True})))
    d.advance()
    assert d.effects == []


# --- failing to load ------------------------------------------------------------------------------


def broken(p: Rig, *, recomputes: bool) -> Rig:
    """Return a D that cannot reach P, with one request that wants P's blocks."""
    d = Rig(name="d", recomputes=recomputes)
    d.submit(PROMPT, params=p.prefill(PROMPT), max_tokens=8)
    return d


def test_the_policy_fail_fails_the_request(p: Rig) -> None:
    d = broken(p, recomputes=False)
    d.run_until(lambda: d.is_over(R))
    assert d.finish() is FinishReason.ERROR
    assert d.tokens(R) == ()
    assert d.usage == 0.0
    assert d.core.gauges().num_tracked == 0
    kinds = [each.kind for each in d.notices if isinstance(each, TransferFailed)]
    assert sorted(kinds) == ["handshake_failed", "handshake_setup_failed"]
    assert d.noticed(LoadFailed) == [LoadFailed(R, "fail", 10)]


def test_the_policy_recompute_prefills_locally(p: Rig) -> None:
    d = broken(p, recomputes=True)
    d.run_until(lambda: d.is_over(R))
    assert right() == d.tokens(R)
    assert d.last(R).num_external_tokens == 0
    assert d.noticed(LoadFailed) == [LoadFailed(R, "recompute", 10)]


@pytest.mark.parametrize("recomputes", [True, False])
def test_a_read_that_breaks_follows_the_policy(p: Rig, recomputes: bool) -> None:
    d = Rig(name="d", recomputes=recomputes, holds_reads=True)
    wired(p, d)
    d.submit(PROMPT, params=p.prefill(PROMPT), max_tokens=8)
    d.advance()
    d.handle(ReadBroke(R, "transfer_failed", "the peer is gone"))
    d.run_until(lambda: d.is_over(R))
    assert d.finish() is (FinishReason.LENGTH if recomputes else FinishReason.ERROR)
    assert d.tokens(R) == (right() if recomputes else ())
    assert d.usage == 0.0


def test_a_read_that_breaks_after_the_client_left_is_over(p: Rig) -> None:
    d = Rig(name="d", recomputes=True, holds_reads=True)
    wired(p, d)
    d.submit(PROMPT, params=p.prefill(PROMPT))
    d.advance()
    d.cancel()
    d.handle(ReadBroke(R, "transfer_failed", "the peer is gone"))
    d.advance()
    assert d.finish() is FinishReason.ABORT
    assert d.usage == 0.0


def test_a_failed_handshake_is_tried_again_by_the_next_request(p: Rig) -> None:
    d = Rig(name="d")
    d.submit(PROMPT, name="a", params=p.prefill(PROMPT))
    d.run_until(lambda: d.is_over(RequestId("a")))
    wired(p, d)
    assert right(OTHER) == d.complete(
        OTHER, name="b", max_tokens=8, params=p.prefill(OTHER, name="l2")
    )


# --- malformed params -----------------------------------------------------------------------------


def without(params: dict[str, object], field: str) -> dict[str, object]:
    return {name: value for name, value in params.items() if name != field}


def test_params_without_blocks_end_the_engine_as_they_end_vllms(p: Rig, d: Rig) -> None:
    d.submit(PROMPT, params=without(p.prefill(PROMPT), "remote_block_ids"))
    with pytest.raises(EngineDeadError, match="remote_block_ids"):
        d.advance()


@pytest.mark.parametrize(
    "field", ["remote_request_id", "remote_engine_id", "remote_host", "remote_port"]
)
def test_params_without_an_owner_hang_and_end_the_engine_when_the_client_leaves(
    p: Rig, d: Rig, field: str
) -> None:
    d.submit(PROMPT, params=without(p.prefill(PROMPT), field))
    d.run_for(5.0)
    assert d.outputs == []
    assert d.noticed(InvalidParams) == [InvalidParams(R)]
    with pytest.raises(EngineDeadError, match="KeyError"):
        d.handle(Cancel(R))


def test_a_drain_is_over_when_requests_and_leases_are(p: Rig) -> None:
    p.prefill(PROMPT)
    p.submit(OTHER, name="running", max_tokens=1000)
    p.advance()
    p.core.abort_all(now=p.now)
    p.advance()
    assert p.core.is_busy  # the lease is still there for D to read
    p.handle(TransferComplete(LEASE))
    p.advance()
    assert not p.core.is_busy
