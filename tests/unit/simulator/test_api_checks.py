"""From bodies to engine requests: what is taken, what is rejected, in vLLM's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdcluster_lease.params import RequestId
from pdcluster_sim.api.faults import Fault, Faults
from pdcluster_sim.api.logprobs import chat_logprobs, completion_logprobs
from pdcluster_sim.api.rejections import RequestRejectedError
from pdcluster_sim.api.sampling import (
    chat_tokens,
    check_logprobs,
    check_model,
    check_stream_options,
    completion_prompts,
    engine_requests,
    read_sampling,
)
from pdcluster_sim.api.schemas import ChatRequest, CompletionRequest, SamplingFields, parse_body
from pdcluster_sim.api.usage import Usage
from pdcluster_sim.core.tokens import VOCABULARY_SIZE, encode

if TYPE_CHECKING:
    from pdcluster_sim.core.messages import EngineRequest


def completion(raw: bytes) -> CompletionRequest:
    return parse_body(raw, CompletionRequest)


def requests_of(
    raw: bytes, *, num_tokens: int = 10, max_model_len: int = 100, is_chat: bool = False
) -> tuple[EngineRequest, ...]:
    body = completion(raw)
    sampling = read_sampling(body, max_tokens=body.max_tokens, max_model_len=max_model_len)
    return engine_requests(
        tuple(range(num_tokens)),
        sampling,
        request_ids=[RequestId(f"r{index}") for index in range(sampling.num_choices)],
        max_model_len=max_model_len,
        kv=None,
        is_chat=is_chat,
    )


# --- bodies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "param", "kind"),
    [
        (b"{", "body", "Bad Request"),
        (b"", "body", "Bad Request"),
        (b"[]", "body", "Bad Request"),
        (b"null", "body", "Bad Request"),
        (b'{"max_tokens": "x"}', "body.max_tokens", "Bad Request"),
        (b'{"kv_transfer_params": "x"}', "body.kv_transfer_params", "Bad Request"),
        (b'{"stream_options": 1}', "body.stream_options", "Bad Request"),
        (b'{"stop": [1]}', "body.stop", "Bad Request"),
        (b'{"n": 1.5}', "body.n", "Bad Request"),
        (b'{"model": 1}', "body.model", "Bad Request"),
        (b'{"a":' * 100_000, "body", "Bad Request"),
    ],
)
def test_a_body_of_the_wrong_shape_is_rejected_by_place(raw: bytes, param: str, kind: str) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        completion(raw)
    assert (param, kind, 400) == (caught.value.param, caught.value.kind, caught.value.status)
    assert str(caught.value).startswith("1 validation error:")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(RequestRejectedError) as caught:
        parse_body(b'{"model": "m"}', ChatRequest)
    assert caught.value.param == "body.messages"
    assert "Field required" in str(caught.value)


def test_numbers_may_be_texts_and_unknown_fields_are_passed_over() -> None:
    body = completion(b'{"max_tokens": "5", "nobody_knows": {"a": [1]}}')
    assert body.max_tokens == 5


# --- sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "param", "words"),
    [
        (b'{"max_tokens": 0}', "max_tokens", "max_tokens must be at least 1, got 0."),
        (b'{"max_tokens": 101}', "max_tokens", "cannot be greater than max_model_len=100"),
        (b'{"max_tokens": 4, "min_tokens": 5}', None, "min_tokens must be less than or equal"),
        (b'{"min_tokens": -1}', None, "min_tokens must be greater than or equal to 0"),
        (b'{"temperature": -0.5}', "temperature", "temperature must be non-negative, got -0.5."),
        (b'{"top_p": 0}', "top_p", "top_p must be in (0, 1]"),
        (b'{"n": 0}', None, "n must be at least 1, got 0."),
        (b'{"n": 20000}', None, "n must be at most 16384"),
        (b'{"n": 2, "temperature": 0}', None, "n must be 1 when using greedy sampling, got 2."),
        (b'{"stop": ""}', "stop", "stop cannot contain an empty string"),
    ],
)
def test_a_value_out_of_range_is_rejected(raw: bytes, param: str | None, words: str) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        requests_of(raw)
    assert (param, "BadRequestError") == (caught.value.param, caught.value.kind)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "most", "told"),
    [
        (21, 20, 21),
        (10**9, 20, 10**9),
        (-1, 20, VOCABULARY_SIZE),
        (1, 0, 1),
        (VOCABULARY_SIZE + 1, -1, VOCABULARY_SIZE + 1),
    ],
)
def test_more_logprobs_than_are_allowed_are_rejected(wanted: int, most: int, told: int) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        check_logprobs(wanted, most=most)
    assert ("logprobs", "BadRequestError") == (caught.value.param, caught.value.kind)
    assert str(caught.value) == (
        f"Requested sample logprobs of {told}, which is greater than max allowed: "
        f"{VOCABULARY_SIZE if most == -1 else most} (parameter=logprobs, value={told})"
    )


@pytest.mark.parametrize(("wanted", "most"), [(None, 20), (0, 0), (20, 20), (-1, -1)])
def test_logprobs_within_the_bound_are_taken(wanted: int | None, most: int) -> None:
    check_logprobs(wanted, most=most)


def test_stream_options_need_a_stream() -> None:
    options = b'"stream_options": {"include_usage": true}'
    with pytest.raises(RequestRejectedError, match="Stream options can only be") as caught:
        check_stream_options(completion(b"{" + options + b"}"))
    assert caught.value.param == "stream_options"
    check_stream_options(completion(b'{"stream": true, ' + options + b"}"))
    check_stream_options(completion(b'{"stream_options": {}}'))


@pytest.mark.parametrize(
    ("raw", "is_chat", "max_tokens"),
    [
        (b"{}", False, 16),
        (b"{}", True, 90),
        (b'{"max_tokens": 7}', False, 7),
        (b'{"max_tokens": 90}', True, 90),
    ],
)
def test_the_cap_is_the_clients_or_the_apis(raw: bytes, is_chat: bool, max_tokens: int) -> None:
    (request,) = requests_of(raw, is_chat=is_chat)
    assert max_tokens == request.max_tokens


def test_near_the_end_of_the_context_the_default_cap_shrinks() -> None:
    (request,) = requests_of(b"{}", num_tokens=95)
    assert request.max_tokens == 5


@pytest.mark.parametrize(("num_tokens", "raw"), [(100, b"{}"), (95, b'{"max_tokens": 6}')])
def test_what_does_not_fit_is_rejected(num_tokens: int, raw: bytes) -> None:
    with pytest.raises(RequestRejectedError, match="maximum context length is 100") as caught:
        requests_of(raw, num_tokens=num_tokens)
    assert caught.value.param == "input_tokens"


def test_each_choice_is_a_request_of_its_own() -> None:
    requests = requests_of(b'{"n": 3, "stop_token_ids": [7], "cache_salt": "s"}')
    assert [each.choice for each in requests] == [0, 1, 2]
    assert {each.cache_salt for each in requests} == {"s"}
    assert {each.stop_token_ids for each in requests} == {frozenset({7})}


def test_one_stop_string_is_a_list_of_one() -> None:
    body = completion(b'{"stop": "end"}')
    assert read_sampling(body, max_tokens=None, max_model_len=10).stops == ("end",)


# --- prompts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "prompts"),
    [
        (b'{"prompt": "hello"}', (encode("hello"),)),
        (b'{"prompt": ["a", "b"]}', (encode("a"), encode("b"))),
        (b'{"prompt": [1, 2]}', ((1, 2),)),
        (b'{"prompt": [[1], [2, 3]]}', ((1,), (2, 3))),
    ],
)
def test_a_prompt_is_text_or_tokens_or_a_list(
    raw: bytes, prompts: tuple[tuple[int, ...], ...]
) -> None:
    assert prompts == completion_prompts(completion(raw))


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b'{"prompt": ""}',
        b'{"prompt": []}',
        b'{"prompt": {"a": 1}}',
        b'{"prompt": [1, "a"]}',
        b'{"prompt": [-1]}',
        b'{"prompt": [true]}',
        b'{"prompt": [[1.5]]}',
        b'{"prompt": [999999999]}',
    ],
)
def test_what_is_no_prompt_is_rejected(raw: bytes) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        completion_prompts(completion(raw))
    assert caught.value.status == 400


def chat(messages: str) -> tuple[int, ...]:
    return chat_tokens(parse_body(f'{{"messages": {messages}}}'.encode(), ChatRequest))


def test_parts_of_a_message_are_joined() -> None:
    whole = chat('[{"role": "user", "content": "one\\ntwo"}]')
    parts = chat(
        '[{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", '
        '"text": "two"}]}]'
    )
    assert whole == parts


def test_a_turn_without_content_is_an_empty_one() -> None:
    assert chat('[{"role": "assistant", "content": null}]') == chat(
        '[{"role": "assistant", "content": ""}]'
    )


@pytest.mark.parametrize(
    "messages",
    [
        "[]",
        '[{"content": "x"}]',
        '[{"role": 1, "content": "x"}]',
        '[{"role": "user", "content": 5}]',
        '[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]',
    ],
)
def test_a_conversation_that_is_none_is_rejected(messages: str) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        chat(messages)
    assert caught.value.kind == "BadRequestError"


def test_an_unknown_model_is_rejected_and_none_at_all_is_the_one_there_is() -> None:
    check_model("a", ("a", "b"))
    check_model(None, ("a",))
    with pytest.raises(RequestRejectedError, match="Valid aliases: a, b") as caught:
        check_model("c", ("a", "b"))
    assert (404, "NotFoundError", "model") == (
        caught.value.status,
        caught.value.kind,
        caught.value.param,
    )


# --- answers --------------------------------------------------------------------------------------


def test_usage_is_shown_in_full_or_in_short() -> None:
    usage = Usage(num_prompt=5, num_completion=3, num_cached=4)
    counts = {"prompt_tokens": 5, "total_tokens": 8, "completion_tokens": 3}
    assert usage.whole(details=False) == {
        **counts,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    assert usage.whole(details=True)["prompt_tokens_details"] == {
        "cached_tokens": 4,
        "created_cache_tokens": None,
        "multimodal_tokens": None,
    }
    assert usage.streamed(details=False) == counts
    assert usage.streamed(details=True) == {**counts, "prompt_tokens_details": {"cached_tokens": 4}}


def test_logprobs_have_one_entry_per_token() -> None:
    tokens = encode("the river runs")
    shaped = completion_logprobs(tokens, num_top=2)
    assert shaped is not None
    assert {name: len(list(value)) for name, value in shaped.items()} == dict.fromkeys(  # type: ignore[call-overload]  # lists all
        ("text_offset", "token_logprobs", "tokens", "top_logprobs"), len(tokens)
    )
    assert completion_logprobs(tokens, num_top=None) is None
    chatted = chat_logprobs(tokens, wanted=True, num_top=1)
    assert chatted is not None
    assert chat_logprobs(tokens, wanted=False, num_top=1) is None


# --- faults ---------------------------------------------------------------------------------------


def test_a_fault_hits_as_often_as_it_was_told() -> None:
    faults = Faults()
    faults.add(Fault(kind="status", count=2, status=429))
    assert faults.take("drop-params") is None
    hits = [faults.take("status") for _ in range(3)]
    assert [None if hit is None else hit.status for hit in hits] == [429, 429, None]


def test_params_can_be_dropped_or_spoilt() -> None:
    faults = Faults()
    params: dict[str, object] = {"remote_host": "a", "tp_size": 1, "pp_size": None}
    assert faults.spoil(params) == params
    assert faults.spoil(None) is None
    faults.add(Fault(kind="spoil-params", set={"remote_host": "b", "tp_size": None, "new": 1}))
    assert faults.spoil(params) == {"remote_host": "b", "pp_size": None, "new": 1}
    faults.add(Fault(kind="drop-params"))
    assert faults.spoil(params) is None
    faults.add(Fault(kind="drop-params"))
    faults.clear()
    assert faults.spoil(params) == params


def test_sampling_fields_are_what_both_apis_share() -> None:
    assert issubclass(CompletionRequest, SamplingFields)
    assert issubclass(ChatRequest, SamplingFields)
