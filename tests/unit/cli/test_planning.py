from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.snapshots import member, snapshot

from pdcluster_cli.up.lifecycle import Event, Phase
from pdcluster_cli.up.planning import (
    Action,
    Drain,
    Forget,
    Kill,
    KillReason,
    Launch,
    Terminate,
    plan,
)
from pdcluster_cli.up.snapshot import (
    Ending,
    Kind,
    Member,
    Snapshot,
    Stop,
    endpoints_of,
    is_ready,
    observed,
)

PROXY = member(Kind.PROXY, name="proxy")
PREFILL = member(Kind.PREFILL, name="prefill-0")
DECODE = member(Kind.DECODE, name="decode-0")
SERVING = snapshot(PREFILL, DECODE, PROXY)


def old(kind: Kind, phase: Phase = Phase.READY, **fields: object) -> Member:
    given: dict[str, object] = {"name": f"old-{kind}", "identity": "old", "wanted": False}
    return member(kind, phase, **given | fields)


def test_a_cluster_that_serves_is_left_alone() -> None:
    assert plan(SERVING, now=1e6) == ()


def test_planning_on_the_outcome_of_a_finished_plan_gives_nothing() -> None:
    assert plan(snapshot(), now=0) == ()


def test_what_is_due_is_launched_and_what_is_not_waits() -> None:
    waiting = member(phase=Phase.EXITED, launch_at=10.0)
    assert plan(snapshot(waiting), now=9.9) == ()
    assert plan(snapshot(waiting), now=10.0) == (Launch("prefill-0"),)


def test_what_uses_up_its_startup_budget_is_killed() -> None:
    loading = member(phase=Phase.LOADING, launched_at=100.0, since=101.0)
    budget = loading.program.probes.startup.budget_s
    assert plan(snapshot(loading), now=100.0 + budget - 1) == ()
    assert plan(snapshot(loading), now=100.0 + budget) == (Kill("prefill-0", KillReason.OVERDUE),)


def test_what_has_stopped_answering_is_killed_once() -> None:
    failures = PREFILL.program.probes.liveness.failures
    silent = replace(PREFILL, missed=failures)
    assert plan(snapshot(silent), now=0) == (Kill("prefill-0", KillReason.SILENT),)
    assert plan(snapshot(replace(silent, missed=failures - 1)), now=0) == ()
    assert plan(snapshot(replace(silent, stop=Stop.FORCED)), now=0) == ()


# --- a change ----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.EXITED, Phase.STARTING, Phase.LOADING])
def test_the_old_stay_until_all_that_is_wanted_serves(phase: Phase) -> None:
    loading = member(Kind.DECODE, phase, name="decode-0", launched_at=0.0)
    current = snapshot(old(Kind.PREFILL), old(Kind.DECODE), PREFILL, loading, PROXY)
    assert plan(current, now=1.0) == ()


def test_an_old_prefill_engine_is_drained_then_stopped_then_forgotten() -> None:
    leaving = old(Kind.PREFILL)
    assert plan(snapshot(leaving, *SERVING.members), now=0) == (Drain("old-prefill"),)
    draining = replace(leaving, phase=Phase.DRAINING, since=10.0)
    assert plan(snapshot(draining, *SERVING.members), now=14.9) == ()
    assert plan(snapshot(draining, *SERVING.members), now=15.0) == (Terminate("old-prefill"),)
    asked = replace(draining, stop=Stop.ASKED)
    assert plan(snapshot(asked, *SERVING.members), now=99.0) == ()
    gone = replace(asked, phase=Phase.EXITED, stop=Stop.NOT)
    assert plan(snapshot(gone, *SERVING.members), now=99.0) == (Forget("old-prefill"),)


def test_an_old_decode_engine_stays_as_long_as_an_old_prefill_engine_lives() -> None:
    current = snapshot(
        old(Kind.DECODE), old(Kind.PREFILL, Phase.DRAINING, since=0.0), *SERVING.members
    )
    assert plan(current, now=1.0) == ()
    alone = snapshot(old(Kind.DECODE), *SERVING.members)
    assert plan(alone, now=1.0) == (Drain("old-decode"),)


