"""Answers that are none: never committed, never passed off as complete, never leaking."""

from __future__ import annotations

import json

import pytest
from tests.support.exchange_rig import (
    DONE,
    Rig,
    ask,
    decode_answer,
    decode_stream,
    params,
    prefill_answer,
    rig,
    token_event,
)
from tests.support.scripted_engine import LAST_CHUNK, STREAM_HEAD, chunk, json_answer, replies

from pdcluster_proxy.core.messages import OutcomeKind

P_OK = replies(prefill_answer())
HALF = b'data: {"choices":[{"te'
ABORTED = b'data: {"choices":[{"index":0,"text":"","finish_reason":"abort"}]}\n\n'


def stream(*chunks: bytes, head: bytes = STREAM_HEAD) -> bytes:
    return head + b"".join(chunk(each) for each in chunks) + LAST_CHUNK


def encoded(answer: bytes) -> bytes:
    return answer.replace(b"\r\ncontent-type", b"\r\nContent-Encoding: gzip\r\ncontent-type")


def blamed(made: Rig) -> list[str]:
    return [o.endpoint for o in made.companion.outcomes if o.kind is not OutcomeKind.SUCCEEDED]


# Before the first byte ------------------------------------------------------------------------

BAD_STREAMS = {
    "only-done": stream(DONE),
    "only-comments": stream(b": ping\n\n"),
    "comment-then-done": stream(b": ping\n\n", DONE),
    "html": stream(b"<html>\n\n</html>\n\n", token_event("x"), DONE),
    "not-json": stream(b"data: {not json\n\n", DONE),
    "no-object": stream(b"data: 1\n\n", DONE),
    "half": stream(HALF),
    "aborted": stream(ABORTED, DONE),
    "error-object": stream(b'data: {"object":"error","message":"x"}\n\n', DONE),
    "error-event": stream(b'event: error\ndata: {"message":"x"}\n\n', DONE),
    "encoded": encoded(decode_stream("x")),
}


@pytest.mark.parametrize("bad", BAD_STREAMS.values(), ids=BAD_STREAMS.keys())
async def test_a_stream_that_begins_with_no_answer_is_tried_elsewhere(bad: bytes) -> None:
    async with rig([P_OK], [replies(bad), replies(decode_stream("a", "b"))]) as made:
        made.worker.legs.enter("d2")
        answer = await ask(made, stream=True)
        made.worker.legs.leave("d2")
        assert (200, True) == (answer.status, answer.is_whole)
        assert token_event("a") + token_event("b") + DONE == answer.body
        assert ["d1"] == blamed(made)
        made.assert_nothing_is_left()


@pytest.mark.parametrize("bad", BAD_STREAMS.values(), ids=BAD_STREAMS.keys())
async def test_a_stream_that_begins_with_no_answer_is_never_a_200(bad: bytes) -> None:
    async with rig([P_OK], [replies(bad)]) as made:
        answer = await ask(made, stream=True)
        assert (502, "decode-failed") == (answer.status, answer.code)
        assert ["d1"] == blamed(made)
        made.assert_nothing_is_left()


def answer_with(**fields: object) -> bytes:
    return json_answer(json.dumps({"choices": [{"text": "tru"}]} | fields).encode())


BAD_ANSWERS = {
    "aborted": answer_with(choices=[{"text": "tru", "finish_reason": "abort"}]),
    "error": answer_with(error={"message": "boom"}),
    "error-object": answer_with(object="error", message="boom"),
    "not-utf-8": decode_answer("hallo").replace(b"hallo", b"h\xffllo"),
    "encoded": encoded(decode_answer()),
}


