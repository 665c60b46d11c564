"""P's side: what a grant says, how long it holds, what ends it."""

from __future__ import annotations

import json

from pdcluster_lease.params import parse_params
from tests.contract.engine.shared_engines import (
    EXPIRED,
    SETTLE_S,
    Engines,
    ask,
    eventually,
    fresh_prompt,
    is_free,
    lasts_unrenewed,
    long_request,
    nothing_expires,
    nudge,
    num_complete,
    prefill,
    tokens_of,
    wait_free,
)
from tests.support.engines import BLOCK_SIZE


def test_a_grant_says_all_that_a_proxy_needs(engines: Engines) -> None:
    engine = engines.prefill
    answer = ask(engine, fresh_prompt(), params={"do_remote_decode": True}, max_tokens=1)
    body = answer.json()
    params = parse_params(json.dumps(body["kv_transfer_params"]).encode())
    num_tokens = body["usage"]["prompt_tokens"]
    assert (params.host, params.port) == engine.side_channel
    assert params.num_tokens == num_tokens
    assert params.num_blocks == -(-num_tokens // BLOCK_SIZE)
    assert len(params.block_ids) == 1
    assert (params.tp_size, params.pp_size) == (1, 1)
    assert params.transfer_mode == "pull"
    assert params.cached_tokens == 0
    assert body["choices"][0]["finish_reason"] == "length"
    assert params.request_id.startswith(body["id"])
    eventually(lambda: not is_free(engine), within_s=SETTLE_S, why="P pins nothing")


def test_a_lease_that_nobody_renews_ends_after_its_duration_and_never_earlier(
    engines: Engines,
) -> None:
    with lasts_unrenewed(engines):
        pass


def test_a_read_releases_the_lease_and_nothing_expires(engines: Engines) -> None:
    engine, decoder = engines.prefill, engines.decode
    with nothing_expires(engine):
        prompt = fresh_prompt()
        params = prefill(engine, prompt)
        tokens_of(ask(decoder, prompt, params=params))
        wait_free(engine)


def test_a_request_without_params_gets_none_and_pins_nothing(engines: Engines) -> None:
    with nothing_expires(engines.prefill):
        answer = ask(engines.prefill, fresh_prompt(), max_tokens=1)
        assert answer.json()["kv_transfer_params"] is None
        wait_free(engines.prefill)


def test_a_client_that_leaves_while_p_runs_gets_no_lease(engines: Engines) -> None:
    # One that P completes before the client has left proves nothing, and its lease expires.
    assert any(leaves_early(engines) for _ in range(3)), "P completes it before anybody can leave"


def leaves_early(engines: Engines) -> bool:
    """Leave while P generates; False where it was complete by then."""
    engine = engines.prefill
    nudge(engine)
    complete, expired = num_complete(engine), engine.metrics()[EXPIRED]
    body = long_request(max_tokens=1800)
    body["kv_transfer_params"] = {"do_remote_decode": True}
    connection = engine.open_request("/v1/completions", body)
    eventually(lambda: not is_free(engine), within_s=SETTLE_S, why="P does not run it")
    connection.close()
    wait_free(engine)
    if num_complete(engine) > complete:
        return False
    nudge(engine)
    assert expired == engine.metrics()[EXPIRED]
    return True


def test_equal_request_ids_of_clients_are_kept_apart(engines: Engines) -> None:
    engine = engines.prefill
    headers = {"X-Request-Id": "same"}
    body = {
        "model": "tiny",
        "prompt": fresh_prompt(),
        "max_tokens": 1,
        "kv_transfer_params": {"do_remote_decode": True},
    }
    ids = {
        engine.client.post(f"{engine.url}/v1/completions", json=body, headers=headers).json()[
            "kv_transfer_params"
        ]["remote_request_id"]
        for _ in range(2)
    }
    assert len(ids) == 2
    assert all(each.startswith("cmpl-same-0-") for each in ids)
