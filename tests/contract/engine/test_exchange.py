"""Two legs give the answer of one engine, and the KV really travels."""

from __future__ import annotations

import json

import pytest

from pdcluster_lease.params import PREFILL_REQUEST_RAW
from tests.contract.engine.fleet import (
    Fleet,
    ask,
    fresh_prompt,
    prefill,
    settled,
    tokens_of,
)
from tests.support.engines import BLOCK_BYTES, BLOCK_SIZE, RunningEngine


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
def test_two_legs_answer_token_for_token_like_one_engine(fleet: Fleet, words: int) -> None:
    prompt = fresh_prompt(words)
    params = prefill(fleet.prefill, prompt)
    assert tokens_of(ask(fleet.single, prompt)) == tokens_of(
        ask(fleet.decode, prompt, params=params)
    )


def test_a_streamed_decode_leg_gives_the_same_tokens_and_shows_no_params(fleet: Fleet) -> None:
    prompt = fresh_prompt()
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "kv_transfer_params": prefill(fleet.prefill, prompt),
    }
    tokens, events = sse_tokens(fleet.decode, body)
    assert tokens_of(ask(fleet.single, prompt)) == tokens
    assert not any("transfer_params" in event for event in events)


def test_a_chat_exchange_answers_like_one_engine(fleet: Fleet) -> None:
    chat: dict[str, object] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": fresh_prompt()}],
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    path = "/v1/chat/completions"
    leg = {"max_tokens": 1, "kv_transfer_params": json.loads(PREFILL_REQUEST_RAW)}
    params = fleet.prefill.post(path, {**chat, **leg}).json()["kv_transfer_params"]
    leg = {"max_tokens": 12, "kv_transfer_params": params}
    answer = fleet.decode.post(path, {**chat, **leg})
    plain = fleet.single.post(path, {**chat, "max_tokens": 12})
    assert tokens_of(plain) == tokens_of(answer)


def test_one_exchange_is_one_transfer_of_all_blocks_and_no_local_prefill(fleet: Fleet) -> None:
    engine, decoder = fleet.prefill, fleet.decode
    prompt = fresh_prompt()
    params = prefill(engine, prompt)
    before = decoder.metrics()
    answer = ask(decoder, prompt, params=params)
    num_tokens = answer.json()["usage"]["prompt_tokens"]
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    transfers = before["nixl_bytes_transferred_count"] + 1
    assert settled(decoder, "nixl_bytes_transferred_count", transfers) == transfers
    after = decoder.metrics()
    moved = after["nixl_bytes_transferred_sum"] - before["nixl_bytes_transferred_sum"]
    assert moved == num_blocks * BLOCK_BYTES
    name = "prompt_tokens_by_source_total"
    by_source = {
        source: after.of(name, source=source) - before.of(name, source=source)
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    }
    assert by_source["external_kv_transfer"] == num_tokens
    assert by_source["local_compute"] <= 1


def test_a_cached_prefix_on_d_is_not_read_again(fleet: Fleet) -> None:
    engine, decoder = fleet.prefill, fleet.decode
    prompt = fresh_prompt(90)
    num_tokens = ask(decoder, prompt, max_tokens=1).json()["usage"]["prompt_tokens"]
    params = prefill(engine, prompt)
    before = decoder.metrics()
    answer = ask(decoder, prompt, params=params)
    transfers = before["nixl_bytes_transferred_count"] + 1
    assert settled(decoder, "nixl_bytes_transferred_count", transfers) == transfers
    moved = decoder.metrics()["nixl_bytes_transferred_sum"] - before["nixl_bytes_transferred_sum"]
    num_cached = (num_tokens - 1) // BLOCK_SIZE
    assert moved == (-(-num_tokens // BLOCK_SIZE) - num_cached) * BLOCK_BYTES
    assert tokens_of(ask(fleet.single, prompt)) == tokens_of(answer)


def test_another_prompts_blocks_give_another_answer(fleet: Fleet) -> None:
    # Without this, equal answers would prove nothing: D might just prefill by itself.
    mine, others = fresh_prompt(), fresh_prompt()
    prefill(fleet.prefill, mine)
    wrong = prefill(fleet.prefill, others)
    assert tokens_of(ask(fleet.single, mine)) != tokens_of(ask(fleet.decode, mine, params=wrong))


@pytest.mark.parametrize("field", ["tp_size", "remote_num_tokens"])
def test_params_without_an_optional_field_still_work(fleet: Fleet, field: str) -> None:
    prompt = fresh_prompt()
    params = {
        name: value for name, value in prefill(fleet.prefill, prompt).items() if name != field
    }
    assert tokens_of(ask(fleet.single, prompt)) == tokens_of(
        ask(fleet.decode, prompt, params=params)
    )
