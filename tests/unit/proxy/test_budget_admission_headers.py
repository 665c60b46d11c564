"""The retry budget, admission, and header fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_proxy.core.admission import Admission, AdmissionLimits, decide, share
from pdcluster_proxy.core.headers import ClientHeaders, leg_head, read_client_headers
from pdcluster_proxy.core.retry import (
    FLOOR_PER_S,
    SHARE,
    WINDOW_S,
    RetryBudget,
    credit,
    take_retry,
)

LIMITS = AdmissionLimits(max_in_flight=2, max_queue=1, queue_timeout_s=5.0)


@given(st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 3)), min_size=1, max_size=300))
def test_retries_stay_within_a_share_of_requests_and_a_small_rate(
    bursts: list[tuple[float, int]],
) -> None:
    budget, now, retries, requests = RetryBudget(), 0.0, 0, 0
    for gap, num_requests in bursts:
        now += gap
        requests += num_requests
        budget, granted = credit(budget, num_requests=num_requests, now=now), True
        while granted:
            budget, granted = take_retry(budget)
            retries += granted
    assert retries <= SHARE * requests + FLOOR_PER_S * (now + 1) + 1


def test_a_quiet_worker_may_still_fail_over() -> None:
    assert take_retry(RetryBudget())[1]
    empty = RetryBudget(0.0, 0.0)
    assert not take_retry(empty)[1]
    assert take_retry(credit(empty, num_requests=0, now=1.0))[1]


def test_what_was_not_spent_is_not_hoarded() -> None:
    budget = credit(RetryBudget(), num_requests=10_000, now=0.0)
    assert budget.tokens == FLOOR_PER_S * WINDOW_S
    assert credit(RetryBudget(), num_requests=0, now=1e6).tokens == FLOOR_PER_S


def test_a_clock_that_stands_still_or_goes_back_gains_nothing() -> None:
    back = credit(RetryBudget(0.5, 10.0), num_requests=0, now=9.0)
    assert (0.5, 10.0) == (back.tokens, back.at)


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


def head_of(client: ClientHeaders) -> set[bytes]:
    head = leg_head("/v1/completions", "127.0.0.2:8000", client, "leg-1", 7)
    assert head.endswith(b"\r\n\r\n")
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    assert b"POST /v1/completions HTTP/1.1" == lines[0]
    return set(lines[1:])


OURS = {
    b"host: 127.0.0.2:8000",
    b"content-type: application/json",
    b"accept-encoding: identity",
    b"x-request-id: leg-1",
    b"content-length: 7",
}


def test_only_named_fields_reach_the_engines() -> None:
    hostile = [
        (b"host", b"evil"),
        (b"x-prefiller-host-port", b"10.0.0.1:80"),
        (b"x-data-parallel-rank", b"3"),
        (b"x-gateway-destination-endpoint", b"a"),
        (b"connection", b"upgrade"),
        (b"content-length", b"9"),
        (b"transfer-encoding", b"chunked"),
        (b"accept-encoding", b"gzip"),
        (b"cookie", b"secret"),
        (b"x-forwarded-for", b"1.2.3.4"),
    ]
    assert OURS == head_of(read_client_headers(hostile))


def test_the_client_s_key_and_trace_reach_both_legs() -> None:
    trace = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    sent = [(b"authorization", b"Bearer k"), (b"traceparent", trace), (b"tracestate", b"a=1")]
    expected = {name + b": " + value for name, value in sent}
    assert OURS | expected == head_of(read_client_headers(sent))


@pytest.mark.parametrize("value", [b"00-xyz", b"", b"00-" + b"A" * 32 + b"-" + b"b" * 16 + b"-01"])
def test_a_hostile_trace_is_dropped(value: bytes) -> None:
    assert OURS == head_of(read_client_headers([(b"traceparent", value)]))


@pytest.mark.parametrize("value", [b"a\r\nx-evil: 1", b"a\nx-evil: 1", b"a\rb"])
def test_a_value_with_a_line_end_never_becomes_a_field(value: bytes) -> None:
    assert OURS == head_of(read_client_headers([(b"authorization", value)]))
