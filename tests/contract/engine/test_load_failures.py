"""KV that cannot be loaded: both policies, for what is wrong with the peer or its address."""

from __future__ import annotations

import uuid

import httpx
import pytest

from tests.contract.engine.fleet import (
    LEASE_S,
    SLACK_S,
    Fleet,
    ask,
    fresh_prompt,
    prefill,
    settled,
    tokens_of,
    wait_free,
)
from tests.support.engines import free_port


def outcome(fleet: Fleet, policy: str, prompt: str, params: dict[str, object]) -> httpx.Response:
    """Run the decode leg and check what the policy promises."""
    answer = ask(fleet.decoder(policy), prompt, params=params)
    if policy == "fail":
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "InternalServerError"
        assert answer.json()["error"]["message"] == "Internal server error"
    else:
        assert tokens_of(ask(fleet.single, prompt)) == tokens_of(answer)
    return answer


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_wrong_engine_id(fleet: Fleet, policy: str) -> None:
    decoder = fleet.decoder(policy)
    failed = decoder.metrics()["nixl_num_failed_transfers_total"]
    prompt = fresh_prompt()
    params = {**prefill(fleet.prefill, prompt), "remote_engine_id": str(uuid.uuid4())}
    outcome(fleet, policy, prompt, params)
    # One for the handshake, one for the read that waited for it; vLLM may count the second one
    # with its next step only.
    expected = failed + 2
    assert settled(decoder, "nixl_num_failed_transfers_total", expected) in {failed + 1, expected}
    wait_free(decoder)


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_side_channel_where_nobody_listens(fleet: Fleet, policy: str) -> None:
    prompt = fresh_prompt()
    params = {
        **prefill(fleet.prefill, prompt),
        "remote_engine_id": str(uuid.uuid4()),
        "remote_port": free_port("127.0.0.1"),
    }
    answer = outcome(fleet, policy, prompt, params)
    # The handshake waits for five seconds.
    assert answer.elapsed.total_seconds() >= 5.0
    wait_free(fleet.decoder(policy))


def test_a_failed_load_does_not_release_the_lease_it_could_not_reach(fleet: Fleet) -> None:
    engine = fleet.prefill
    wait_free(engine, within_s=LEASE_S + SLACK_S)
    prompt = fresh_prompt()
    params = {**prefill(engine, prompt), "remote_engine_id": str(uuid.uuid4())}
    outcome(fleet, "fail", prompt, params)
    assert wait_free(engine, within_s=LEASE_S + SLACK_S) > LEASE_S / 2


def test_a_failed_load_in_a_stream_is_an_error_event(fleet: Fleet) -> None:
    prompt = fresh_prompt()
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 8,
        "stream": True,
        "kv_transfer_params": {
            **prefill(fleet.prefill, prompt),
            "remote_engine_id": str(uuid.uuid4()),
        },
    }
    answer = fleet.decode.post("/v1/completions", body)
    assert answer.status_code == 200
    events = [line for line in answer.text.splitlines() if line]
    assert '"error"' in events[0]
    assert "InternalServerError" in events[0]
    # vLLM ends even a failed stream by its terminator: nobody may take that for success.
    assert events[1:] == ["data: [DONE]"]
