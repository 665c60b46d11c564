"""What a prefill leg must bring, and what a client gets of a decode leg."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdcluster_proxy.core.replies import (
    PrefillUsage,
    client_answer,
    parse_prefill_reply,
    rejection_body,
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
        reply(choices=[{"finish_reason": "abort"}]),
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


@pytest.mark.parametrize(
    "choices",
    [
        [{"text": "a", "kv_transfer_params": PARAMS}],
        [{"text": "a", "x": [[{"y": 0.70, "ec_transfer_params": {}}]]}],
    ],
)
def test_connector_fields_are_taken_out_at_any_depth(choices: list[dict[str, Any]]) -> None:
    sent = client_answer(answer(choices=choices), None)
    assert b"transfer_params" not in sent
    assert "a" == json.loads(sent)["choices"][0]["text"]


def test_an_escaped_name_hides_no_connector_field() -> None:
    body = answer(kv_transfer_params=PARAMS).replace(b"kv_t", rb"\u006bv_\u0074")
    assert {"id", "model", "choices", "usage"} == set(json.loads(client_answer(body, None)))


def test_text_that_speaks_of_a_connector_field_stays() -> None:
    body = answer(choices=[{"text": "set kv_transfer_params"}])
    assert json.loads(body)["choices"] == json.loads(client_answer(body, None))["choices"]


def test_what_is_too_deep_to_look_through_is_not_passed_on() -> None:
    deep = "[" * 200 + '{"kv_transfer_params":{}}' + "]" * 200
    body = answer()[:-1] + b', "x": ' + deep.encode() + b"}"
    sent = client_answer(body.replace(b'"kv_transfer_params": null, ', b""), None)
    assert b"transfer_params" not in sent


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
        answer(choices=[{"text": "tru", "finish_reason": "abort"}]),
        answer(choices=[{"text": "a"}, {"text": "tru", "finish_reason": "abort"}]),
        answer(error={"message": "boom"}),
        answer(object="error", message="boom"),
        answer().replace(b"hello", b"h\xffllo"),
        answer().replace(b"cmpl-2", b"h\xffllo"),
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
        (b'{"message":"no shape"}', "no shape"),
        (b'{"detail":"Not Found"}', '{"detail":"Not Found"}'),
        (b'{"error":{}}', '{"error":{}}'),
        (b"{}", "The engine rejected the request without saying why."),
        (b"[]", "The engine rejected the request without saying why."),
        (b"{not json", "{not json"),
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


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message":"too long","code":400,"x":0.70}}',
        b'{"object":"error","message":"old shape","code":400}',
    ],
)
def test_an_engine_s_error_body_passes_byte_for_byte(body: bytes) -> None:
    assert body == rejection_body(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"m","kv_transfer_params":{"remote_host":"h"}}}',
        b'{"error":{"message":"m","inner":[{"ec_transfer_params":1}]},"kv_transfer_params":{}}',
        rb'{"error":{"message":"m","kv_\u0074ransfer_params":{"remote_host":"h"}}}',
        b'{"object":"error","message":"m","kv_transfer_params":{"remote_host":"h"}}',
    ],
)
def test_connector_fields_are_taken_out_of_an_error_body(body: bytes) -> None:
    sent = rejection_body(body)
    assert sent is not None
    assert b"ransfer_params" not in sent
    assert b"remote_host" not in sent
    assert "m" == upstream_error_message(sent)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"{not json",
        b"<html>",
        b"null",
        b"[]",
        b'{"error":null}',
        b'{"error":"text"}',
        b'{"error":{}}',
        b'{"error":{"message":"  "}}',
        b'{"message":"no shape"}',
        b'{"detail":"Not Found"}',
        b'{"error":{"message":"h\xff"}}',
        b'{"error":{"message":"m"},"x":"h\xff"}',
    ],
)
def test_a_body_that_is_no_error_s_does_not_pass(body: bytes) -> None:
    assert rejection_body(body) is None


@pytest.mark.parametrize(
    "body",
    [
        b"{\"error\":{\"message\":\"got {'kv_transfer_params': {'remote_host': 'h'}}\"}}",
        b'{"error":{"message":"got kv\\u005ftransfer_params remote_host"}}',
        b"got kv_transfer_params remote_host",
    ],
)
def test_words_that_tell_of_the_hand_off_are_withheld(body: bytes) -> None:
    assert rejection_body(body) is None
    assert "remote_host" not in upstream_error_message(body)


def test_a_field_that_tells_of_the_hand_off_is_withheld() -> None:
    body = b'{"error":{"message":"m","param":"kv_transfer_params.remote_host"}}'
    assert rejection_body(body) is None
    assert "m" == upstream_error_message(body)


def test_all_reply_errors_are_ours() -> None:
    assert issubclass(UpstreamFailureError, ProxyError)
    assert issubclass(HandOffError, ProxyError)
