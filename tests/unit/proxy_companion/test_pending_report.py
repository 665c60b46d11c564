"""What a worker tells its companion: summed up, in order where order counts, and bounded."""

from __future__ import annotations

import bisect
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_proxy.core.messages import (
    HistogramIncrement,
    InFlight,
    LeaseStep,
    LeaseStepKind,
    Outcome,
    OutcomeKind,
    PairMet,
    Report,
)
from pdcluster_proxy.core.reporting import MAX_PENDING, PendingReport
from pdcluster_proxy.metrics import METRICS

GRANTED, HANDED_OFF, ENDED = LeaseStepKind
SUCCEEDED, LOCALLY, UPSTREAM = OutcomeKind
BOUNDS = METRICS["request_seconds"].buckets


def lease(kind: LeaseStepKind, request_id: str = "r", *, release: bool = False) -> LeaseStep:
    is_read = kind is ENDED and not release
    return LeaseStep(
        kind=kind,
        endpoint="p-0",
        request_id=request_id,
        engine_id="e",
        decode_endpoint="d-0" if is_read else "",
        decode_incarnation=3 if is_read else 0,
        release=release,
    )


def taken(pending: PendingReport) -> Report:
    return pending.take(running=0, queued=0)


def test_a_lease_that_began_and_ended_within_a_report_is_told_as_a_pair() -> None:
    pending = PendingReport()
    for kind in LeaseStepKind:
        pending.add_lease(lease(kind))
    report = taken(pending)
    assert report.leases == ()
    assert report.pairs_met == (PairMet("p-0", "e", "d-0", 3),)
    assert {(name, labels): n for name, labels, n in report.counters} == {
        ("leases_total", ("p-0", kind.value)): 1.0 for kind in LeaseStepKind
    }


def test_a_lease_that_outlives_a_report_is_told_in_both() -> None:
    pending = PendingReport()
    pending.add_lease(lease(GRANTED))
    pending.add_lease(lease(HANDED_OFF))
    assert [event.kind for event in taken(pending).leases] == [GRANTED, HANDED_OFF]
    pending.add_lease(lease(ENDED))
    second = taken(pending)
    assert [event.kind for event in second.leases] == [ENDED]
    assert len(second.pairs_met) == 1


def test_a_lease_that_somebody_must_release_is_told_whole() -> None:
    pending = PendingReport()
    pending.add_lease(lease(GRANTED))
    pending.add_lease(lease(ENDED, release=True))
    report = taken(pending)
    assert [event.kind for event in report.leases] == [GRANTED, ENDED]
    assert report.pairs_met == ()


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(list(LeaseStepKind)), st.booleans()),
        max_size=30,
    )
)
def test_a_ledger_knows_the_same_leases_by_reports_as_by_every_step(
    steps: list[tuple[str, LeaseStepKind, bool]],
) -> None:
    pending, told, straight = PendingReport(), set[str](), set[str]()

    def apply(held: set[str], event: LeaseStep) -> None:
        if event.kind is GRANTED:
            held.add(event.request_id)
        elif event.kind is ENDED:
            held.discard(event.request_id)

    for request_id, kind, is_flushed in steps:
        # A lease is granted once: a second grant of the same id would be another id.
        if kind is GRANTED and request_id in straight:
            continue
        event = lease(kind, request_id)
        pending.add_lease(event)
        apply(straight, event)
        if is_flushed:
            for each in taken(pending).leases:
                apply(told, each)
    for each in taken(pending).leases:
        apply(told, each)
    assert told == straight


def test_successes_in_a_row_are_told_once_and_counted_each() -> None:
    pending = PendingReport()
    for kind in (SUCCEEDED, SUCCEEDED, LOCALLY, LOCALLY, SUCCEEDED, SUCCEEDED):
        pending.add_outcome(Outcome("d-0", kind))
    pending.add_outcome(Outcome("d-1", SUCCEEDED))
    report = taken(pending)
    assert [(o.endpoint, o.kind) for o in report.outcomes] == [
        ("d-0", SUCCEEDED),
        ("d-0", LOCALLY),
        ("d-0", LOCALLY),
        ("d-0", SUCCEEDED),
        ("d-1", SUCCEEDED),
    ]
    assert ("leg_outcomes_total", ("d-0", "succeeded"), 4.0) in report.counters
    assert ("leg_outcomes_total", ("d-0", "failed-locally"), 2.0) in report.counters


def test_the_next_report_praises_anew() -> None:
    pending = PendingReport()
    for _ in range(2):
        pending.add_outcome(Outcome("d-0", SUCCEEDED))
        assert taken(pending).outcomes == (Outcome("d-0", SUCCEEDED),)


@given(st.lists(st.floats(min_value=0.0, max_value=1e6), min_size=1, max_size=50))
def test_every_value_is_in_the_bucket_that_holds_it(values: list[float]) -> None:
    pending = PendingReport()
    for value in values:
        pending.observe("request_seconds", ("chat",), value)
    (increment,) = taken(pending).histograms
    expected = [0] * (len(BOUNDS) + 1)
    for value in values:
        expected[bisect.bisect_left(BOUNDS, value)] += 1
    assert increment.counts == tuple(expected)
    assert increment.total == pytest.approx(sum(values))


def test_a_value_that_is_no_number_spoils_no_sum() -> None:
    pending = PendingReport()
    for value in (math.nan, math.inf, 1.0):
        pending.observe("prefill_leg_seconds", (), value)
    (increment,) = taken(pending).histograms
    assert increment.total == 1.0
    assert sum(increment.counts) == 3


def test_an_unknown_histogram_is_left_to_the_companion_to_complain_about() -> None:
    pending = PendingReport()
    pending.observe("no_such_seconds", (), 1.0)
    assert taken(pending).histograms == (HistogramIncrement("no_such_seconds", (), (1,), 1.0),)


def test_open_legs_are_told_when_they_change_and_all_when_asked() -> None:
    pending = PendingReport()
    pending.add_legs("p-0", 1, 100)
    pending.add_legs("d-0", 1, 0)
    assert set(taken(pending).in_flight) == {InFlight("p-0", 1, 100), InFlight("d-0", 1, 0)}
    pending.add_legs("d-0", -1, 0)
    assert taken(pending).in_flight == (InFlight("d-0", 0, 0),)
    pending.tell_all_legs()
    assert taken(pending).in_flight == (InFlight("p-0", 1, 100),)


def test_a_report_that_was_taken_leaves_nothing_behind_but_its_number() -> None:
    pending = PendingReport()
    pending.count("re_prefills_total", ())
    assert pending.take(running=2, queued=1) == Report(
        seq=1, counters=(("re_prefills_total", (), 1.0),), running=2, queued=1
    )
    assert taken(pending) == Report(seq=2)


def test_the_oldest_of_a_surplus_is_dropped_and_counted() -> None:
    pending = PendingReport()
    for number in range(MAX_PENDING + 2):
        pending.add_lease(lease(GRANTED, str(number)))
        pending.add_outcome(Outcome("d-0", UPSTREAM, str(number)))
    pending.drop_surplus()
    report = taken(pending)
    assert len(report.leases) == len(report.outcomes) == MAX_PENDING
    assert (report.leases[0].request_id, report.outcomes[0].reason) == ("2", "2")
    assert ("reports_dropped_total", (), 4.0) in report.counters
