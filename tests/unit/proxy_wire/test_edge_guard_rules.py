"""The guard's rules, one by one, without a connection."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_proxy.errors import RejectedError
from pdcluster_proxy.wire.edge_guard import (
    EdgeLimits,
    head_too_large,
    judge_head,
    judge_size,
    malformed,
    render,
    too_slow,
)

LIMITS = EdgeLimits(head_bytes=200, num_fields=5)
HOST = (b"host", b"a:80")


def judge(
    *fields: tuple[bytes, bytes],
    method: bytes = b"POST",
    target: bytes = b"/x",
    is_http_1_0: bool = False,
    is_upgrade: bool = False,
) -> RejectedError | None:
    try:
        judge_head(
            method=method,
            target=target,
            fields=fields,
            is_http_1_0=is_http_1_0,
            is_upgrade=is_upgrade,
            limits=LIMITS,
        )
    except RejectedError as rejection:
        return rejection
    return None


@pytest.mark.parametrize(
    "host",
    [
        b"a",
        b"a.b-c_d~e",
        b"a:1",
        b"a:65535",
        b"127.0.0.1:8000",
        b"[::1]",
        b"[fe80::1]:8000",
        b"xn--bcher-kva.example",
        b"a%20b",
    ],
)
def test_a_valid_host_passes(host: bytes) -> None:
    assert judge((b"host", host)) is None


@pytest.mark.parametrize(
    "host",
    [b"", b" ", b"a b", b"a/", b"a?b", b"a#b", b"u@a", b"a:", b"a:x", b"a:123456", b"[::1", b"::1"],
)
def test_an_invalid_host_is_rejected(host: bytes) -> None:
    rejection = judge((b"host", host))
    assert rejection is not None
    assert (rejection.status_code, rejection.code) == (HTTPStatus.BAD_REQUEST, "malformed-request")
    assert "Host" in str(rejection)


@pytest.mark.parametrize("number", [0, 2, 3])
def test_exactly_one_host_is_demanded(number: int) -> None:
    rejection = judge(*[HOST] * number)
    assert rejection is not None
    assert f"{number} Host fields" in str(rejection)


def test_http_1_0_may_leave_host_out_but_not_repeat_it() -> None:
    assert judge(is_http_1_0=True) is None
    assert judge(HOST, is_http_1_0=True) is None
    assert judge(HOST, HOST, is_http_1_0=True) is not None


def test_http_1_0_has_no_transfer_encoding() -> None:
    chunked = (b"transfer-encoding", b"chunked")
    assert judge(HOST, chunked, is_http_1_0=True) is not None
    assert judge(HOST, chunked) is None


@pytest.mark.parametrize("method", [b"TRACE", b"CONNECT"])
def test_methods_that_are_never_served_are_rejected(method: bytes) -> None:
    rejection = judge(HOST, method=method)
    assert rejection is not None
    assert (rejection.status_code, rejection.code) == (
        HTTPStatus.NOT_IMPLEMENTED,
        "method-rejected",
    )


@pytest.mark.parametrize("target", [b"/", b"//", b"/a?b", b"http://a/b", b"https://a"])
def test_a_path_or_a_url_is_a_target(target: bytes) -> None:
    assert judge(HOST, target=target) is None


@pytest.mark.parametrize("target", [b"", b"*", b"a", b"@evil", b"ftp://a/", b"HTTP://a/"])
def test_anything_else_is_no_target(target: bytes) -> None:
    rejection = judge(HOST, target=target)
    assert rejection is not None
    assert "target" in str(rejection)


@pytest.mark.parametrize(
    ("field", "is_rejected"),
    [
        ((b"content-length", b"0"), False),
        ((b"content-length", b"1"), True),
        ((b"transfer-encoding", b"chunked"), True),
        ((b"x", b"y"), False),
    ],
)
def test_an_upgrade_may_have_no_body(
    field: tuple[bytes, bytes],
    is_rejected: bool,
) -> None:
    assert (judge(HOST, field, is_upgrade=True) is not None) == is_rejected
    assert judge(HOST, field) is None


def test_fields_are_counted() -> None:
    assert judge(HOST, *[(b"x", b"y")] * 4) is None
    rejection = judge(HOST, *[(b"x", b"y")] * 5)
    assert rejection is not None
    assert rejection.status_code == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


@given(st.integers(0, 400), st.integers(0, 3))
def test_size_counts_target_names_values_and_separators(size: int, number: int) -> None:
    fields = [(b"a", b"b")] * number
    total = size + number * len(b"a: b\r\n")
    if total > LIMITS.head_bytes:
        with pytest.raises(RejectedError, match="over 200 bytes or 5 fields"):
            judge_size(b"x" * size, fields, LIMITS)
    else:
        judge_size(b"x" * size, fields, LIMITS)


@pytest.mark.parametrize(
    "rejection", [malformed("it is odd"), too_slow("head within 1 s"), head_too_large(LIMITS)]
)
def test_a_rejection_is_a_whole_response_in_the_apis_shape(rejection: RejectedError) -> None:
    raw = render(rejection, default_fields=[(b"date", b"today")], request_id="abc")
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    fields = dict(line.split(b": ") for line in lines)
    assert first == b"HTTP/1.1 %d %b" % (
        rejection.status_code,
        HTTPStatus(rejection.status_code).phrase.encode(),
    )
    assert fields == {
        b"date": b"today",
        b"content-type": b"application/json",
        b"content-length": b"%d" % len(body),
        b"x-request-id": b"abc",
        b"x-pdcluster-reason": rejection.code.encode(),
        b"connection": b"close",
    }
    assert json.loads(body)["error"] == {
        "message": str(rejection),
        "type": "invalid_request_error",
        "param": None,
        "code": rejection.code,
    }
    assert str(rejection).endswith(".")