def test_a_decode_engine_too_many_leaves_at_once_since_its_like_stay() -> None:
    extra = old(Kind.DECODE, identity="one")
    current = snapshot(extra, old(Kind.PREFILL, identity="one"), *SERVING.members)
    assert plan(current, now=0) == (Drain("old-decode"), Drain("old-prefill"))


def test_an_old_proxy_is_stopped_without_draining_first() -> None:
    assert plan(snapshot(old(Kind.PROXY), *SERVING.members), now=0) == (Terminate("old-proxy"),)


def test_what_is_no_longer_wanted_and_never_served_is_killed() -> None:
    loading = old(Kind.PREFILL, Phase.LOADING)
    assert plan(snapshot(loading), now=0) == (Kill("old-prefill", KillReason.NEVER_SERVED),)
    assert plan(snapshot(replace(loading, stop=Stop.FORCED)), now=0) == ()


def test_what_is_no_longer_wanted_and_has_ended_is_forgotten() -> None:
    assert plan(snapshot(old(Kind.DECODE, Phase.EXITED)), now=0) == (Forget("old-decode"),)


# --- the end -----------------------------------------------------------------------------------


def ending(*members: Member, how: Ending = Ending.DRAINING) -> Snapshot:
    return snapshot(*members, ending=how)


def test_the_proxy_leaves_first_then_prefill_then_decode() -> None:
    assert plan(ending(PREFILL, DECODE, PROXY), now=0) == (Terminate("proxy"),)
    gone = replace(PROXY, phase=Phase.EXITED)
    assert plan(ending(PREFILL, DECODE, gone), now=0) == (Terminate("prefill-0"),)
    without = replace(PREFILL, phase=Phase.EXITED)
    assert plan(ending(without, DECODE, gone), now=0) == (Terminate("decode-0"),)
    assert plan(ending(without, replace(DECODE, phase=Phase.EXITED), gone), now=0) == ()


def test_nobody_is_asked_twice() -> None:
    asked = replace(PROXY, phase=Phase.DRAINING, stop=Stop.ASKED)
    assert plan(ending(PREFILL, DECODE, asked), now=0) == ()


def test_what_still_loads_is_killed_since_it_holds_nothing() -> None:
    loading = member(Kind.DECODE, Phase.LOADING, name="decode-0")
    assert plan(ending(PREFILL, loading, PROXY), now=0) == (
        Kill("decode-0", KillReason.NEVER_SERVED),
        Terminate("proxy"),
    )


def test_nothing_is_launched_while_ending() -> None:
    due = member(phase=Phase.EXITED, launch_at=0.0)
    assert plan(ending(due), now=100.0) == ()


def test_in_a_hurry_all_are_killed_even_those_that_were_asked() -> None:
    asked = replace(PROXY, stop=Stop.ASKED)
    killed = replace(DECODE, stop=Stop.FORCED)
    assert plan(ending(PREFILL, killed, asked, how=Ending.AT_ONCE), now=0) == (
        Kill("prefill-0", KillReason.AT_ONCE),
        Kill("proxy", KillReason.AT_ONCE),
    )


# --- readiness and endpoints ---------------------------------------------------------------------


def test_a_cluster_is_ready_when_all_that_is_wanted_serves() -> None:
    assert is_ready(SERVING)
    assert is_ready(snapshot(*SERVING.members, old(Kind.PREFILL, Phase.DRAINING)))
    assert not is_ready(snapshot(*SERVING.members, member(phase=Phase.LOADING, name="prefill-1")))
    assert not is_ready(snapshot())
    killed = member(Kind.DECODE, name="decode-0", stop=Stop.FORCED)
    assert not is_ready(SERVING.with_member(killed))


def test_the_proxy_is_told_of_engines_that_serve_and_of_those_that_drain() -> None:
    current = snapshot(
        PREFILL,
        old(Kind.DECODE, Phase.DRAINING),
        member(Kind.DECODE, Phase.LOADING, name="loading"),
        member(Kind.DECODE, Phase.EXITED, name="ended", was_ready=True),
        # It answered a probe that was under way when it was killed.
        old(Kind.PREFILL, stop=Stop.FORCED),
        PROXY,
    )
    found = {endpoint.name: endpoint.draining for endpoint in endpoints_of(current).endpoints}
    assert found == {"prefill-0": False, "old-decode": True}


