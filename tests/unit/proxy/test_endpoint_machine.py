"""When an engine is left out of the pool, and when it returns."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_proxy.core.endpoint import (
    DISCOVERED,
    FIRST_EJECTION_S,
    LONGEST_EJECTION_S,
    TABLE,
    UPSTREAM_FAILURES_TO_EJECT,
    EndpointEvent,
    EndpointStatus,
    may_eject,
    step,
)
from pdcluster_proxy.core.messages import EndpointState

E = EndpointEvent
UNPROVEN, READY, EJECTED = EndpointState.UNPROVEN, EndpointState.READY, EndpointState.EJECTED
DRAINING, GONE = EndpointState.DRAINING, EndpointState.GONE


def run(
    *events: EndpointEvent, status: EndpointStatus | None = None, now: float = 0.0
) -> EndpointStatus:
    current = status or EndpointStatus()
    for event in events:
        current = step(current, event, now=now)
    return current


def test_the_table_has_every_pair() -> None:
    assert set(itertools.product(EndpointState, EndpointEvent)) == set(TABLE)


def test_one_failed_connect_ejects_until_a_check_passes() -> None:
    ejected = run(E.FAILED_LOCALLY)
    assert EJECTED is ejected.state
    assert EJECTED is step(ejected, E.TICK, now=1e6).state
    returned = step(ejected, E.CHECK_PASSED, now=1.0)
    assert (READY, True) == (returned.state, returned.on_probation)


def test_a_new_endpoint_serves_with_its_first_passed_check_and_without_probation() -> None:
    assert UNPROVEN is DISCOVERED.state
    assert EndpointStatus() == step(DISCOVERED, E.CHECK_PASSED, now=1.0)
    assert READY is run(E.CHECK_PASSED, E.FAILED_UPSTREAM, status=DISCOVERED).state


@pytest.mark.parametrize("event", [e for e in E if e not in {E.CHECK_PASSED, E.DELETED, E.DRAIN}])
def test_nothing_but_a_passed_check_proves_a_new_endpoint(event: EndpointEvent) -> None:
    assert DISCOVERED == step(DISCOVERED, event, now=1e6)


def test_a_new_endpoint_that_drains_is_never_ready() -> None:
    draining = step(DISCOVERED, E.DRAIN, now=0.0)
    assert DRAINING is draining.state
    assert DISCOVERED == step(draining, E.UNDRAIN, now=1.0)
    proven = step(draining, E.CHECK_PASSED, now=1.0)
    assert DRAINING is proven.state
    assert EndpointStatus() == step(proven, E.UNDRAIN, now=1.0)


def test_bad_answers_eject_only_in_a_row() -> None:
    failures = [E.FAILED_UPSTREAM] * (UPSTREAM_FAILURES_TO_EJECT - 1)
    assert READY is run(*failures, E.SUCCEEDED, *failures).state
    assert EJECTED is run(*failures, E.FAILED_UPSTREAM).state


def test_a_passed_check_does_not_answer_bad_answers() -> None:
    ejected = run(*[E.FAILED_UPSTREAM] * UPSTREAM_FAILURES_TO_EJECT)
    assert EJECTED is step(ejected, E.CHECK_PASSED, now=0.1).state
    assert EJECTED is step(ejected, E.TICK, now=FIRST_EJECTION_S - 0.01).state
    assert READY is step(ejected, E.TICK, now=FIRST_EJECTION_S).state


def test_who_fails_on_probation_is_out_again_and_longer() -> None:
    once = run(*[E.FAILED_UPSTREAM] * UPSTREAM_FAILURES_TO_EJECT)
    back = step(once, E.TICK, now=FIRST_EJECTION_S)
    twice = step(back, E.FAILED_UPSTREAM, now=10.0)
    assert (EJECTED, 10.0 + 2 * FIRST_EJECTION_S) == (twice.state, twice.until)


def test_no_ejection_lasts_longer_than_ten_seconds() -> None:
    status, now = EndpointStatus(), 0.0
    for _ in range(8):
        while status.state is READY:
            status = step(status, E.FAILED_UPSTREAM, now=now)
        assert status.until is not None
        assert status.until - now <= LONGEST_EJECTION_S
        now = status.until
        status = step(status, E.TICK, now=now)


def test_a_good_answer_clears_the_record() -> None:
    back = run(*[E.FAILED_UPSTREAM] * UPSTREAM_FAILURES_TO_EJECT)
    back = step(back, E.TICK, now=100.0)
    assert EndpointStatus() == step(back, E.SUCCEEDED, now=101.0)


@pytest.mark.parametrize("before", [UNPROVEN, READY, EJECTED])
def test_who_drains_takes_no_work_whatever_it_was_before(before: EndpointState) -> None:
    status = step(EndpointStatus(state=before), E.DRAIN, now=0.0)
    for event in [e for e in E if e not in {E.UNDRAIN, E.DELETED}]:
        assert DRAINING is step(status, event, now=1e6).state
        status = step(status, event, now=1e6)


def test_who_need_not_go_after_all_goes_on_where_it_would_be() -> None:
    assert READY is run(E.DRAIN, E.UNDRAIN).state
    assert EJECTED is run(E.FAILED_LOCALLY, E.DRAIN, E.UNDRAIN).state
    assert READY is run(E.FAILED_LOCALLY, E.DRAIN, E.CHECK_PASSED, E.UNDRAIN).state
    assert READY is run(E.FAILED_LOCALLY, E.DRAIN, E.UNDRAIN, E.CHECK_PASSED).state
    bad = run(*[E.FAILED_UPSTREAM] * UPSTREAM_FAILURES_TO_EJECT, E.DRAIN)
    assert EJECTED is run(E.TICK, E.UNDRAIN, status=bad, now=FIRST_EJECTION_S - 0.01).state
    assert READY is run(E.TICK, E.UNDRAIN, status=bad, now=FIRST_EJECTION_S).state


@pytest.mark.parametrize("event", list(EndpointEvent))
def test_who_is_gone_hears_nothing(event: EndpointEvent) -> None:
    gone = run(E.DELETED)
    assert GONE is gone.state
    assert gone == step(gone, event, now=5.0)


def test_without_permission_failures_are_only_counted() -> None:
    status = EndpointStatus()
    for _ in range(10):
        status = step(status, E.FAILED_UPSTREAM, now=0.0, ejection_allowed=False)
        status = step(status, E.FAILED_LOCALLY, now=0.0, ejection_allowed=False)
    assert READY is status.state


@pytest.mark.parametrize(
    ("states", "allowed"),
    [
        ({"a": READY}, False),
        ({"a": READY, "b": READY}, True),
        ({"a": READY, "b": EJECTED}, False),
        ({"a": READY, "b": READY, "c": EJECTED}, False),
        ({"a": READY, "b": READY, "c": READY, "d": EJECTED}, True),
        ({"a": READY, "b": DRAINING}, False),
        ({"a": READY, "b": READY, "c": GONE}, True),
        ({"a": READY, "b": READY, "c": UNPROVEN, "d": UNPROVEN}, True),
        ({"a": READY, "b": UNPROVEN}, False),
        ({"a": READY, "b": UNPROVEN, "c": UNPROVEN, "d": UNPROVEN}, False),
    ],
)
def test_never_more_than_half_of_those_that_serve_is_ejected(
    states: dict[str, EndpointState], allowed: bool
) -> None:
    assert allowed is may_eject(states, "a")


@given(
    st.lists(
        st.tuples(st.sampled_from(EndpointEvent), st.integers(0, 3), st.floats(0, 5)), max_size=60
    )
)
def test_half_of_a_role_always_serves_and_everybody_returns(
    events: list[tuple[EndpointEvent, int, float]],
) -> None:
    role = {f"e{n}": EndpointStatus() for n in range(4)}
    now = 0.0
    for event, number, passed in events:
        if event in {E.DELETED, E.DRAIN}:
            continue
        now += passed
        name = f"e{number}"
        allowed = may_eject({n: s.state for n, s in role.items()}, name)
        role[name] = step(role[name], event, now=now, ejection_allowed=allowed)
        assert sum(s.state is READY for s in role.values()) >= 2
    for name in role:
        role[name] = step(role[name], E.CHECK_PASSED, now=now)
        role[name] = step(role[name], E.TICK, now=now + LONGEST_EJECTION_S)
    assert all(s.state is READY for s in role.values())
