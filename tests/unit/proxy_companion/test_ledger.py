"""The ledger: held leases, and what ends them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdcluster_proxy.companion.ledger import MAX_HELD, Ledger
from pdcluster_proxy.core.messages import LeaseStep, LeaseStepKind

GRANTED, HANDED_OFF, ENDED = LeaseStepKind
DURATIONS = {"p-0": 30, "p-1": 6}


def step(
    kind: LeaseStepKind, request: str = "a", endpoint: str = "p-0", age_s: float = 0.0
) -> LeaseStep:
    return LeaseStep(kind=kind, endpoint=endpoint, request_id=request, age_s=age_s)


def ledger(*events: LeaseStep, now: float = 0.0) -> Ledger:
    made = Ledger(max_hold_s=60)
    for event in events:
        made.apply(event, now=now)
    return made


def test_a_lease_is_held_from_its_grant_to_its_end() -> None:
    made = ledger(step(GRANTED), step(GRANTED, "b"), step(GRANTED, endpoint="p-1"))
    assert made.counts() == {"p-0": 2, "p-1": 1}
    made.apply(step(HANDED_OFF), now=1.0)
    assert made.counts() == {"p-0": 2, "p-1": 1}
    made.apply(step(ENDED), now=2.0)
    assert made.counts() == {"p-0": 1, "p-1": 1}


def test_the_age_counts_from_the_grant_not_from_the_report() -> None:
    made = ledger(step(GRANTED, age_s=2.0), now=10.0)
    assert made.oldest_s(now=13.0) == {"p-0": 5.0}


def test_the_oldest_lease_of_each_endpoint_is_told() -> None:
    made = ledger(step(GRANTED), now=0.0)
    made.apply(step(GRANTED, "b"), now=5.0)
    made.apply(step(GRANTED, endpoint="p-1"), now=7.0)
    assert made.oldest_s(now=10.0) == {"p-0": 10.0, "p-1": 3.0}


def test_a_lease_that_was_never_handed_off_ends_with_its_duration() -> None:
    made = ledger(step(GRANTED), step(GRANTED, endpoint="p-1"))
    assert made.sweep(DURATIONS, now=6.0) == 0
    assert made.sweep(DURATIONS, now=6.1) == 1
    assert made.sweep(DURATIONS, now=30.1) == 1
    assert made.counts() == {}


def test_a_lease_that_was_handed_off_ends_with_the_hold_bound() -> None:
    made = ledger(step(GRANTED), step(HANDED_OFF))
    assert made.sweep(DURATIONS, now=60.0) == 0
    assert made.sweep(DURATIONS, now=60.1) == 1


def test_the_leases_of_an_endpoint_that_is_gone_are_over() -> None:
    assert ledger(step(GRANTED)).sweep({}, now=0.1) == 1


def test_steps_of_unknown_leases_change_nothing() -> None:
    assert ledger(step(HANDED_OFF), step(ENDED)).counts() == {}


def test_the_ledger_is_bounded() -> None:
    made = Ledger(max_hold_s=60)
    for number in range(MAX_HELD + 10):
        made.apply(step(GRANTED, str(number)), now=0.0)
    assert made.counts() == {"p-0": MAX_HELD}


@given(
    st.lists(
        st.tuples(st.sampled_from(list(LeaseStepKind)), st.sampled_from("abc"), st.floats(0, 20))
    )
)
def test_a_sweep_visits_every_lease(events: list[tuple[LeaseStepKind, str, float]]) -> None:
    made = Ledger(max_hold_s=60)
    held: dict[str, tuple[float, bool]] = {}
    now = 0.0
    for kind, request, passed in events:
        now += passed
        made.apply(step(kind, request), now=now)
        if kind is GRANTED:
            held[request] = (now, False)
        elif kind is HANDED_OFF and request in held:
            held[request] = (held[request][0], True)
        elif kind is ENDED:
            held.pop(request, None)
        made.sweep(DURATIONS, now=now)
        held = {r: (at, sent) for r, (at, sent) in held.items() if now - at <= (60 if sent else 30)}
        assert made.counts()["p-0"] == len(held)
