"""KV that cannot be loaded: both policies, for what is wrong with the peer or its address."""

from __future__ import annotations

import uuid

import httpx
import pytest

from tests.contract.engine.shared_engines import (
    SLACK_S,
    Engines,
    ask,
    fresh_prompt,
    lasts_unrenewed,
    prefill,
    settled,
    tokens_of,
    wait_free,
)
from tests.support.engines import free_port


def outcome(
    engines: Engines, policy: str, prompt: str, params: dict[str, object]
) -> httpx.Response:
    """Run the decode leg and check what the policy promises."""
    answer = ask(engines.decoder(policy), prompt, params=params)
    if policy == "fail":
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "InternalServerError"
        assert answer.json()["error"]["message"] == "Internal server error"
    else:
        assert tokens_of(ask(engines.single, prompt)) == tokens_of(answer)
    return answer


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_wrong_engine_id(engines: Engines, policy: str) -> None:
    decoder = engines.decoder(policy)
    failed = decoder.metrics()["nixl_num_failed_transfers_total"]
    prompt = fresh_prompt()
    params = {**prefill(engines.prefill, prompt), "remote_engine_id": str(uuid.uuid4())}
    outcome(engines, policy, prompt, params)
    # One for the handshake, one for the read that waited for it; vLLM may count the second one
    # with its next step only.
    name, expected = "nixl_num_failed_transfers_total", failed + 2
    assert settled(decoder, name, expected, within_s=SLACK_S) in {failed + 1, expected}
    wait_free(decoder)


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_side_channel_where_nobody_listens(engines: Engines, policy: str) -> None:
    prompt = fresh_prompt()
    params = {
        **prefill(engines.prefill, prompt),
        "remote_engine_id": str(uuid.uuid4()),
        "remote_port": free_port("127.0.0.1"),
    }
    answer = outcome(engines, policy, prompt, params)
    # The handshake waits for five seconds.
    assert answer.elapsed.total_seconds() >= 5.0
    wait_free(engines.decoder(policy))


def test_a_failed_load_does_not_release_the_lease_it_could_not_reach(engines: Engines) -> None:
    with lasts_unrenewed(engines) as grant:
        params = {**grant.params, "remote_engine_id": str(uuid.uuid4())}
        outcome(engines, "fail", grant.prompt, params)


def test_a_failed_load_in_a_stream_is_an_error_event(engines: Engines) -> None:
    prompt = fresh_prompt()
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 8,
        "stream": True,
        "kv_transfer_params": {
            **prefill(engines.prefill, prompt),
            "remote_engine_id": str(uuid.uuid4()),
        },
    }
    answer = engines.decode.post("/v1/completions", body)
    assert answer.status_code == 200
    events = [line for line in answer.text.splitlines() if line]
    assert '"error"' in events[0]
    assert "InternalServerError" in events[0]
    # vLLM ends even a failed stream by its terminator: nobody may take that for success.
    assert events[1:] == ["data: [DONE]"]