@pytest.mark.parametrize("bad", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_a_whole_answer_that_is_none_is_tried_elsewhere(bad: bytes) -> None:
    async with rig([P_OK], [replies(bad), replies(decode_answer())]) as made:
        made.worker.legs.enter("d2")
        answer = await ask(made)
        made.worker.legs.leave("d2")
        assert 200 == answer.status
        assert b'"hello"' in answer.body
        assert ["d1"] == blamed(made)
        made.assert_nothing_is_left()


@pytest.mark.parametrize("bad", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_a_whole_answer_that_is_none_is_never_a_200(bad: bytes) -> None:
    async with rig([P_OK], [replies(bad)]) as made:
        answer = await ask(made)
        assert (502, "decode-failed") == (answer.status, answer.code)
        assert ["d1"] == blamed(made)
        made.assert_nothing_is_left()


async def test_comments_before_the_first_event_are_no_fault() -> None:
    good = stream(b": ping\n\n", token_event("a"), DONE)
    async with rig([P_OK], [replies(good)]) as made:
        answer = await ask(made, stream=True)
        assert (200, True) == (answer.status, answer.is_whole)
        assert b": ping\n\n" + token_event("a") + DONE == answer.body


# After the first byte -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [
        ABORTED,
        b'data: {"object":"error","message":"x","code":400}\n\n',
        b'event: error\ndata: {"message":"x"}\n\n',
        rb'data: {"err\u006fr":{"message":"x"}}' + b"\n\n",
    ],
    ids=["aborted", "error-object", "error-event", "escaped"],
)
async def test_a_failure_after_content_ends_the_stream_visibly(failure: bytes) -> None:
    bad = stream(token_event("a"), token_event("b"), failure, DONE)
    async with rig([P_OK], [replies(bad)]) as made:
        answer = await ask(made, stream=True)
        assert answer.body.startswith(token_event("a") + token_event("b") + b'data: {"error":')
        assert b'"decode-failed"' in answer.body
        assert DONE not in answer.body
        assert not answer.is_whole
        assert "d1" in blamed(made)
        made.assert_nothing_is_left()


async def test_half_an_event_never_reaches_the_client() -> None:
    async with rig([P_OK], [replies(stream(token_event("a"), HALF))]) as made:
        answer = await ask(made, stream=True)
        assert answer.body.startswith(token_event("a") + b'data: {"error":')
        assert b'"decode-lost"' in answer.body
        assert HALF not in answer.body
        assert not answer.is_whole


async def test_what_follows_the_terminator_never_reaches_the_client() -> None:
    late = stream(token_event("a"), DONE, token_event("late"), ABORTED)
    async with rig([P_OK], [replies(late)]) as made:
        answer = await ask(made, stream=True)
        assert (True, token_event("a") + DONE) == (answer.is_whole, answer.body)


# Rejections -----------------------------------------------------------------------------------

LEAKING = {
    "error": {"message": "bad", "code": 400, "inner": [{"kv_transfer_params": params()}]},
    "kv_transfer_params": params(),
}


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_rejection_never_shows_the_hand_off(leg: str) -> None:
    rejects = replies(json_answer(json.dumps(LEAKING).encode(), status=400))
    good = replies(decode_answer())
    legs = ([rejects], [good]) if leg == "prefill" else ([P_OK], [rejects])
    async with rig(*legs) as made:
        answer = await ask(made)
        assert (400, f"{leg}-rejected") == (answer.status, answer.headers["x-pdcluster-reason"])
        assert {"error": {"message": "bad", "code": 400, "inner": [{}]}} == answer.json


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{not json", "{not json"),
        (b"{}", "The engine rejected the request without saying why."),
        (b"<html>no</html>", "<html>no</html>"),
    ],
)
async def test_a_rejection_in_no_shape_gets_ours(body: bytes, message: str) -> None:
    async with rig([P_OK], [replies(json_answer(body, status=422))]) as made:
        answer = await ask(made)
        assert 422 == answer.status
        assert {
            "error": {
                "message": message,
                "type": "invalid_request_error",
                "param": None,
                "code": "decode-rejected",
            }
        } == answer.json


@pytest.mark.parametrize(
    ("given", "told"),
    [(b"9" * 5000, "3600"), (b"99999999999999999999", "3600"), (b"-5", "1"), (b"7", "7")],
)
@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_an_absurd_retry_after_harms_nobody(leg: str, given: bytes, told: str) -> None:
    busy = json_answer(b"{}", status=503).replace(b"\r\n", b"\r\nRetry-After: %b\r\n" % given, 1)
    legs = ([replies(busy)], [replies(decode_answer())])
    if leg == "decode":
        legs = ([P_OK], [replies(busy)])
    async with rig(*legs) as made:
        answer = await ask(made)
        assert (503, told) == (answer.status, answer.headers["retry-after"])
        made.assert_nothing_is_left()
