"""What a bad end of a leg means: for the client, for the blame, for the next try."""

from __future__ import annotations

import json

import pytest

from pdcluster_proxy.core.error_bodies import error_body, error_event
from pdcluster_proxy.core.failures import (
    Failure,
    FailureKind,
    Leg,
    blame,
    broken_stream,
    failure_of_answer,
    failure_of_error,
    failure_of_first_event,
    failure_of_rejection,
    failure_of_status,
    hand_off_late,
    internal_error,
    is_final,
    nobody_decodes_in_time,
    nobody_serves,
    proxy_stopping,
    request_timeout,
    settle_silence,
)
from pdcluster_proxy.core.messages import OutcomeKind
from pdcluster_proxy.core.ports import ResponseHead
from pdcluster_proxy.errors import (
    ConnectError,
    ConnectionLostError,
    HandOffError,
    ProxyError,
    RejectedError,
    UpstreamFailureError,
    UpstreamTimeoutError,
)

P, D = Leg.PREFILL, Leg.DECODE
K = FailureKind


@pytest.mark.parametrize(
    ("leg", "status", "kind", "told"),
    [
        (P, 400, K.REJECTED, 400),
        (P, 401, K.REJECTED, 401),
        (P, 404, K.REJECTED, 404),
        (P, 413, K.REJECTED, 413),
        (P, 422, K.REJECTED, 422),
        (P, 408, K.BUSY, 408),
        (P, 429, K.BUSY, 429),
        (P, 502, K.BUSY, 502),
        (P, 503, K.BUSY, 503),
        (P, 504, K.BUSY, 504),
        (P, 500, K.BROKEN, 502),
        (P, 301, K.BROKEN, 502),
        (P, 204, K.BROKEN, 502),
        (D, 400, K.REJECTED, 400),
        (D, 408, K.REJECTED, 408),
        (D, 429, K.BUSY, 429),
        (D, 503, K.BUSY, 503),
        (D, 500, K.BROKEN, 502),
        (D, 502, K.BROKEN, 502),
        (D, 504, K.BROKEN, 502),
    ],
)
def test_a_status_is_classified_as_the_error_table_says(
    leg: Leg, status: int, kind: FailureKind, told: int
) -> None:
    failure = failure_of_status(leg, status, b'{"error":{"message":"why"}}')
    assert (kind, told, True) == (failure.kind, failure.status, failure.answered)


def test_a_4xx_passes_with_its_body_and_a_5xx_keeps_its_text_to_itself() -> None:
    body = b'{"error":{"message":"secret path"}}'
    assert body == failure_of_status(D, 400, body).body
    assert failure_of_status(D, 400, b"{}").body is None
    broken = failure_of_status(D, 500, body)
    assert broken.body is None
    assert "secret" not in broken.message


def test_a_retry_after_passes_and_a_busy_engine_always_has_one() -> None:
    assert 7 == failure_of_status(D, 429, b"", retry_after_s=7).retry_after_s
    assert 1 == failure_of_status(D, 503, b"").retry_after_s


@pytest.mark.parametrize(
    ("error", "kind", "status", "answered"),
    [
        (ConnectError("nobody listens"), K.UNREACHED, 503, False),
        (ConnectionLostError("reset", accepted=True), K.BROKEN, 502, False),
        (ConnectionLostError("reset", accepted=False), K.UNREACHED, 502, False),
        (UpstreamTimeoutError("slow"), K.SILENT, 504, False),
        (UpstreamFailureError("html"), K.BROKEN, 502, True),
        (HandOffError("no params"), K.BROKEN, 502, True),
    ],
)
def test_an_error_of_the_wire_becomes_a_failure(
    error: ProxyError, kind: FailureKind, status: int, answered: bool
) -> None:
    failure = failure_of_error(D, error)
    assert (kind, status, answered) == (failure.kind, failure.status, failure.answered)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(400, None), (429, None), (503, None), (500, OutcomeKind.FAILED_UPSTREAM)],
)
def test_only_what_speaks_of_the_engine_is_held_against_it(
    status: int, expected: OutcomeKind | None
) -> None:
    assert expected == blame(failure_of_status(D, status, b""))


def test_who_could_not_be_reached_failed_locally() -> None:
    assert OutcomeKind.FAILED_LOCALLY is blame(failure_of_error(P, ConnectError("nobody listens")))
    assert OutcomeKind.FAILED_UPSTREAM is blame(failure_of_error(P, UpstreamTimeoutError("s")))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_error_types_are_a_fixed_set(status: int, expected: str) -> None:
    body = json.loads(error_body(status=status, code="c", message="m", param="p"))
    assert {"message": "m", "type": expected, "param": "p", "code": "c"} == body["error"]


def test_faults_that_are_not_the_client_s_name_the_request_id() -> None:
    ours = json.loads(error_body(status=502, code="c", message="m", request_id="r1"))
    theirs = json.loads(error_body(status=400, code="c", message="m", request_id="r1"))
    assert "r1" in ours["error"]["message"]
    assert "r1" not in theirs["error"]["message"]


def test_an_error_event_is_one_whole_event() -> None:
    event = error_event(status=502, code="decode-lost", message="m", request_id="r1")
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert "decode-lost" == json.loads(event[6:])["error"]["code"]


# Silence: whose bound was it? -------------------------------------------------------------------

SILENT = failure_of_error(D, UpstreamTimeoutError("slow"))


