from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.snapshots import member

from pdcluster_cli.up.lifecycle import (
    STEADY_S,
    TRANSITIONS,
    Event,
    Impossible,
    ImpossibleEventError,
    Phase,
    backoff_s,
    next_phase,
)
from pdcluster_cli.up.snapshot import Kind, Stop, observed, probed

IMPOSSIBLE = {
    *((phase, Event.LAUNCHED) for phase in Phase if phase is not Phase.EXITED),
    (Phase.EXITED, Event.SPOKE),
    (Phase.EXITED, Event.ANSWERED),
    (Phase.EXITED, Event.ENDED),
}


def test_every_pair_is_either_a_transition_or_impossible() -> None:
    every = {(phase, event) for phase in Phase for event in Event}
    assert set(TRANSITIONS) == every
    listed = {pair for pair, target in TRANSITIONS.items() if isinstance(target, Impossible)}
    assert listed == IMPOSSIBLE


@pytest.mark.parametrize(("phase", "event"), sorted(IMPOSSIBLE))
def test_what_cannot_happen_is_an_error(phase: Phase, event: Event) -> None:
    with pytest.raises(ImpossibleEventError, match=event):
        next_phase(phase, event)


def test_a_whole_life() -> None:
    phases = [Phase.EXITED]
    for event in (
        Event.LAUNCHED,
        Event.SPOKE,
        Event.ANSWERED,
        Event.TOLD_TO_LEAVE,
        Event.ANSWERED,
        Event.ENDED,
    ):
        phases.append(next_phase(phases[-1], event))
    assert phases[1:] == [
        Phase.STARTING,
        Phase.LOADING,
        Phase.READY,
        Phase.DRAINING,
        Phase.DRAINING,
        Phase.EXITED,
    ]


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_from_wherever_one_is_a_launch_leads_only_through_an_end(events: list[Event]) -> None:
    phase = Phase.STARTING
    for event in events:
        try:
            after = next_phase(phase, event)
        except ImpossibleEventError:
            continue
        if after is Phase.STARTING and phase is not Phase.STARTING:
            assert phase is Phase.EXITED
        if phase is Phase.DRAINING:
            assert after in {Phase.DRAINING, Phase.EXITED}
        phase = after


def test_the_wait_doubles_up_to_a_minute() -> None:
    assert [backoff_s(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff_s(10_000) == 60


# --- members -----------------------------------------------------------------------------------


def test_a_launch_counts_and_clears_the_date() -> None:
    waiting = member(phase=Phase.EXITED, launches=2, launch_at=9.0, missed=3)
    launched = observed(waiting, Event.LAUNCHED, now=10.0)
    assert (launched.phase, launched.launches, launched.launch_at) == (Phase.STARTING, 3, None)
    assert (launched.launched_at, launched.since, launched.missed) == (10.0, 10.0, 0)


def test_the_time_in_a_phase_counts_from_its_beginning() -> None:
    ready = member(since=5.0)
    assert observed(ready, Event.ANSWERED, now=9.0).since == 5.0
    assert observed(ready, Event.TOLD_TO_LEAVE, now=9.0).since == 9.0


def test_a_first_answer_makes_it_ready_for_good() -> None:
    loading = member(phase=Phase.LOADING)
    assert not loading.was_ready
    ready = observed(loading, Event.ANSWERED, now=1.0)
    assert ready.was_ready
    assert observed(ready, Event.ENDED, now=2.0, exit_code=1).was_ready


def test_an_answer_while_draining_does_not_make_it_ready() -> None:
    draining = member(phase=Phase.DRAINING, was_ready=False)
    assert not observed(draining, Event.ANSWERED, now=1.0).was_ready


def test_an_unplanned_end_is_followed_by_a_launch_later_each_time() -> None:
    current = member()
    dates = []
    for _ in range(3):
        current = observed(current, Event.ENDED, now=100.0, exit_code=1)
        assert current.launch_at is not None
        dates.append(current.launch_at - 100.0)
        current = observed(current, Event.LAUNCHED, now=100.0)
    assert dates == [1, 2, 4]
    assert current.failures == 3


def test_a_member_that_served_steadily_begins_again_with_a_short_wait() -> None:
    steady = member(since=0.0, failures=5)
    ended = observed(steady, Event.ENDED, now=STEADY_S, exit_code=1)
    assert (ended.failures, ended.launch_at) == (1, STEADY_S + 1)


@pytest.mark.parametrize(
    ("fields", "phase"),
    [({"wanted": False}, Phase.READY), ({}, Phase.DRAINING)],
)
def test_a_member_on_its_way_out_is_not_launched_again(
    fields: dict[str, object], phase: Phase
) -> None:
    ended = observed(member(phase=phase, **fields), Event.ENDED, now=1.0, exit_code=0)
    assert ended.launch_at is None


def test_an_end_clears_what_belonged_to_the_process() -> None:
    ended = observed(member(stop=Stop.FORCED, pid=7), Event.ENDED, now=1.0, exit_code=137)
    assert (ended.stop, ended.pid, ended.exit_code) == (Stop.NOT, None, 137)
    assert not ended.is_alive


def test_only_one_that_was_never_ready_has_failed_to_start() -> None:
    assert member(phase=Phase.EXITED).has_failed_to_start
    assert not member(phase=Phase.EXITED, was_ready=True).has_failed_to_start
    assert not member(phase=Phase.EXITED, launches=0).has_failed_to_start
    assert not member(phase=Phase.LOADING).has_failed_to_start


def test_failed_probes_are_counted_until_one_succeeds() -> None:
    current = member(Kind.DECODE)
    for _ in range(3):
        current = probed(current, well=False, now=1.0)
    assert (current.missed, current.phase) == (3, Phase.READY)
    assert probed(current, well=True, now=2.0).missed == 0
