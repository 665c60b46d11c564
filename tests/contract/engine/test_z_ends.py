"""What happens when an engine ends; last, because real engines take long to come back."""

from __future__ import annotations

import signal
import time

import httpx
import pytest

from tests.contract.engine.fleet import (
    EXTENSION_S,
    LEASE_S,
    SLACK_S,
    SPECS,
    Fleet,
    ask,
    busy,
    eventually,
    fresh_prompt,
    is_free,
    prefill,
    tokens_of,
    wait_free,
)
from tests.support.engines import EngineSpec


def test_a_killed_d_frees_p_when_its_last_renewal_runs_out(fleet: Fleet) -> None:
    engine, decoder = fleet.prefill, fleet.decode
    prompt = fresh_prompt()
    ask(decoder, prompt, params=prefill(engine, prompt), max_tokens=1)
    wait_free(engine)
    expired = engine.metrics()["nixl_num_kv_expired_reqs_total"]
    with busy(decoder):
        prompt = fresh_prompt()
        granted_at = time.monotonic()
        params = prefill(engine, prompt)
        body = {"model": "tiny", "prompt": prompt, "kv_transfer_params": params}
        connection = decoder.open_request("/v1/completions", body)
        eventually(
            lambda: time.monotonic() - granted_at > LEASE_S + 2, within_s=60.0, why="time stands"
        )
        assert not is_free(engine)
        killed_at = time.monotonic()
        decoder.kill9()
        connection.close()
        wait_free(engine, within_s=EXTENSION_S + SLACK_S)
        # The last beat was at most an interval before the kill, and grants the extension.
        assert time.monotonic() - killed_at <= EXTENSION_S + SLACK_S
    eventually(
        lambda: engine.metrics()["nixl_num_kv_expired_reqs_total"] == expired + 1,
        within_s=SLACK_S, why="no expiry was counted",
    )  # fmt: skip
    assert tokens_of(ask(engine, fresh_prompt(), max_tokens=2))


def test_sigterm_lets_d_read_what_p_still_holds(fleet: Fleet) -> None:
    spec = EngineSpec(name="draining", role="prefill", args=("--shutdown-timeout", "20"))
    engine = fleet.launch(spec)
    try:
        prompt = fresh_prompt()
        params = prefill(engine, prompt)
        engine.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert engine.is_healthy()
        assert tokens_of(ask(fleet.single, prompt)) == tokens_of(
            ask(fleet.recompute, prompt, params=params)
        )
        assert engine.process.wait(timeout=20.0) == 0
    finally:
        engine.stop()


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_p_that_was_killed_after_it_met_d(fleet: Fleet, policy: str) -> None:
    spec = EngineSpec(name="doomed", role="prefill")
    engine = fleet.launch(spec)
    try:
        met = fresh_prompt()
        tokens_of(ask(fleet.decoder(policy), met, params=prefill(engine, met)))
        prompt = fresh_prompt()
        params = prefill(engine, prompt)
        engine.kill9()
        answer = ask(fleet.decoder(policy), prompt, params=params)
        if policy == "fail":
            assert answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR
        else:
            assert tokens_of(ask(fleet.single, prompt)) == tokens_of(answer)
    finally:
        engine.stop()
    # Whoever is left still exchanges KV.
    prompt = fresh_prompt()
    params = prefill(fleet.prefill, prompt)
    assert tokens_of(ask(fleet.single, prompt)) == tokens_of(
        ask(fleet.decoder(policy), prompt, params=params)
    )


def test_params_without_block_ids_end_the_engine(fleet: Fleet) -> None:
    engine = fleet.launch(SPECS["decode"])
    try:
        prompt = fresh_prompt()
        params = {
            name: value
            for name, value in prefill(fleet.prefill, prompt).items()
            if name != "remote_block_ids"
        }
        assert ask(engine, prompt, params=params).status_code == 500
        eventually(lambda: not engine.is_healthy(), within_s=SLACK_S, why="it still lives")
    finally:
        engine.stop()
