"""What a prefill leg must bring, and what a client gets of a decode leg."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdcluster_proxy.core.replies import (
    PrefillUsage,
    client_answer,
    parse_prefill_reply,
    upstream_error_message,
)
from pdcluster_proxy.errors import HandOffError, ProxyError, UpstreamFailureError

PARAMS: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3]],
    "remote_engine_id": "engine-1",
    "remote_request_id": "cmpl-1-0-abc",
    "remote_host": "127.0.0.2",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 40,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 16,
}


def reply(**fields: object) -> bytes:
    body: dict[str, object] = {
        "id": "cmpl-1",
        "choices": [{"index": 0, "text": "", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 40, "prompt_tokens_details": None},
        "kv_transfer_params": PARAMS,
    }
    return json.dumps(body | fields).encode()


def answer(**fields: object) -> bytes:
    body: dict[str, object] = {
        "id": "cmpl-2",
        "model": "m",
        "choices": [{"index": 0, "text": "hello", "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 40,
            "completion_tokens": 2,
            "total_tokens": 42,
            "prompt_tokens_details": {"cached_tokens": 40},
        },
        "kv_transfer_params": None,
    }
    return json.dumps(body | fields).encode()


def test_a_good_reply_brings_p_s_object_as_it_stood() -> None:
    body = reply()
    params, usage = parse_prefill_reply(body)
    assert params.raw == json.dumps(PARAMS).encode()
    assert ("engine-1", "cmpl-1-0-abc", 3) == (
        params.engine_id,
        params.request_id,
        params.num_blocks,
    )
    assert PrefillUsage(40, 16) == usage


def test_the_usage_s_own_cached_tokens_win_over_the_object_s() -> None:
    details = {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 8}}
    assert PrefillUsage(40, 8) == parse_prefill_reply(reply(usage=details))[1]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        reply(choices=[]),
        reply(choices=[{"finish_reason": "error"}]),
        reply()[:-20],
    ],
)
def test_an_answer_without_a_usable_choice_is_p_s_fault(body: bytes) -> None:
    with pytest.raises(UpstreamFailureError):
        parse_prefill_reply(body)


def test_a_reply_without_params_says_what_to_check() -> None:
    with pytest.raises(HandOffError, match="--kv-transfer-config"):
        parse_prefill_reply(reply(kv_transfer_params=None))


@pytest.mark.parametrize("field", sorted(PARAMS.keys() - {"remote_num_tokens", "transfer_mode"}))
def test_params_with_a_broken_field_are_never_handed_on(field: str) -> None:
    broken = PARAMS | {field: {"nested": True}}
    with pytest.raises(HandOffError, match=field):
        parse_prefill_reply(reply(kv_transfer_params=broken))


def test_a_client_gets_d_s_answer_without_connector_fields() -> None:
    body = answer(kv_transfer_params=PARAMS, ec_transfer_params={"a": 1})
    sent = json.loads(client_answer(body, PrefillUsage(40, 16)))
    assert {"id", "model", "choices", "usage"} == set(sent)
    assert sent["choices"] == json.loads(body)["choices"]


def test_cached_tokens_are_p_s_and_everything_else_is_d_s() -> None:
    usage = json.loads(client_answer(answer(), PrefillUsage(40, 16)))["usage"]
    assert usage == {
        "prompt_tokens": 40,
        "completion_tokens": 2,
        "total_tokens": 42,
        "prompt_tokens_details": {"cached_tokens": 16},
    }


def test_cached_tokens_are_never_d_s_where_p_said_nothing() -> None:
    usage = json.loads(client_answer(answer(), PrefillUsage()))["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_request_without_prefill_leg_keeps_d_s_figures() -> None:
    usage = json.loads(client_answer(answer(), None))["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 40}


def test_details_that_d_does_not_report_stay_unreported() -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": 2, "prompt_tokens_details": None}
    sent = json.loads(client_answer(answer(usage=usage), PrefillUsage(40, 16)))
    assert usage == sent["usage"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>oops</html>",
        b"[]",
        answer(choices=[]),
        answer(choices=[{"text": "a", "finish_reason": "error"}]),
        answer(choices=[{"finish_reason": "stop"}]),
        answer(choices="none"),
        answer()[:-9],
    ],
)
def test_an_answer_that_is_none_is_a_failure_and_not_an_answer(body: bytes) -> None:
    with pytest.raises(UpstreamFailureError):
        client_answer(body, None)


def test_numbers_of_an_answer_are_not_reformatted() -> None:
    body = answer()[:-1] + b', "x": 0.70, "y": 1e400, "z": 12345678901234567890123}'
    sent = client_answer(body, None)
    assert b'"x":0.70' in sent
    assert b'"y":1e400' in sent
    assert b'"z":12345678901234567890123' in sent


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error":{"message":"too long","code":400}}', "too long"),
        (b'{"object":"error","message":"old shape"}', "old shape"),
        (b"plain text", "plain text"),
        (b"", "The engine rejected the request without saying why."),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 5000, "x" * 2000),
    ],
)
def test_an_engine_s_rejection_is_put_into_words_whatever_its_shape(
    body: bytes, expected: str
) -> None:
    assert expected == upstream_error_message(body)


def test_all_reply_errors_are_ours() -> None:
    assert issubclass(UpstreamFailureError, ProxyError)
    assert issubclass(HandOffError, ProxyError)
