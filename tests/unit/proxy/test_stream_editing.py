"""Edits of single events of a decode stream."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_proxy.core.ports import EDIT_MARKS
from pdcluster_proxy.core.replies import PrefillUsage
from pdcluster_proxy.core.sse import StreamEditor, begins_answer, event_data, is_whole_event


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def data_of(raw: bytes) -> dict[str, object]:
    parsed = json.loads(event_data(raw))
    assert isinstance(parsed, dict)
    return parsed


CHUNK = {"id": "c", "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}]}
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"data: a\n\n", b"a"),
        (b"data:a\n\n", b"a"),
        (b"data: a\r\n\r\n", b"a"),
        (b"event: x\ndata: a\ndata: b\n\n", b"a\nb"),
        (b"\xef\xbb\xbfdata: a\n\n", b"a"),
        (b": comment\n\n", b""),
        (b"", b""),
    ],
)
def test_data_lines_are_joined(raw: bytes, expected: bytes) -> None:
    assert expected == event_data(raw)


def test_an_event_without_anything_to_edit_stays_byte_for_byte() -> None:
    raw = b'data: {"id" : "c", "choices":[ ]}\n\n'
    assert raw == StreamEditor(PrefillUsage(40, 8))(raw)


def test_connector_fields_are_taken_out() -> None:
    raw = event(**CHUNK, kv_transfer_params={"remote_host": "h"}, ec_transfer_params={})
    edited = StreamEditor(None)(raw)
    assert CHUNK == data_of(edited)


@pytest.mark.parametrize(
    "raw",
    [
        event(choices=[{"delta": {}, "kv_transfer_params": {"remote_host": "h"}}]),
        event(**CHUNK, kv_transfer_params={}).replace(b"kv_t", rb"kv_\u0074"),
        b"\xef\xbb\xbf" + event(**CHUNK, kv_transfer_params={"remote_host": "h"}),
        event(**CHUNK, kv_transfer_params={"remote_host": "h"}).replace(b"\n", b"\r\n"),
    ],
    ids=["nested", "escaped", "byte-order-mark", "crlf"],
)
def test_connector_fields_are_taken_out_wherever_they_are(raw: bytes) -> None:
    edited = StreamEditor(None)(raw)
    assert "choices" in data_of(edited)
    assert b"transfer_params" not in edited
    assert b"\\u" not in edited


def test_text_that_speaks_of_a_connector_field_stays() -> None:
    raw = event(choices=[{"delta": {"content": "set kv_transfer_params"}}])
    assert raw == StreamEditor(None)(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'data: {"kv_transfer_params": {"cut\n\n',
        rb'data: {"kv_\u0074ransfer_params": {"cut' + b"\n\n",
        b": kv_transfer_params\n\n",
    ],
)
def test_an_unreadable_event_with_a_connector_field_is_dropped(raw: bytes) -> None:
    assert b"" == StreamEditor(None)(raw)
    kept = b'data: {"usage": cut\n\n'
    assert kept == StreamEditor(None)(kept)


def test_a_usage_event_tells_p_s_cached_tokens() -> None:
    usage = {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 40}}
    edited = StreamEditor(PrefillUsage(40, 8))(event(choices=[], usage=usage))
    assert {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 8}} == data_of(edited)[
        "usage"
    ]


def test_a_null_usage_stays_as_it_is() -> None:
    raw = event(**CHUNK, usage=None)
    assert raw == StreamEditor(PrefillUsage(40, 8))(raw)


def test_the_terminator_passes() -> None:
    assert DONE == StreamEditor(None)(DONE)


@pytest.mark.parametrize(
    "failure",
    [
        event(error={"message": "boom", "code": 500}),
        event(id="c", choices=[{"index": 0, "delta": {}, "finish_reason": "error"}]),
        event(id="c", choices=[{"index": 0, "delta": {}, "finish_reason": "abort"}]),
        event(id="c", choices=[{"delta": {}}, {"delta": {}, "finish_reason": "abort"}]),
        event(object="error", message="boom", code=400),
        b'event: error\ndata: {"message": "boom"}\n\n',
        b"event:error\r\ndata: boom\r\n\r\n",
        rb'data: {"err\u006fr": {"message": "boom"}}' + b"\n\n",
    ],
)
def test_a_failure_event_is_dropped_with_all_that_follows(failure: bytes) -> None:
    editor = StreamEditor(None)
    # The relay shows the editor nothing but events with a mark.
    assert any(mark in failure for mark in EDIT_MARKS)
    assert b"" == editor(failure)
    assert editor.failed
    assert not begins_answer(failure)
    assert b"" == editor(DONE)


@pytest.mark.parametrize(
    "raw",
    [
        event(**CHUNK),
        event(choices=[{"delta": {"content": '"error"'}, "finish_reason": None}]),
        event(id="c", error=None, choices=[]),
        event(choices=[{"delta": {"content": "event: error\n"}, "finish_reason": None}]),
        event(choices=[{"delta": {"content": "abort"}, "finish_reason": "stop"}]),
        b"event: errors\n" + event(**CHUNK),
    ],
)
def test_an_answer_that_speaks_of_errors_is_no_failure(raw: bytes) -> None:
    assert begins_answer(raw)
    editor = StreamEditor(None)
    editor(raw)
    assert not editor.failed


@pytest.mark.parametrize(
    "raw",
    [
        DONE,
        b"",
        b": comment\n\n",
        b"data\n\n",
        b"data: \n\n",
        b"data: {not json\n\n",
        b"data: [1]\n\n",
        b'data: "text"\n\n',
        b"<html>\n\n",
        b'{"choices": []}',
    ],
)
def test_what_is_no_part_of_an_answer_begins_none_yet_fails_none(raw: bytes) -> None:
    assert not begins_answer(raw)
    editor = StreamEditor(None)
    editor(raw)
    assert not editor.failed


@given(st.text(max_size=60))
def test_text_survives_the_edit_unchanged(text: str) -> None:
    raw = event(choices=[{"delta": {"content": text}}], kv_transfer_params={})
    edited = data_of(StreamEditor(None)(raw))
    assert [{"delta": {"content": text}}] == edited["choices"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'data: {"x": 1}', True),
        (b"data: [DONE]", True),
        (b"data: [DONE] ", True),
        (b'data: {"x": 1}\ndata: {"y', False),
        (b'data: {"x"', False),
        (b"data: [DON", False),
        (b": ping", False),
        (b"", False),
    ],
)
def test_an_event_is_whole_where_its_data_is(raw: bytes, expected: bool) -> None:
    assert expected == is_whole_event(raw)
