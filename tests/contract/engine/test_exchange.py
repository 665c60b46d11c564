"""Two legs give the answer of one engine, and the KV really travels."""

from __future__ import annotations

import json

import pytest

from pdcluster_lease.params import PREFILL_REQUEST_RAW
from tests.contract.engine.shared_engines import (
    SETTLE_S,
    Engines,
    ask,
    eventually,
    fresh_prompt,
    prefill,
    settled,
    tokens_of,
)
from tests.support.engines import BLOCK_BYTES, BLOCK_SIZE, Metrics, RunningEngine


def sse_tokens(engine: RunningEngine, body: dict[str, object]) -> tuple[list[int], list[str]]:
    """Stream a completion; return its token ids and the raw events."""
    tokens: list[int] = []
    events: list[str] = []
    with engine.client.stream("POST", f"{engine.url}/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        events += (line.removeprefix("data: ") for line in lines)
    assert events[-1] == "[DONE]"
    for event in events[:-1]:
        for choice in json.loads(event)["choices"]:
            tokens += choice["token_ids"]
    return tokens, events


@pytest.mark.parametrize("words", [3, 20, 64, 90])
def test_two_legs_answer_token_for_token_like_one_engine(engines: Engines, words: int) -> None:
    prompt = fresh_prompt(words)
    params = prefill(engines.prefill, prompt)
    assert tokens_of(ask(engines.single, prompt)) == tokens_of(
        ask(engines.decode, prompt, params=params)
    )


def test_a_streamed_decode_leg_gives_the_same_tokens_and_shows_no_params(engines: Engines) -> None:
    prompt = fresh_prompt()
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "kv_transfer_params": prefill(engines.prefill, prompt),
    }
    tokens, events = sse_tokens(engines.decode, body)
    assert tokens_of(ask(engines.single, prompt)) == tokens
    assert not any("transfer_params" in event for event in events)


def test_a_chat_exchange_answers_like_one_engine(engines: Engines) -> None:
    chat: dict[str, object] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": fresh_prompt()}],
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    path = "/v1/chat/completions"
    leg = {"max_tokens": 1, "kv_transfer_params": json.loads(PREFILL_REQUEST_RAW)}
    params = engines.prefill.post(path, {**chat, **leg}).json()["kv_transfer_params"]
    leg = {"max_tokens": 12, "kv_transfer_params": params}
    answer = engines.decode.post(path, {**chat, **leg})
    plain = engines.single.post(path, {**chat, "max_tokens": 12})
    assert tokens_of(plain) == tokens_of(answer)


def test_one_exchange_is_one_transfer_of_all_blocks_and_no_local_prefill(engines: Engines) -> None:
    engine, decoder = engines.prefill, engines.decode
    prompt = fresh_prompt()
    params = prefill(engine, prompt)
    before = decoder.metrics()
    answer = ask(decoder, prompt, params=params)
    num_tokens = answer.json()["usage"]["prompt_tokens"]
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    assert num_blocks * BLOCK_BYTES == bytes_of_one_transfer(decoder, before)

    def by_source(source: str) -> float:
        name = "prompt_tokens_by_source_total"
        return decoder.metrics().of(name, source=source) - before.of(name, source=source)

    eventually(
        lambda: by_source("external_kv_transfer") > 0, within_s=SETTLE_S, why="nothing was counted"
    )
    assert by_source("external_kv_transfer") == num_tokens
    assert by_source("local_compute") <= 1


def test_a_cached_prefix_on_d_is_not_read_again(engines: Engines) -> None:
    engine, decoder = engines.prefill, engines.decode
    prompt = fresh_prompt(90)
    num_tokens = ask(decoder, prompt, max_tokens=1).json()["usage"]["prompt_tokens"]
    params = prefill(engine, prompt)
    before = decoder.metrics()
    answer = ask(decoder, prompt, params=params)
    num_read = -(-num_tokens // BLOCK_SIZE) - (num_tokens - 1) // BLOCK_SIZE
    assert num_read * BLOCK_BYTES == bytes_of_one_transfer(decoder, before)
    assert tokens_of(ask(engines.single, prompt)) == tokens_of(answer)


def bytes_of_one_transfer(decoder: RunningEngine, before: Metrics) -> float:
    """Wait until one more transfer is counted, demand that it is one, and return its bytes."""
    name = "nixl_bytes_transferred"
    transfers = before[f"{name}_count"] + 1
    assert transfers == settled(decoder, f"{name}_count", transfers)
    return decoder.metrics()[f"{name}_sum"] - before[f"{name}_sum"]


def test_another_prompts_blocks_give_another_answer(engines: Engines) -> None:
    # Without this, equal answers would prove nothing: D might just prefill by itself.
    mine, others = fresh_prompt(), fresh_prompt()
    prefill(engines.prefill, mine)
    wrong = prefill(engines.prefill, others)
    assert tokens_of(ask(engines.single, mine)) != tokens_of(
        ask(engines.decode, mine, params=wrong)
    )


@pytest.mark.parametrize("field", ["tp_size", "remote_num_tokens"])
def test_params_without_an_optional_field_still_work(engines: Engines, field: str) -> None:
    prompt = fresh_prompt()
    params = {
        name: value for name, value in prefill(engines.prefill, prompt).items() if name != field
    }
    assert tokens_of(ask(engines.single, prompt)) == tokens_of(
        ask(engines.decode, prompt, params=params)
    )
