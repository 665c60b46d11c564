"""Heads: what is read from an engine's, what is written to it."""

from __future__ import annotations

import pytest

from pdcluster_proxy.core.ports import Address
from pdcluster_proxy.wire.engine_client import request_head
from pdcluster_proxy.wire.response_head import parse_head

ENGINE = Address("10.0.0.1", 8000)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (b"Content-Length: 5\r\n", (False, 5)),
        (b"Transfer-Encoding: chunked\r\n", (True, None)),
        (b"transfer-encoding: gzip, Chunked\r\n", (True, None)),
        (b"transfer-encoding: gzip\r\n", (False, None)),
        (b"transfer-encoding: chunked \r\n", (True, None)),
        (b"content-length: 5\r\ntransfer-encoding: chunked\r\n", (True, None)),
        (b"x-content-length: 5\r\nx: transfer-encoding: chunked\r\n", (False, None)),
        (b"server: x\r\nCONTENT-LENGTH:7\r\ndate: y\r\n", (False, 7)),
        (b"", (False, None)),
    ],
)
def test_the_bodys_end_is_read_from_the_fields(
    fields: bytes, expected: tuple[bool, int | None]
) -> None:
    parsed = parse_head(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n")
    assert parsed is not None
    assert expected == (parsed.is_chunked, parsed.length)


@pytest.mark.parametrize(
    ("media_type", "expected"),
    [
        (b"text/event-stream", True),
        (b"Text/Event-Stream; charset=utf-8", True),
        (b"application/json", False),
        (b"text/plain; x=text/event-stream", False),
    ],
)
def test_an_event_stream_is_known_by_its_media_type(
    media_type: bytes,
    expected: bool,
) -> None:
    parsed = parse_head(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n\r\n" % media_type)
    assert parsed is not None
    assert expected == parsed.head.is_event_stream


@pytest.mark.parametrize("lines", [b"\r\n", b"\r\n\r\n", b"\n"])
@pytest.mark.parametrize("interim", [b"", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_empty_lines_before_a_head_are_passed_over(lines: bytes, interim: bytes) -> None:
    raw = lines + interim + lines + b"HTTP/1.1 503 X\r\ncontent-length: 5\r\n\r\n"
    assert parse_head(lines) is None
    parsed = parse_head(raw)
    assert parsed is not None
    assert (503, 5, len(raw)) == (parsed.head.status, parsed.length, parsed.end)
    assert [(b"content-length", b"5")] == list(parsed.head.headers)


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_content_has_no_body(status: int) -> None:
    parsed = parse_head(b"HTTP/1.1 %d X\r\ncontent-length: 5\r\n\r\n" % status)
    assert parsed is not None
    assert (parsed.is_chunked, parsed.length) == (False, 0)


def test_a_head_is_none_until_its_blank_line() -> None:
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\nRetry-After: 3\r\nX:y\r\n\r\nbody"
    complete = raw.index(b"body")
    assert all(parse_head(raw[:n]) is None for n in range(complete))
    parsed = parse_head(raw)
    assert parsed is not None
    assert (503, complete) == (parsed.head.status, parsed.end)
    assert parsed.head.headers == ((b"retry-after", b"3"), (b"x", b"y"))


def test_a_request_head_states_host_fields_and_length() -> None:
    head = request_head("POST", "/v1/completions", ENGINE, [(b"x-request-id", b"a")], 12)
    assert head == (
        b"POST /v1/completions HTTP/1.1\r\nhost: 10.0.0.1:8000\r\n"
        b"x-request-id: a\r\ncontent-length: 12\r\n\r\n"
    )


def test_an_ipv6_host_is_bracketed() -> None:
    assert b"host: [::1]:80\r\n" in request_head("GET", "/", Address("::1", 80), [], 0)


@pytest.mark.parametrize("value", [b"a\r\nx: y", b"a\nb"])
def test_a_field_with_a_line_end_is_an_error(value: bytes) -> None:
    with pytest.raises(ValueError, match="line end"):
        request_head("POST", "/", ENGINE, [(b"x-a", value)], 0)
