"""What a bad end of a leg means: for the client, for the blame, for the next try."""

from __future__ import annotations

import json

import pytest

from pdcluster_proxy.core.error_bodies import error_body, error_event
from pdcluster_proxy.core.failures import (
    FailureKind,
    Leg,
    blame,
    failure_of_error,
    failure_of_status,
)
from pdcluster_proxy.core.messages import OutcomeKind
from pdcluster_proxy.errors import (
    ConnectError,
    ConnectionLostError,
    HandOffError,
    ProxyError,
    UpstreamFailureError,
    UpstreamTimeoutError,
)

P, D = Leg.PREFILL, Leg.DECODE
K = FailureKind


@pytest.mark.parametrize(
    ("leg", "status", "kind", "told"),
    [
        (P, 400, K.REFUSED, 400),
        (P, 401, K.REFUSED, 401),
        (P, 404, K.REFUSED, 404),
        (P, 413, K.REFUSED, 413),
        (P, 422, K.REFUSED, 422),
        (P, 408, K.BUSY, 408),
        (P, 429, K.BUSY, 429),
        (P, 502, K.BUSY, 502),
        (P, 503, K.BUSY, 503),
        (P, 504, K.BUSY, 504),
        (P, 500, K.BROKEN, 502),
        (P, 301, K.BROKEN, 502),
        (P, 204, K.BROKEN, 502),
        (D, 400, K.REFUSED, 400),
        (D, 408, K.REFUSED, 408),
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
    broken = failure_of_status(D, 500, body)
    assert broken.body is None
    assert "secret" not in broken.message


def test_a_retry_after_passes_and_a_busy_engine_always_has_one() -> None:
    assert 7 == failure_of_status(D, 429, b"", retry_after_s=7).retry_after_s
    assert 1 == failure_of_status(D, 503, b"").retry_after_s


@pytest.mark.parametrize(
    ("error", "kind", "status", "answered"),
    [
        (ConnectError("refused"), K.UNREACHED, 503, False),
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
    assert OutcomeKind.FAILED_LOCALLY is blame(failure_of_error(P, ConnectError("refused")))
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
