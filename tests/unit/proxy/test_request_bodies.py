"""What a client may send, and what each leg is sent."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_proxy.core.bodies import (
    Api,
    ClientRequest,
    RequestClass,
    decode_body,
    parse_request,
    prefill_body,
)
from pdcluster_proxy.errors import RejectedError

MODEL = "m"


def chat(**fields: object) -> bytes:
    body: dict[str, object] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    return json.dumps(body | fields).encode()


def completion(**fields: object) -> bytes:
    body: dict[str, object] = {"model": MODEL, "prompt": "hi"}
    return json.dumps(body | fields).encode()


def parse(body: bytes, api: Api = Api.CHAT) -> ClientRequest:
    return parse_request(body, api=api, model=MODEL)


def rejection(body: bytes, api: Api = Api.CHAT) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        parse(body, api)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b'{"model":"m"',
        b"[1,2]",
        b'"text"',
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 50_000,
    ],
)
def test_a_body_that_is_no_json_object_is_rejected(body: bytes) -> None:
    error = rejection(body)
    assert (400, "invalid-request", None) == (error.status_code, error.code, error.param)


@pytest.mark.parametrize(
    "name",
    [
        "kv_transfer_params",
        "ec_transfer_params",
        "new_transfer_params",
        "KV_Transfer_Params",
        "bootstrap_host",
        "bootstrap_room",
        "data_parallel_rank",
        "vllm_xargs",
        "extra_body",
    ],
)
def test_a_connector_field_of_a_client_is_rejected_by_name(name: str) -> None:
    error = rejection(chat(**{name: {"remote_host": "10.0.0.1"}}))
    assert (400, name) == (error.status_code, error.param)
    assert name in str(error)


@pytest.mark.parametrize("empty", [None, {}])
def test_an_empty_connector_field_is_taken_out_and_not_rejected(empty: object) -> None:
    request = parse(chat(kv_transfer_params=empty))
    assert "kv_transfer_params" not in json.loads(decode_body(request, None))


def test_an_escaped_connector_key_is_the_same_key() -> None:
    body = chat()[:-1] + b',"kv_\\u0074ransfer_params":{"do_remote_decode":true}}'
    assert rejection(body).param == "kv_transfer_params"


def test_a_doubled_key_reaches_both_legs_once_with_its_last_value() -> None:
    request = parse(chat()[:-1] + b',"temperature":0.1,"temperature":0.7}')
    for leg in (prefill_body(request), decode_body(request, b"{}")):
        assert leg.count(b'"temperature"') == 1
        assert b'"temperature":0.7' in leg


def test_a_doubled_connector_key_is_rejected_whichever_comes_last() -> None:
    first = b',"kv_transfer_params":null,"kv_transfer_params":{"a":1}}'
    assert rejection(chat()[:-1] + first).param == "kv_transfer_params"


@pytest.mark.parametrize("given_model", [None, 7, ["m"], ""])
def test_a_missing_or_mistyped_model_names_the_served_one(given_model: object) -> None:
    error = rejection(chat(model=given_model))
    assert error.param == "model"
    assert "'m'" in str(error)


def test_another_model_is_not_found() -> None:
    error = rejection(chat(model="gpt"))
    assert (404, "model-not-found") == (error.status_code, error.code)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", "yes"),
        ("stream", 1),
        ("n", 0),
        ("n", "two"),
        ("n", True),
        ("n", 9),
        ("n", 10**30),
        ("best_of", -1),
        ("messages", "hello"),
        ("messages", {"role": "user"}),
    ],
)
def test_a_wrong_value_where_the_proxy_needs_one_is_rejected_by_field(
    field: str, value: object
) -> None:
    error = rejection(chat(**{field: value}))
    assert (400, field) == (error.status_code, error.param)


def test_a_request_without_prompt_is_rejected_by_field() -> None:
    assert rejection(b'{"model":"m"}').param == "messages"
    assert rejection(b'{"model":"m"}', Api.COMPLETIONS).param == "prompt"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, RequestClass.TWO_LEGS),
        ({"n": 1}, RequestClass.TWO_LEGS),
        ({"n": None}, RequestClass.TWO_LEGS),
        ({"n": 2}, RequestClass.DECODE_ONLY),
        ({"best_of": 2}, RequestClass.DECODE_ONLY),
        ({"use_beam_search": True}, RequestClass.DECODE_ONLY),
        ({"prompt_logprobs": 1}, RequestClass.DECODE_ONLY),
        ({"prompt_logprobs": 0}, RequestClass.DECODE_ONLY),
        ({"prompt_logprobs": None}, RequestClass.TWO_LEGS),
        ({"echo": True}, RequestClass.DECODE_ONLY),
        ({"echo": False, "logprobs": 3}, RequestClass.TWO_LEGS),
        ({"prompt": [1, 2, 3]}, RequestClass.TWO_LEGS),
        ({"prompt": ["a", "b"]}, RequestClass.DECODE_ONLY),
        ({"prompt": ["a"]}, RequestClass.DECODE_ONLY),
        ({"prompt": [[1, 2], [3]]}, RequestClass.DECODE_ONLY),
    ],
)
def test_only_one_sequence_of_one_prompt_takes_two_legs(
    fields: dict[str, object], expected: RequestClass
) -> None:
    assert expected == parse(completion(**fields), Api.COMPLETIONS).request_class


def test_the_prefill_leg_makes_one_token_whatever_the_client_asked_for() -> None:
    asked = {
        "max_tokens": 512,
        "max_completion_tokens": 512,
        "min_tokens": 8,
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": ["a"],
        "stop_token_ids": [5],
        "logprobs": True,
        "top_logprobs": 3,
    }
    sent = json.loads(prefill_body(parse(chat(**asked))))
    assert (1, 1, False, True) == (
        sent["max_tokens"],
        sent["max_completion_tokens"],
        sent["stream"],
        sent["ignore_eos"],
    )
    gone = {"min_tokens", "n", "stream_options", "stop", "stop_token_ids", "logprobs"}
    assert gone.isdisjoint(sent)
    assert "top_logprobs" not in sent


def test_the_newer_cap_is_not_added_where_the_client_did_not_send_it() -> None:
    assert "max_completion_tokens" not in json.loads(prefill_body(parse(chat())))


def test_the_prefill_leg_asks_for_a_remote_decode() -> None:
    params = json.loads(prefill_body(parse(chat())))["kv_transfer_params"]
    assert params["do_remote_decode"] is True
    assert params["do_remote_prefill"] is False
    assert {v for k, v in params.items() if k.startswith("remote_")} == {None}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("required", "auto"),
        ({"type": "function", "function": {"name": "f"}}, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        (None, None),
    ],
)
def test_a_forced_tool_is_not_forced_on_the_prefill_leg(choice: object, expected: object) -> None:
    request = parse(chat(tool_choice=choice))
    assert expected == json.loads(prefill_body(request))["tool_choice"]
    assert choice == json.loads(decode_body(request, None))["tool_choice"]


def test_the_decode_leg_is_the_clients_body_and_p_s_object_byte_for_byte() -> None:
    params = b'{ "remote_block_ids" : [[1, 2]],"unknown":1.50,"u":"\\u00e9" }'
    asked = {"max_tokens": 7, "stream": True, "stream_options": {"include_usage": True}}
    body = decode_body(parse(chat(**asked)), params)
    assert b'"kv_transfer_params":' + params in body
    sent = json.loads(body)
    del sent["kv_transfer_params"]
    assert sent == json.loads(chat(**asked))


def test_a_decode_only_request_carries_no_object_at_all() -> None:
    assert b"kv_transfer_params" not in decode_body(parse(chat(n=2)), None)


PROMPT_FIELDS = st.dictionaries(
    st.sampled_from(["messages_extra", "tools", "documents", "chat_template_kwargs", "metadata"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=12),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


@given(PROMPT_FIELDS, st.booleans())
def test_what_makes_the_prompt_is_byte_equal_on_both_legs(
    fields: dict[str, object], indent: bool
) -> None:
    raw = {name: json.dumps(value, indent=2 if indent else None) for name, value in fields.items()}
    extra = "".join(f', "{name}" : {text}' for name, text in raw.items())
    request = parse(chat()[:-1] + extra.encode() + b"}")
    for leg in (prefill_body(request), decode_body(request, b'{"x":1}')):
        for name, text in raw.items():
            assert f'"{name}":{text}'.encode() in leg
        assert b'"messages":[{"role": "user", "content": "hi"}]' in leg


@given(st.binary(max_size=200))
def test_any_bytes_are_rejected_or_read_but_never_crash(body: bytes) -> None:
    with contextlib.suppress(RejectedError):
        parse(body)


def test_a_longer_prompt_counts_as_more_tokens() -> None:
    short = parse(completion(prompt="a" * 40), Api.COMPLETIONS)
    long = parse(completion(prompt="a" * 400), Api.COMPLETIONS)
    assert 90 == long.prompt_tokens - short.prompt_tokens
