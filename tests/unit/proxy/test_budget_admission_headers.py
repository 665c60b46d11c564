"""The retry budget, admission, and header fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_proxy.core.admission import Admission, AdmissionLimits, decide, share
from pdcluster_proxy.core.headers import leg_headers, read_client_headers
from pdcluster_proxy.core.retry import (
    FLOOR_PER_S,
    SHARE,
    WINDOW_S,
    RetryBudget,
    note_request,
    take_retry,
)

LIMITS = AdmissionLimits(max_in_flight=2, max_queue=1, queue_timeout_s=5.0)


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=400))
def test_retries_stay_within_a_share_of_requests_and_a_small_rate(gaps: list[float]) -> None:
    budget, now, retries, requests = RetryBudget(), 0.0, 0, 0
    for gap in gaps:
        now += gap
        budget, requests = note_request(budget, now=now), requests + 1
        granted = True
        while granted:
            budget, granted = take_retry(budget, now=now)
            retries += granted
    assert retries <= SHARE * requests + FLOOR_PER_S * (now + 1) + 1


def test_a_quiet_worker_may_still_fail_over() -> None:
    assert take_retry(RetryBudget(), now=0.0)[1]
    empty = RetryBudget(0.0, 0.0)
    assert not take_retry(empty, now=0.0)[1]
    assert take_retry(empty, now=1.0)[1]


def test_what_was_not_spent_is_not_hoarded() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget = note_request(budget, now=0.0)
    assert budget.tokens <= FLOOR_PER_S * WINDOW_S


def test_a_clock_that_stands_still_or_goes_back_gains_nothing() -> None:
    budget = RetryBudget(0.5, 10.0)
    assert not take_retry(budget, now=9.0)[1]


@pytest.mark.parametrize(
    ("running", "waiting", "expected"),
    [
        (0, 0, Admission.START),
        (1, 0, Admission.START),
        (2, 0, Admission.WAIT),
        (2, 1, Admission.REJECT),
        # A place is free but somebody waits for it already.
        (1, 1, Admission.REJECT),
    ],
)
def test_a_new_exchange_starts_waits_or_is_rejected(
    running: int, waiting: int, expected: Admission
) -> None:
    assert expected is decide(LIMITS, running=running, waiting=waiting)


def test_a_queue_of_none_rejects_at_once() -> None:
    none = AdmissionLimits(max_in_flight=1, max_queue=0, queue_timeout_s=0.0)
    assert Admission.REJECT is decide(none, running=1, waiting=0)


@given(st.integers(1, 500), st.integers(0, 500), st.integers(1, 32))
def test_the_workers_shares_add_up_to_at_least_the_whole(
    in_flight: int, queue: int, workers: int
) -> None:
    whole = AdmissionLimits(max_in_flight=in_flight, max_queue=queue, queue_timeout_s=1.0)
    part = share(whole, workers=workers)
    assert in_flight <= part.max_in_flight * workers < in_flight + workers
    assert queue <= part.max_queue * workers < queue + workers


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"abc-123", "abc-123"),
        (b"a" * 128, "a" * 128),
        (b"a" * 129, ""),
        (b"", ""),
        (b"with space", ""),
        (b"../../etc", ""),
        (b"a\x00b", ""),
        (b"id_1", ""),
    ],
)
def test_a_request_id_is_taken_only_in_its_plain_form(value: bytes, expected: str) -> None:
    assert expected == read_client_headers([(b"x-request-id", value)]).request_id


def test_only_named_fields_reach_the_engines() -> None:
    hostile = [
        (b"host", b"evil"),
        (b"x-prefiller-host-port", b"10.0.0.1:80"),
        (b"x-data-parallel-rank", b"3"),
        (b"x-gateway-destination-endpoint", b"a"),
        (b"connection", b"upgrade"),
        (b"content-length", b"7"),
        (b"transfer-encoding", b"chunked"),
        (b"accept-encoding", b"gzip"),
        (b"cookie", b"secret"),
        (b"x-forwarded-for", b"1.2.3.4"),
    ]
    fields = leg_headers(read_client_headers(hostile), "leg-1")
    assert {
        (b"content-type", b"application/json"),
        (b"accept-encoding", b"identity"),
        (b"x-request-id", b"leg-1"),
    } == set(fields)


def test_the_client_s_key_and_trace_reach_both_legs() -> None:
    trace = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    sent = [(b"authorization", b"Bearer k"), (b"traceparent", trace), (b"tracestate", b"a=1")]
    fields = leg_headers(read_client_headers(sent), "leg-1")
    assert set(sent) <= set(fields)


@pytest.mark.parametrize("value", [b"00-xyz", b"", b"00-" + b"A" * 32 + b"-" + b"b" * 16 + b"-01"])
def test_a_hostile_trace_is_dropped(value: bytes) -> None:
    fields = read_client_headers([(b"traceparent", value)]).forwarded
    assert b"traceparent" not in dict(fields)
