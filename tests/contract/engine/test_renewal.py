"""D's side while a request waits: it renews from arrival, and lets go when the client does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from tests.contract.engine.shared_engines import (
    SETTLE_S,
    Engines,
    ask,
    busy,
    eventually,
    fresh_prompt,
    granted,
    hold,
    is_idle,
    lasts_unrenewed,
    nothing_expires,
    num_complete,
    prefill,
    tokens_of,
    wait_free,
    wait_queued,
)


def warm(engines: Engines) -> None:
    """Let P and D meet, so that the first heartbeat is not spent on a handshake."""
    prompt = fresh_prompt()
    ask(engines.decode, prompt, params=prefill(engines.prefill, prompt), max_tokens=1)
    wait_free(engines.prefill)


def test_a_request_queued_on_d_keeps_its_lease_alive(engines: Engines) -> None:
    engine, decoder = engines.prefill, engines.decode
    warm(engines)
    with nothing_expires(engine), ThreadPoolExecutor(1) as pool:
        with busy(decoder):
            grant = granted(engine)
            answer = pool.submit(ask, decoder, grant.prompt, params=grant.params)
            hold(engine, 2 * engines.timing.duration_s + 1)
            assert not answer.done()
        tokens = tokens_of(answer.result())
        wait_free(engine)
    assert tokens_of(ask(engines.single, grant.prompt)) == tokens


def test_without_tp_size_d_does_not_renew(engines: Engines) -> None:
    decoder = engines.decode
    warm(engines)
    with busy(decoder), ExitStack() as to_the_end:
        with lasts_unrenewed(engines) as grant:
            waiting = decoder.metrics()["num_requests_waiting"]
            params = {name: value for name, value in grant.params.items() if name != "tp_size"}
            body = body_of(grant.prompt, params)
            to_the_end.enter_context(closing(decoder.open_request("/v1/completions", body)))
            wait_queued(decoder, waiting + 1)
        assert decoder.metrics()["num_requests_waiting"] > 0, "it was in D's queue all the time"


def body_of(prompt: str, params: object) -> dict[str, object]:
    return {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 8,
        "ignore_eos": True,
        "kv_transfer_params": params,
    }


def test_a_client_that_leaves_while_queued_on_d_releases_the_lease(engines: Engines) -> None:
    engine, decoder = engines.prefill, engines.decode
    warm(engines)
    with nothing_expires(engine), busy(decoder):
        grant = granted(engine)
        waiting = decoder.metrics()["num_requests_waiting"]
        body = body_of(grant.prompt, grant.params)
        with closing(decoder.open_request("/v1/completions", body)):
            wait_queued(decoder, waiting + 1)
        wait_free(engine)


def test_a_client_that_leaves_while_d_streams_frees_d(engines: Engines) -> None:
    engine, decoder = engines.prefill, engines.decode
    prompt = fresh_prompt()
    params = prefill(engine, prompt)
    complete = num_complete(decoder)
    body = {**body_of(prompt, params), "max_tokens": 3500, "stream": True}
    with closing(decoder.open_request("/v1/completions", body)) as connection:
        assert connection.recv(1), "the stream has begun"
    wait_free(engine)
    eventually(lambda: is_idle(decoder), within_s=SETTLE_S, why="D goes on")
    assert complete == num_complete(decoder), "it was stopped, not complete"


def test_a_request_that_d_rejects_in_its_handler_releases_the_lease(engines: Engines) -> None:
    engine, decoder = engines.prefill, engines.decode
    warm(engines)
    with nothing_expires(engine):
        prompt = fresh_prompt()
        params = prefill(engine, prompt)
        answer = ask(decoder, prompt, params=params, model="no-such-model")
        assert answer.status_code == 404
        wait_free(engine)


@pytest.mark.parametrize(
    "fault", [{"max_tokens": "many"}, {"stream_options": {"include_usage": True}}]
)
def test_a_body_that_is_no_request_releases_nothing(
    engines: Engines, fault: dict[str, object]
) -> None:
    warm(engines)
    with lasts_unrenewed(engines) as grant:
        body = {**body_of(grant.prompt, grant.params), **fault}
        assert engines.decode.post("/v1/completions", body).status_code == 400
