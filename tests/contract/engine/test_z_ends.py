"""What happens when an engine ends; last, because real engines take long to come back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from tests.contract.engine.fleet import (
    EXTENSION_S,
    LEASE_S,
    SLACK_S,
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
from tests.support.engines import EngineSpec, RunningEngine

SPARES = (
    EngineSpec(name="doomed", role="prefill"),
    EngineSpec(name="draining", role="prefill", args=("--shutdown-timeout", "20")),
)


@pytest.fixture(scope="module")
def spares(fleet: Fleet) -> Iterator[dict[str, RunningEngine]]:
    """Prefill engines that these cases end, started together."""
    assert fleet.prefill.is_healthy()
    engines = fleet.launch(*SPARES)
    yield {engine.spec.name: engine for engine in engines}
    for engine in engines:
        engine.stop()


def test_a_p_that_is_killed_after_it_met_both_ds(
    fleet: Fleet, spares: dict[str, RunningEngine]
) -> None:
    doomed = spares["doomed"]
    policies = ("fail", "recompute")
    for policy in policies:
        met = fresh_prompt()
        tokens_of(ask(fleet.decoder(policy), met, params=prefill(doomed, met)))
    prompts = {policy: fresh_prompt() for policy in policies}
    params = {policy: prefill(doomed, prompts[policy]) for policy in policies}
    doomed.kill9()
    failed = ask(fleet.decode, prompts["fail"], params=params["fail"])
    assert failed.status_code == httpx.codes.INTERNAL_SERVER_ERROR
    recomputed = ask(fleet.recompute, prompts["recompute"], params=params["recompute"])
    assert tokens_of(ask(fleet.single, prompts["recompute"])) == tokens_of(recomputed)
    # Whoever is left still exchanges KV.
    for policy in policies:
        prompt = fresh_prompt()
        answer = ask(fleet.decoder(policy), prompt, params=prefill(fleet.prefill, prompt))
        assert tokens_of(ask(fleet.single, prompt)) == tokens_of(answer)


def test_sigterm_lets_d_read_what_p_still_holds(
    fleet: Fleet, spares: dict[str, RunningEngine]
) -> None:
    draining = spares["draining"]
    prompt = fresh_prompt()
    params = prefill(draining, prompt)
    draining.process.send_signal(signal.SIGTERM)
    eventually(
        lambda: "shutdown" in draining.log.read_text(errors="replace").lower(),
        within_s=SLACK_S, why="nothing in the log",
    )  # fmt: skip
    assert draining.is_healthy()
    answer = ask(fleet.decode, prompt, params=params)
    assert tokens_of(ask(fleet.single, prompt)) == tokens_of(answer)
    assert draining.process.wait(timeout=60.0) == 0


def test_params_without_block_ids_end_the_engine(fleet: Fleet) -> None:
    victim = fleet.recompute
    prompt = fresh_prompt()
    params = {
        name: value
        for name, value in prefill(fleet.prefill, prompt).items()
        if name != "remote_block_ids"
    }
    answer = ask(victim, prompt, params=params)
    assert answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR
    eventually(lambda: not victim.is_healthy(), within_s=4 * SLACK_S, why="it still lives")


def test_a_killed_d_frees_p_when_its_last_renewal_runs_out(fleet: Fleet) -> None:
    engine, decoder = fleet.prefill, fleet.decode
    prompt = fresh_prompt()
    ask(decoder, prompt, params=prefill(engine, prompt), max_tokens=1)
    wait_free(engine, within_s=LEASE_S + SLACK_S)
    expired = engine.metrics()["nixl_num_kv_expired_reqs_total"]
    with busy(decoder):
        prompt = fresh_prompt()
        params = prefill(engine, prompt)
        body = {"model": "tiny", "prompt": prompt, "kv_transfer_params": params}
        with closing(decoder.open_request("/v1/completions", body)):
            # Held beyond its duration, so that only renewals keep it.
            until = time.monotonic() + LEASE_S + 2
            while time.monotonic() < until:
                assert not is_free(engine)
                time.sleep(0.1)
            decoder.kill9()
            # The last beat was at most an interval before, and grants the extension.
            wait_free(engine, within_s=EXTENSION_S + SLACK_S)
    eventually(
        lambda: engine.metrics()["nixl_num_kv_expired_reqs_total"] == expired + 1,
        within_s=SLACK_S, why="no expiry was counted",
    )  # fmt: skip
    assert tokens_of(ask(engine, fresh_prompt(), max_tokens=2))