@pytest.mark.parametrize(
    ("is_held", "is_over", "told", "blamed"),
    [
        (False, False, (504, "decode-timeout"), OutcomeKind.FAILED_UPSTREAM),
        # The lease's bound, not the engine's.
        (True, False, (503, "decode-hold-bound"), None),
        (True, True, (503, "decode-hold-bound"), None),
        # Our own time is over; that says nothing about the engine.
        (False, True, (504, "request-timeout"), None),
    ],
)
def test_a_silence_gets_the_name_of_the_bound_it_ran_into(
    is_held: bool, is_over: bool, told: tuple[int, str], blamed: OutcomeKind | None
) -> None:
    settled = settle_silence(SILENT, is_held=is_held, is_over=is_over, request_s=60.0)
    assert told == (settled.status, settled.code)
    assert blamed is blame(settled)


@pytest.mark.parametrize(
    "failure",
    [
        failure_of_status(D, 500, b""),
        failure_of_status(D, 400, b""),
        failure_of_status(D, 503, b""),
        failure_of_error(D, ConnectionLostError("reset", accepted=True)),
    ],
)
def test_what_is_no_silence_keeps_its_name(failure: Failure) -> None:
    assert failure is settle_silence(failure, is_held=True, is_over=True, request_s=60.0)


@pytest.mark.parametrize(
    "error", [ConnectError("not in time"), ConnectionLostError("reset", accepted=False)]
)
@pytest.mark.parametrize("leg", [P, D])
def test_who_could_not_be_reached_is_to_blame_only_within_our_time(
    leg: Leg, error: ProxyError
) -> None:
    unreached = failure_of_error(leg, error)
    within = settle_silence(unreached, is_held=False, is_over=False, request_s=60.0)
    assert (unreached, OutcomeKind.FAILED_LOCALLY) == (within, blame(within))
    over = settle_silence(unreached, is_held=False, is_over=True, request_s=60.0)
    assert ("request-timeout", None, True) == (over.code, blame(over), is_final(over))


# Failures with names of their own ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "status", "code", "retry_after_s"),
    [
        (nobody_serves("no-pair", "m"), 503, "no-pair", 1),
        (nobody_decodes_in_time(), 503, "no-decode-engine", 1),
        (hand_off_late(), 503, "hand-off-late", 1),
        (proxy_stopping(), 503, "proxy-stopping", None),
        (internal_error(), 500, "internal-error", None),
        (request_timeout(60.0), 504, "request-timeout", None),
        (broken_stream("decode-lost", "It broke."), 502, "decode-lost", None),
    ],
)
def test_a_failure_of_ours_has_one_status_and_code(
    failure: Failure, status: int, code: str, retry_after_s: int | None
) -> None:
    assert (status, code, retry_after_s) == (failure.status, failure.code, failure.retry_after_s)


def test_a_stream_that_breaks_off_says_that_it_is_cut_short() -> None:
    assert "It broke. The answer is cut short." == broken_stream("c", "It broke.").message


def test_a_rejection_keeps_its_words_status_and_retry_after() -> None:
    error = RejectedError("Full.", status_code=429, code="rejected-queue-full", retry_after_s=1)
    failure = failure_of_rejection(error)
    assert (K.REJECTED, 429, "rejected-queue-full", "Full.", 1, None) == (
        failure.kind,
        failure.status,
        failure.code,
        failure.message,
        failure.retry_after_s,
        failure.body,
    )


@pytest.mark.parametrize("kind", list(K))
def test_only_rejections_and_our_own_deadline_end_all_trying(kind: FailureKind) -> None:
    assert (kind in {K.REJECTED, K.OUT_OF_TIME}) == is_final(Failure(kind, 500, "c", "m"))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"Retry-After: 7\r\n", 7),
        (b"retry-after:  9", 9),
        (b"Retry-After: Fri, 31 Dec 1999 23:59:59 GMT\r\n", 1),
        (b"Retry-After: -5\r\n", 1),
        (b"Retry-After: 1.5\r\n", 1),
        (b"Retry-After: \xb2\r\n", 1),
        (b"Retry-After: 0\r\n", 1),
        (b"Retry-After: 3600\r\n", 3600),
        (b"Retry-After: 3601\r\n", 3600),
        (b"Retry-After: 99999999999999999999\r\n", 3600),
        (b"Retry-After: " + b"9" * 5000 + b"\r\n", 3600),
        (b"Retry-After: " + b"0" * 5000 + b"7\r\n", 7),
        (b"Content-Type: text/plain\r\n", 1),
        (b"", 1),
    ],
)
def test_a_busy_engine_s_retry_after_is_read_from_its_head(lines: bytes, expected: int) -> None:
    head = ResponseHead(status=503, is_event_stream=False, field_lines=lines)
    failure = failure_of_answer(P, head, b"")
    assert (K.BUSY, expected) == (failure.kind, failure.retry_after_s)


@pytest.mark.parametrize(
    ("event", "has_failed"),
    [
        (b'data: {"choices":[{"index":0,"text":"a"}]}\n\n', False),
        (b'data: {"error":{"message":"boom","code":500}}\n\n', True),
        (b'data: {"choices":[{"index":0,"text":"","finish_reason":"error"}]}\n\n', True),
        (b'data: {"choices":[{"index":0,"text":"","finish_reason":"abort"}]}\n\n', True),
        (b"data: [DONE]\n\n", True),
        (b"data: {not json\n\n", True),
        (b"<html>\n\n", True),
    ],
)
def test_a_first_event_that_is_a_failure_commits_nothing(event: bytes, has_failed: bool) -> None:
    failure = failure_of_first_event(event)
    assert has_failed == (failure is not None)
    if failure is not None:
        assert (K.BROKEN, "decode-failed", True) == (failure.kind, failure.code, failure.answered)
