"""D's side while a request waits: it renews from arrival, and lets go when the client does."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

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
from tests.support.engines import RunningEngine

QUEUED_S = 2 * LEASE_S + 1


def warm(fleet: Fleet) -> None:
    """Let P and D meet, so that the first heartbeat is not spent on a handshake."""
    prompt = fresh_prompt()
    ask(fleet.decode, prompt, params=prefill(fleet.prefill, prompt), max_tokens=1)
    wait_free(fleet.prefill, within_s=LEASE_S + SLACK_S)


def hold(engine: RunningEngine, seconds: float) -> None:
    """Look all the time: the blocks must stay pinned."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert not is_free(engine)
        time.sleep(0.1)


def test_a_request_queued_on_d_keeps_its_lease_alive(fleet: Fleet) -> None:
    engine, decoder = fleet.prefill, fleet.decode
    warm(fleet)
    expired = engine.metrics()["nixl_num_kv_expired_reqs_total"]
    prompt = fresh_prompt()
    with ThreadPoolExecutor(1) as pool:
        with busy(decoder):
            params = prefill(engine, prompt)
            answer = pool.submit(ask, decoder, prompt, params=params)
            hold(engine, QUEUED_S)
            assert not answer.done()
        tokens = tokens_of(answer.result())
    assert tokens_of(ask(fleet.single, prompt)) == tokens
    wait_free(engine)
    assert engine.metrics()["nixl_num_kv_expired_reqs_total"] == expired


def test_without_tp_size_d_does_not_renew(fleet: Fleet) -> None:
    engine, decoder = fleet.prefill, fleet.decode
    warm(fleet)
    prompt = fresh_prompt()
    with busy(decoder):
        params = {**prefill(engine, prompt)}
        del params["tp_size"]
        connection = decoder.open_request("/v1/completions", body_of(prompt, params))
        waited = wait_free(engine, within_s=LEASE_S + SLACK_S)
        assert waited > EXTENSION_S
        connection.close()


def body_of(prompt: str, params: object) -> dict[str, object]:
    return {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 8,
        "ignore_eos": True,
        "kv_transfer_params": params,
    }


def test_a_client_that_leaves_while_queued_on_d_releases_the_lease(fleet: Fleet) -> None:
    engine, decoder = fleet.prefill, fleet.decode
    warm(fleet)
    expired = engine.metrics()["nixl_num_kv_expired_reqs_total"]
    with busy(decoder):
        prompt = fresh_prompt()
        params = prefill(engine, prompt)
        waiting = decoder.metrics()["num_requests_waiting"]
        connection = decoder.open_request("/v1/completions", body_of(prompt, params))
        eventually(
            lambda: decoder.metrics()["num_requests_waiting"] > waiting,
            within_s=SLACK_S, why="D does not queue it",
        )  # fmt: skip
        connection.close()
        assert wait_free(engine) < EXTENSION_S
    assert engine.metrics()["nixl_num_kv_expired_reqs_total"] == expired


def test_a_client_that_leaves_while_d_streams_frees_d(fleet: Fleet) -> None:
    engine, decoder = fleet.prefill, fleet.decode
    prompt = fresh_prompt()
    params = prefill(engine, prompt)
    body = {**body_of(prompt, params), "max_tokens": 3500, "stream": True}
    connection = decoder.open_request("/v1/completions", body)
    eventually(
        lambda: decoder.metrics()["num_requests_running"] == 1, within_s=SLACK_S, why="D is idle"
    )
    wait_free(engine)
    connection.close()
    wait_free(decoder)
    assert decoder.metrics()["num_requests_running"] == 0


def test_a_request_that_d_refuses_in_its_handler_releases_the_lease(fleet: Fleet) -> None:
    engine, decoder = fleet.prefill, fleet.decode
    warm(fleet)
    prompt = fresh_prompt()
    params = prefill(engine, prompt)
    answer = ask(decoder, prompt, params=params, model="no-such-model")
    assert answer.status_code == 404
    assert wait_free(engine) < EXTENSION_S


def test_a_body_that_is_no_request_releases_nothing(fleet: Fleet) -> None:
    engine, decoder = fleet.prefill, fleet.decode
    warm(fleet)
    prompt = fresh_prompt()
    body = {**body_of(prompt, prefill(engine, prompt)), "max_tokens": "many"}
    assert decoder.post("/v1/completions", body).status_code == 400
    assert wait_free(engine, within_s=LEASE_S + SLACK_S) > EXTENSION_S
