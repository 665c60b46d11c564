"""The HTTP side: what a proxy and a person see, on both kinds."""

from __future__ import annotations

import httpx
import pytest

from tests.contract.engine.shared_engines import Engines

COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "look"}}

REJECTED = [
    ("/v1/completions", {**COMPLETION, "model": "other"}, 404, "NotFoundError"),
    ("/v1/completions", {**COMPLETION, "max_tokens": 0}, 400, "BadRequestError"),
    ("/v1/completions", {**COMPLETION, "max_tokens": -1}, 400, "BadRequestError"),
    ("/v1/completions", {**COMPLETION, "max_tokens": 5000}, 400, "BadRequestError"),
    ("/v1/completions", {**COMPLETION, "min_tokens": 9}, 400, "BadRequestError"),
    ("/v1/completions", {**COMPLETION, "prompt": "x y " * 4000}, 400, "BadRequestError"),
    ("/v1/completions", {**COMPLETION, "prompt": ""}, 400, "BadRequestError"),
    ("/v1/completions", {"model": "tiny"}, 400, "BadRequestError"),
    ("/v1/completions", {**COMPLETION, "prompt": [5_000_000]}, 400, "BadRequestError"),
    ("/v1/completions", {**COMPLETION, "temperature": -1}, 400, "BadRequestError"),
    ("/v1/completions", {**COMPLETION, "logprobs": 21}, 400, "BadRequestError"),
    ("/v1/completions", {**COMPLETION, "n": 0}, 400, "BadRequestError"),
    ("/v1/completions", {**COMPLETION, "n": 2}, 400, "BadRequestError"),
    (
        "/v1/completions",
        {**COMPLETION, "stream_options": {"include_usage": True}},
        400,
        "BadRequestError",
    ),
    ("/v1/completions", {**COMPLETION, "max_tokens": "x"}, 400, "Bad Request"),
    ("/v1/completions", {**COMPLETION, "kv_transfer_params": "x"}, 400, "Bad Request"),
    ("/v1/completions", [], 400, "Bad Request"),
    ("/v1/chat/completions", {**CHAT, "model": "other"}, 404, "NotFoundError"),
    ("/v1/chat/completions", {"model": "tiny"}, 400, "Bad Request"),
    ("/v1/chat/completions", {**CHAT, "messages": []}, 400, "BadRequestError"),
    (
        "/v1/chat/completions",
        {**CHAT, "logprobs": True, "top_logprobs": 21},
        400,
        "BadRequestError",
    ),
    ("/v1/chat/completions", {**CHAT, "tools": []}, 400, "BadRequestError"),
    ("/v1/chat/completions", {**CHAT, "tool_choice": "auto"}, 400, "BadRequestError"),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "x"}, 400, "BadRequestError"),
    ("/tokenize", {"model": "other", "prompt": "x"}, 404, "NotFoundError"),
    ("/tokenize", {"x": 1}, 400, "Bad Request"),
]

METRICS = [
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "num_requests_kv_fetch_by_stage",
    "kv_cache_usage_perc",
    "engine_sleep_state",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "external_prefix_cache_queries_total",
    "external_prefix_cache_hits_total",
    "prompt_tokens_total",
    "prompt_tokens_by_source_total",
    "prompt_tokens_cached_total",
    "prompt_tokens_cached_by_source_total",
    "generation_tokens_total",
    "request_success_total",
    "request_prompt_tokens_count",
    "request_generation_tokens_count",
    "iteration_tokens_total_count",
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count",
    "e2e_request_latency_seconds_count",
    "request_queue_time_seconds_count",
    "request_prefill_time_seconds_count",
    "request_decode_time_seconds_count",
    "nixl_xfer_time_seconds_count",
    "nixl_post_time_seconds_count",
    "nixl_bytes_transferred_sum",
    "nixl_num_descriptors_sum",
    "nixl_num_failed_transfers_total",
    "nixl_num_failed_notifications_total",
    "nixl_num_kv_expired_reqs_total",
    "nixl_num_notifications_after_expiry_total",
    "cache_config_info",
]


@pytest.mark.parametrize(("path", "body", "status", "kind_of_error"), REJECTED)
def test_a_bad_request_is_rejected_in_one_shape(
    engines: Engines, path: str, body: object, status: int, kind_of_error: str
) -> None:
    engine = engines.decode
    answer = engine.client.post(f"{engine.url}{path}", json=body)
    assert status == answer.status_code, answer.text
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} == set(error)
    assert (kind_of_error, status) == (error["type"], error["code"])


