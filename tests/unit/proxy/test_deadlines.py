"""How long each wait of an exchange may take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_proxy.core.deadlines import (
    DECODE_WAIT_S,
    answer_until,
    decode_wait_s,
    is_over,
    left_s,
    leg_until,
)


@pytest.mark.parametrize(
    ("now", "deadline_at", "first_byte_s", "expected"),
    [
        (10.0, 600.0, 20.0, 30.0),  # The bound is nearer.
        (590.0, 600.0, 20.0, 600.0),  # The request's deadline is nearer.
        (600.0, 600.0, 20.0, 600.0),
        (601.0, 600.0, 20.0, 601.0),  # Nothing is left, and never less than nothing.
    ],
)
def test_a_leg_must_begin_to_answer_by_the_nearer_bound(
    now: float, deadline_at: float, first_byte_s: float, expected: float
) -> None:
    assert expected == leg_until(now, deadline_at=deadline_at, first_byte_s=first_byte_s)


@pytest.mark.parametrize(("until", "now", "expected"), [(5.0, 3.0, 2.0), (5.0, 5.0, 0.0)])
def test_what_is_left_runs_out_at_its_instant(until: float, now: float, expected: float) -> None:
    assert expected == left_s(until, now)


def test_what_is_left_is_never_negative() -> None:
    assert 0.0 == left_s(5.0, 9.0)


@pytest.mark.parametrize(("now", "over"), [(599.9, False), (599.995, True), (600.0, True)])
def test_a_timer_that_strikes_a_little_early_struck_for_the_deadline(
    now: float, over: bool
) -> None:
    assert over is is_over(600.0, now)


@given(st.lists(st.floats(0, 5), max_size=10))
def test_waits_of_one_leg_never_add_up_beyond_its_instant(waits: list[float]) -> None:
    until, now = leg_until(0.0, deadline_at=600.0, first_byte_s=8.0), 0.0
    for wanted in waits:
        now += min(wanted, left_s(until, now))
    assert now <= until + 1e-9


@pytest.mark.parametrize(
    ("now", "until", "clock_start", "expected"),
    [
        (10.0, 30.0, None, (30.0, False)),  # Without a lease there is nothing to hold.
        (10.0, 30.0, 5.0, (30.0, False)),
        (10.0, 500.0, 5.0, (125.0, True)),
        (10.0, 125.0, 5.0, (125.0, False)),  # The engine's own bound wins a tie.
        (130.0, 150.0, 5.0, (130.0, True)),  # The hold bound has passed already.
    ],
)
def test_an_answer_must_begin_within_the_hold_bound_too(
    now: float, until: float, clock_start: float | None, expected: tuple[float, bool]
) -> None:
    assert expected == answer_until(now, leg_until=until, clock_start=clock_start, max_hold_s=120.0)


@pytest.mark.parametrize(
    ("now", "longest_hand_off_s", "expected"),
    [
        (100.0, 23.0, DECODE_WAIT_S),
        (122.9, 23.0, pytest.approx(0.1)),
        (123.0, 23.0, None),  # At the deadline itself nobody is waited for any more.
        (124.0, 23.0, None),
        (219.0, None, DECODE_WAIT_S),  # A lease that is renewed: the hold bound ends it.
        (220.0, None, None),
        (219.0, 500.0, DECODE_WAIT_S),
        (220.0, 500.0, None),
    ],
)
def test_a_decode_engine_is_waited_for_as_long_as_a_hand_off_may_come(
    now: float, longest_hand_off_s: float | None, expected: float | None
) -> None:
    assert expected == decode_wait_s(
        now, clock_start=100.0, longest_hand_off_s=longest_hand_off_s, max_hold_s=120.0
    )
