"""What happens when an engine ends; last, because real engines take long to come back."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from tests.contract.engine.shared_engines import (
    EXPIRED,
    SETTLE_S,
    SLACK_S,
    Engines,
    ask,
    busy,
    eventually,
    fresh_prompt,
    granted,
    hold,
    nudge,
    prefill,
    settled,
    tokens_of,
    wait_free,
)
from tests.support.engines import EngineSpec, RunningEngine

SPARES = (
    EngineSpec(name="doomed", role="prefill", lease_s=30),
    # It waits for requests and leases longer than any of them lasts.
    EngineSpec(name="draining", role="prefill", lease_s=24, args=("--shutdown-timeout", "28")),
)


@pytest.fixture(scope="module")
def spares(engines: Engines) -> Iterator[dict[str, RunningEngine]]:
    """Prefill engines that these cases end, started together."""
    assert engines.prefill.is_healthy()
    with engines.kind.start(*SPARES, logs=engines.logs) as started:
        yield {engine.spec.name: engine for engine in started}


def test_a_p_that_is_killed_after_it_met_both_ds(
    engines: Engines, spares: dict[str, RunningEngine]
) -> None:
    doomed = spares["doomed"]
    policies = ("fail", "recompute")
    for policy in policies:
        met = fresh_prompt()
        tokens_of(ask(engines.decoder(policy), met, params=prefill(doomed, met)))
    prompts = {policy: fresh_prompt() for policy in policies}
    params = {policy: prefill(doomed, prompts[policy]) for policy in policies}
    doomed.kill9()
    failed = ask(engines.decode, prompts["fail"], params=params["fail"])
    assert failed.status_code == httpx.codes.INTERNAL_SERVER_ERROR
    recomputed = ask(engines.recompute, prompts["recompute"], params=params["recompute"])
    assert tokens_of(ask(engines.single, prompts["recompute"])) == tokens_of(recomputed)
    # Whoever is left still exchanges KV.
    for policy in policies:
        prompt = fresh_prompt()
        answer = ask(engines.decoder(policy), prompt, params=prefill(engines.prefill, prompt))
        assert tokens_of(ask(engines.single, prompt)) == tokens_of(answer)


def test_sigterm_lets_d_read_what_p_still_holds(
    engines: Engines, spares: dict[str, RunningEngine]
) -> None:
    draining = spares["draining"]
    prompt = fresh_prompt()
    params = prefill(draining, prompt)
    draining.process.send_signal(signal.SIGTERM)
    eventually(
        lambda: "shutdown" in draining.log.read_text(errors="replace").lower(),
        within_s=SETTLE_S,
        why="nothing in the log",
    )
    assert draining.is_healthy()
    answer = ask(engines.decode, prompt, params=params)
    assert tokens_of(ask(engines.single, prompt)) == tokens_of(answer)
    assert draining.process.wait(timeout=SETTLE_S) == 0


def test_params_without_block_ids_end_the_engine(engines: Engines) -> None:
    victim = engines.recompute
    prompt = fresh_prompt()
    params = {
        name: value
        for name, value in prefill(engines.prefill, prompt).items()
        if name != "remote_block_ids"
    }
    answer = ask(victim, prompt, params=params)
    assert answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR
    eventually(lambda: not victim.is_healthy(), within_s=SETTLE_S, why="it still lives")


def test_a_killed_d_frees_p_when_its_last_renewal_runs_out(engines: Engines) -> None:
    engine, decoder, timing = engines.prefill, engines.decode, engines.timing
    prompt = fresh_prompt()
    ask(decoder, prompt, params=prefill(engine, prompt), max_tokens=1)
    wait_free(engine)
    nudge(engine)
    expired = engine.metrics()[EXPIRED]
    with busy(decoder):
        grant = granted(engine)
        body = {"model": "tiny", "prompt": grant.prompt, "kv_transfer_params": grant.params}
        with closing(decoder.open_request("/v1/completions", body)):
            # Held beyond its duration, so that only renewals keep it.
            hold(engine, timing.duration_s + 2)
            decoder.kill9()
            # The last beat was at most an interval before, and grants the extension.
            wait_free(engine, within_s=timing.extension_s + SLACK_S)
    assert expired + 1 == settled(engine, EXPIRED, expired + 1)
    assert tokens_of(ask(engine, fresh_prompt(), max_tokens=2))