# --- any snapshot --------------------------------------------------------------------------------

MEMBERS = st.builds(
    member,
    st.sampled_from(Kind),
    st.sampled_from(Phase),
    identity=st.sampled_from(["one", "old"]),
    wanted=st.booleans(),
    since=st.floats(0, 100),
    launched_at=st.floats(0, 100),
    launch_at=st.none() | st.floats(0, 100),
    missed=st.integers(0, 10),
    stop=st.sampled_from(Stop),
)


def possible(one: Member) -> Member:
    """Make what was drawn a state that can come about."""
    if one.is_alive:
        return replace(one, launch_at=None)
    # An ended member that is wanted always has a date for its next launch.
    date = (one.launch_at or 0.0) if one.wanted else None
    return replace(one, launch_at=date, stop=Stop.NOT, pid=None)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    drawn = draw(st.lists(MEMBERS, max_size=6))
    named = [possible(replace(one, name=f"m{index}")) for index, one in enumerate(drawn)]
    return snapshot(*named, ending=draw(st.sampled_from(Ending)))


@given(current=snapshots(), now=st.floats(0, 1e5))
def test_a_plan_is_total_and_acts_on_each_member_once(current: Snapshot, now: float) -> None:
    actions = plan(current, now=now)
    names = [action.name for action in actions]
    assert len(set(names)) == len(names)
    for action in actions:
        target = current.member(action.name)
        assert target is not None
        if isinstance(action, Launch | Forget):
            assert not target.is_alive
        else:
            assert target.is_alive
        if isinstance(action, Drain | Forget):
            assert not target.wanted


def carried_out(current: Snapshot, action: Action, now: float) -> Snapshot:
    """Return the snapshot after an action, as the shell would observe it at its best."""
    target = current.member(action.name)
    assert target is not None
    match action:
        case Launch():
            target = observed(target, Event.LAUNCHED, now=now)
            return current.with_member(observed(target, Event.ANSWERED, now=now))
        case Drain():
            return current.with_member(observed(target, Event.TOLD_TO_LEAVE, now=now))
        case Terminate() | Kill():
            return current.with_member(observed(target, Event.ENDED, now=now, exit_code=0))
        case Forget():
            left = tuple(one for one in current.members if one.name != action.name)
            return replace(current, members=left)


@given(current=snapshots(), cut=st.integers(0, 40))
def test_whenever_it_is_cut_planning_again_leads_to_the_same_end(
    current: Snapshot, cut: int
) -> None:
    """What was asked to stop before the cut is taken to have ended by then."""
    asked = [one for one in current.members if one.is_alive and one.stop is not Stop.NOT]
    for one in asked:
        current = current.with_member(observed(one, Event.ENDED, now=100.0, exit_code=0))
    loading = [one for one in current.members if one.phase in {Phase.STARTING, Phase.LOADING}]
    for one in loading:
        current = current.with_member(observed(one, Event.ANSWERED, now=100.0))
    now, done = 200.0, 0
    for _ in range(200):
        actions = plan(current, now=now)
        if not actions:
            now += 100.0
            actions = plan(current, now=now)
        if not actions:
            break
        for action in actions:
            current = carried_out(current, action, now)
            done += 1
            if done == cut:
                break
    assert plan(current, now=now + 1000.0) == ()
    if current.ending is not Ending.NOT:
        assert not any(one.is_alive for one in current.members)
    else:
        launchable = [one for one in current.members if one.wanted and one.launch_at is not None]
        assert launchable == []
        if is_ready(current):
            assert all(one.wanted for one in current.members)


@given(current=snapshots(), now=st.floats(0, 1e5))
def test_a_prefill_engine_never_loses_its_last_decode_engine_before_it_has_left(
    current: Snapshot, now: float
) -> None:
    lives = any(
        one.kind is Kind.PREFILL and one.is_alive and not one.wanted for one in current.members
    )
    if current.ending is not Ending.NOT or not lives:
        return
    for action in plan(current, now=now):
        target = current.member(action.name)
        assert target is not None
        if isinstance(action, Drain | Terminate) and target.kind is Kind.DECODE:
            assert any(one.wanted and one.identity == target.identity for one in current.members)