def test_a_body_that_is_no_json_is_rejected(engines: Engines) -> None:
    answer = engines.decode.client.post(
        f"{engines.decode.url}/v1/completions",
        content=b"{",
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "Bad Request"


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({}, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser'),
        ({"tool_choice": "auto"}, '"auto" tool choice requires --enable-auto-tool-choice'),
        ({"tool_choice": "required"}, 'tool_choice="required" requires --tool-call-parser'),
        ({"tool_choice": NAMED}, 'tool_choice=function "look" requires --tool-call-parser'),
    ],
)
def test_an_engine_that_parses_no_tools_rejects_a_choice_of_them(
    engines: Engines, choice: dict[str, object], words: str
) -> None:
    answer = engines.decode.post("/v1/chat/completions", {**CHAT, "tools": [TOOL], **choice})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("choice", ["none", None])
def test_tools_that_are_not_to_be_chosen_are_taken_by_any_engine(
    engines: Engines, choice: str | None
) -> None:
    body = {**CHAT, "tools": [TOOL], "tool_choice": choice}
    assert engines.decode.post("/v1/chat/completions", body).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "detail"),
    [
        ("GET", "/nope", 404, "Not Found"),
        ("GET", "/v1/completions", 405, "Method Not Allowed"),
        ("POST", "/health", 405, "Method Not Allowed"),
    ],
)
def test_a_route_that_is_none_says_so_like_fastapi(
    engines: Engines, method: str, path: str, status: int, detail: str
) -> None:
    answer = engines.decode.client.request(method, f"{engines.decode.url}{path}")
    assert (status, {"detail": detail}) == (answer.status_code, answer.json())


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_has_vllms_name(engines: Engines, name: str) -> None:
    assert f"vllm:{name}" in engines.decode.metrics().totals


def keys(value: object) -> object:
    """Return the shape of an answer: the keys, all the way down."""
    if isinstance(value, dict):
        return {name: keys(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [keys(value[0])] if value else []
    return None


def shape(engines: Engines, path: str, body: dict[str, object]) -> object:
    answer = engines.decode.post(path, body)
    assert answer.status_code == httpx.codes.OK, answer.text
    return keys(answer.json())


def test_a_completion_has_vllms_fields(engines: Engines) -> None:
    expected = {
        "id": None,
        "object": None,
        "created": None,
        "model": None,
        "choices": [
            {
                "index": None,
                "text": None,
                "logprobs": None,
                "finish_reason": None,
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": {
            "prompt_tokens": None,
            "total_tokens": None,
            "completion_tokens": None,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }
    assert expected == shape(engines, "/v1/completions", COMPLETION)


def test_a_chat_completion_has_vllms_fields(engines: Engines) -> None:
    found = shape(engines, "/v1/chat/completions", CHAT)
    assert isinstance(found, dict)
    assert list(found) == [
        "id",
        "object",
        "created",
        "model",
        "choices",
        "service_tier",
        "system_fingerprint",
        "usage",
        "prompt_logprobs",
        "prompt_token_ids",
        "prompt_text",
        "kv_transfer_params",
        "ec_transfer_params",
        "metrics",
    ]
    assert list(found["choices"][0]["message"]) == [
        "role",
        "content",
        "refusal",
        "annotations",
        "audio",
        "function_call",
        "reasoning",
    ]


def test_a_stream_ends_with_usage_where_it_was_asked_for(engines: Engines) -> None:
    body = {**COMPLETION, "stream": True, "ignore_eos": True}
    body["stream_options"] = {"include_usage": True}
    events = engines.decode.post("/v1/completions", body).text.split("\n\n")
    assert events[-2] == "data: [DONE]"
    usage = httpx.Response(200, text=events[-3].removeprefix("data: ")).json()
    assert usage["choices"] == []
    counts = usage["usage"]
    assert counts["completion_tokens"] == 4
    assert counts["total_tokens"] == counts["prompt_tokens"] + 4
    assert not any('"usage"' in event for event in events[:-3])


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_health_is_an_empty_200(engines: Engines, path: str) -> None:
    answer = engines.decode.client.get(f"{engines.decode.url}{path}")
    assert (200, b"") == (answer.status_code, answer.content)


def test_models_names_what_clients_send(engines: Engines) -> None:
    card = engines.decode.client.get(f"{engines.decode.url}/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"], card["owned_by"]) == ("tiny", 4096, "vllm")


def test_what_is_tokenized_can_be_spelt_again(engines: Engines) -> None:
    engine, text = engines.decode, "the quick brown fox, 42 times"
    tokens = engine.post("/tokenize", {"model": "tiny", "prompt": text}).json()["tokens"]
    spelt = engine.post("/detokenize", {"model": "tiny", "tokens": tokens}).json()["prompt"]
    assert text == spelt
