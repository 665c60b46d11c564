"""Edits of single events of a decode stream."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_proxy.core.replies import PrefillUsage
from pdcluster_proxy.core.sse import StreamEditor, event_data, is_failure_event


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


def test_an_unreadable_event_with_a_connector_field_is_dropped() -> None:
    assert b"" == StreamEditor(None)(b'data: {"kv_transfer_params": {"cut\n\n')
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
    ],
)
def test_a_failure_event_is_dropped_with_all_that_follows(failure: bytes) -> None:
    editor = StreamEditor(None)
    assert b"" == editor(failure)
    assert editor.failed
    assert b"" == editor(DONE)


@pytest.mark.parametrize(
    "raw",
    [
        event(**CHUNK),
        event(choices=[{"delta": {"content": '"error"'}, "finish_reason": None}]),
        event(id="c", error=None, choices=[]),
        DONE,
        b'data: not json "error"\n\n',
        b"",
    ],
)
def test_an_answer_that_speaks_of_errors_is_no_failure(raw: bytes) -> None:
    assert not is_failure_event(raw)
    editor = StreamEditor(None)
    editor(raw)
    assert not editor.failed


@given(st.text(max_size=60))
def test_text_survives_the_edit_unchanged(text: str) -> None:
    raw = event(choices=[{"delta": {"content": text}}], kv_transfer_params={})
    edited = data_of(StreamEditor(None)(raw))
    assert [{"delta": {"content": text}}] == edited["choices"]
