"""Completions and chat over HTTP: whole and streamed, one text either way."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import httpx
import pytest

from pdcluster_sim.core.tokens import decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.component.simulator.conftest import Served

PROMPT = "the old engineer carries a letter"
COMPLETION: dict[str, object] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12}
CHAT: dict[str, object] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": PROMPT}],
    "max_tokens": 12,
}
PATHS = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}


async def answer(served: Served, path: str, **changes: object) -> dict[str, object]:
    got = await served.client.post(path, json={**PATHS[path], **changes})
    assert got.status_code == httpx.codes.OK, got.text
    body: dict[str, object] = got.json()
    return body


async def stream(served: Served, path: str, **changes: object) -> list[dict[str, object]]:
    """Return the decoded events of a stream that ended well."""
    body = {**PATHS[path], **changes, "stream": True}
    got = await served.client.post(path, json=body)
    assert got.status_code == httpx.codes.OK, got.text
    assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done, end = got.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def choices_of(body: dict[str, object]) -> list[dict[str, object]]:
    choices = body["choices"]
    assert isinstance(choices, list)
    return choices


def text_of(choice: dict[str, object]) -> str:
    holder = choice.get("message") or choice.get("delta") or choice
    assert isinstance(holder, dict)
    return str(holder.get("content", holder.get("text", "")))


def whole_text(events: list[dict[str, object]], index: int = 0) -> str:
    return "".join(
        text_of(choice)
        for event in events
        for choice in choices_of(event)
        if choice["index"] == index
    )


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_carries_the_text_of_the_whole_answer(served: Served, path: str) -> None:
    whole = await answer(served, path)
    events = await stream(served, path)
    assert text_of(choices_of(whole)[0]) == whole_text(events)
    assert choices_of(events[-1])[0]["finish_reason"] == choices_of(whole)[0]["finish_reason"]
    assert len({event["id"] for event in events}) == 1
    assert events[-1]["system_fingerprint"] == "vllm-test"


@pytest.mark.parametrize("path", PATHS)
async def test_token_ids_spell_the_text(served: Served, path: str) -> None:
    whole = await answer(served, path, return_token_ids=True)
    (choice,) = choices_of(whole)
    tokens = choice["token_ids"]
    assert isinstance(tokens, list)
    assert text_of(choice) == decode(tokens)
    streamed = [
        token
        for event in await stream(served, path, return_token_ids=True)
        for each in choices_of(event)
        for token in each.get("token_ids") or ()  # type: ignore[attr-defined]  # a list
    ]
    assert tokens == streamed


@pytest.mark.parametrize("path", PATHS)
async def test_usage_counts_prompt_and_answer(served: Served, path: str) -> None:
    whole = await answer(served, path, ignore_eos=True)
    usage = whole["usage"]
    assert isinstance(usage, dict)
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12
    events = await stream(served, path, ignore_eos=True, stream_options={"include_usage": True})
    assert choices_of(events[-1]) == []
    assert {
        name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    } == (events[-1]["usage"])
    assert not any("usage" in event for event in events[:-1])


@pytest.mark.parametrize("path", PATHS)
async def test_usage_can_be_had_with_every_event(served: Served, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await stream(served, path, ignore_eos=True, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]  # type: ignore[index]  # a dict
    assert sorted(counts) == counts
    assert counts[-1] == 12


async def test_cached_tokens_are_reported_only_where_the_engine_was_told_to(
    serve: Callable[..., Served],
) -> None:
    prompt = "river " * 40
    quiet, telling = serve(), serve("--enable-prompt-tokens-details")
    for served in (quiet, telling):
        await answer(served, "/v1/completions", prompt=prompt)
    first = (await answer(quiet, "/v1/completions", prompt=prompt))["usage"]
    second = (await answer(telling, "/v1/completions", prompt=prompt))["usage"]
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert first["prompt_tokens_details"] is None
    cached = second["prompt_tokens_details"]["cached_tokens"]
    assert cached == (second["prompt_tokens"] - 1) // 16 * 16 > 0


@pytest.mark.parametrize("path", PATHS)
async def test_a_stop_string_ends_the_answer_before_itself(served: Served, path: str) -> None:
    full = text_of(choices_of(await answer(served, path, ignore_eos=True))[0])
    stop = full.split()[3]
    whole = await answer(served, path, stop=[stop], ignore_eos=True)
    (choice,) = choices_of(whole)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert text_of(choice) == full[: full.index(stop)]
    assert text_of(choice) == whole_text(await stream(served, path, stop=stop, ignore_eos=True))
    await served.idle()


async def test_an_answer_ended_by_a_stop_string_is_counted_as_stopped(served: Served) -> None:
    full = text_of(choices_of(await answer(served, "/v1/completions", ignore_eos=True))[0])
    await answer(served, "/v1/completions", stop=full.split()[2], ignore_eos=True)
    await served.idle()
    exposed = (await served.client.get("/metrics")).text
    name = "vllm:request_success_total"
    counted = {
        reason: f'{name}{{engine="0",finished_reason="{reason}",model_name="tiny"}} {number}'
        in exposed
        for reason, number in (("stop", "1.0"), ("length", "1.0"), ("abort", "0.0"))
    }
    assert all(counted.values()), counted


async def test_a_stop_string_may_be_kept(served: Served) -> None:
    full = text_of(choices_of(await answer(served, "/v1/completions", ignore_eos=True))[0])
    stop = full.split()[3]
    fields = {"stop": stop, "ignore_eos": True, "include_stop_str_in_output": True}
    kept = await answer(served, "/v1/completions", **fields)
    assert text_of(choices_of(kept)[0]) == full[: full.index(stop) + len(stop)]


async def test_a_stop_token_is_named(served: Served) -> None:
    whole = await answer(served, "/v1/completions", return_token_ids=True, ignore_eos=True)
    tokens = choices_of(whole)[0]["token_ids"]
    assert isinstance(tokens, list)
    stopped = await answer(served, "/v1/completions", stop_token_ids=[tokens[2]], ignore_eos=True)
    (choice,) = choices_of(stopped)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", tokens[2])


@pytest.mark.parametrize("path", PATHS)
async def test_several_choices_come_apart_and_in_order(served: Served, path: str) -> None:
    whole = await answer(served, path, n=3)
    texts = [text_of(choice) for choice in choices_of(whole)]
    assert [choice["index"] for choice in choices_of(whole)] == [0, 1, 2]
    assert len(set(texts)) == 3
    events = await stream(served, path, n=3)
    assert texts == [whole_text(events, index) for index in range(3)]


async def test_several_prompts_are_several_choices(served: Served) -> None:
    whole = await answer(served, "/v1/completions", prompt=[PROMPT, "another prompt"])
    alone = await answer(served, "/v1/completions", prompt="another prompt")
    assert text_of(choices_of(whole)[1]) == text_of(choices_of(alone)[0])
    usage = whole["usage"]
    assert isinstance(usage, dict)
    assert usage["prompt_tokens"] == len(encode(PROMPT)) + len(encode("another prompt"))


async def test_a_prompt_of_token_ids_is_the_same_prompt(served: Served) -> None:
    by_text = await answer(served, "/v1/completions")
    by_ids = await answer(served, "/v1/completions", prompt=list(encode(PROMPT)))
    assert text_of(choices_of(by_text)[0]) == text_of(choices_of(by_ids)[0])


async def test_echo_repeats_the_prompt(served: Served) -> None:
    plain = text_of(choices_of(await answer(served, "/v1/completions"))[0])
    echoed = await answer(served, "/v1/completions", echo=True)
    assert text_of(choices_of(echoed)[0]) == PROMPT + plain
    assert whole_text(await stream(served, "/v1/completions", echo=True)) == PROMPT + plain


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"logprobs": 2}),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2}),
    ],
)
async def test_logprobs_have_a_shape(served: Served, path: str, fields: dict[str, object]) -> None:
    (choice,) = choices_of(await answer(served, path, ignore_eos=True, **fields))
    shaped = choice["logprobs"]
    assert isinstance(shaped, dict)
    entries = shaped.get("content", shaped.get("tokens"))
    assert len(entries) == 12


async def test_the_newer_cap_wins_in_chat(served: Served) -> None:
    whole = await answer(served, "/v1/chat/completions", max_completion_tokens=3, ignore_eos=True)
    usage = whole["usage"]
    assert isinstance(usage, dict)
    assert usage["completion_tokens"] == 3


async def test_a_chat_without_a_cap_ends_by_itself(served: Served) -> None:
    body = {name: value for name, value in CHAT.items() if name != "max_tokens"}
    got = (await served.client.post("/v1/chat/completions", json=body)).json()
    assert got["choices"][0]["finish_reason"] == "stop"
    assert got["choices"][0]["message"]["content"].endswith(".")


async def test_the_clients_request_id_names_the_answer(served: Served) -> None:
    got = await served.client.post(
        "/v1/completions", json=COMPLETION, headers={"X-Request-Id": "mine"}
    )
    assert got.json()["id"] == "cmpl-mine"


async def test_without_connector_params_are_passed_over(served: Served) -> None:
    params = {"do_remote_prefill": True, "do_remote_decode": True}
    got = await answer(served, "/v1/completions", kv_transfer_params=params)
    assert got["kv_transfer_params"] is None


async def test_answers_do_not_depend_on_what_else_runs(serve: Callable[..., Served]) -> None:
    alone, shared = serve(), serve("--max-num-seqs", "3")
    prompts = [f"{PROMPT} number {index}" for index in range(12)]
    expected = [
        text_of(choices_of(await answer(alone, "/v1/completions", prompt=each))[0])
        for each in prompts
    ]
    got = await asyncio.gather(
        *(answer(shared, "/v1/completions", prompt=each) for each in prompts)
    )
    assert expected == [text_of(choices_of(each)[0]) for each in got]
