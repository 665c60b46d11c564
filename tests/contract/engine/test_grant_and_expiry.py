"""P's side: what a grant says, how long it holds, what ends it."""

from __future__ import annotations

import json
import time

from pdcluster_lease.params import parse_params
from tests.contract.engine.fleet import (
    EXTENSION_S,
    LEASE_S,
    SLACK_S,
    Fleet,
    ask,
    eventually,
    fresh_prompt,
    is_free,
    long_request,
    prefill,
    settled,
    tokens_of,
    wait_free,
)
from tests.support.engines import BLOCK_SIZE


def test_a_grant_says_all_that_a_proxy_needs(fleet: Fleet) -> None:
    engine = fleet.prefill
    wait_free(engine, within_s=LEASE_S + SLACK_S)
    prompt = fresh_prompt()
    answer = ask(engine, prompt, params={"do_remote_decode": True}, max_tokens=1)
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
    assert not is_free(engine)


def test_a_lease_that_nobody_renews_ends_after_its_duration_and_never_earlier(
    fleet: Fleet,
) -> None:
    engine = fleet.prefill
    wait_free(engine, within_s=LEASE_S + SLACK_S)
    expired = engine.metrics()["nixl_num_kv_expired_reqs_total"]
    asked_at = time.monotonic()
    prefill(engine, fresh_prompt())
    answered_at = time.monotonic()
    eventually(lambda: is_free(engine), within_s=LEASE_S + SLACK_S, why="the lease still holds")
    # P grants between the question and the answer, so its clock starts in between.
    assert time.monotonic() - asked_at >= LEASE_S
    assert time.monotonic() - answered_at <= LEASE_S + SLACK_S
    assert settled(engine, "nixl_num_kv_expired_reqs_total", expired + 1) == expired + 1


def test_a_read_releases_the_lease_at_once_and_nothing_expires(fleet: Fleet) -> None:
    engine, decoder = fleet.prefill, fleet.decode
    wait_free(engine, within_s=LEASE_S + SLACK_S)
    expired = engine.metrics()["nixl_num_kv_expired_reqs_total"]
    prompt = fresh_prompt()
    params = prefill(engine, prompt)
    tokens_of(ask(decoder, prompt, params=params))
    assert wait_free(engine) < EXTENSION_S
    assert engine.metrics()["nixl_num_kv_expired_reqs_total"] == expired


def test_a_request_without_params_gets_none(fleet: Fleet) -> None:
    answer = ask(fleet.prefill, fresh_prompt(), max_tokens=1)
    assert answer.json()["kv_transfer_params"] is None
    wait_free(fleet.prefill, within_s=LEASE_S + SLACK_S)


def test_a_client_that_leaves_while_p_runs_gets_no_lease(fleet: Fleet) -> None:
    engine = fleet.prefill
    wait_free(engine, within_s=LEASE_S + SLACK_S)
    expired = engine.metrics()["nixl_num_kv_expired_reqs_total"]
    body = long_request(max_tokens=900)
    body["kv_transfer_params"] = {"do_remote_decode": True}
    connection = engine.open_request("/v1/completions", body)
    eventually(lambda: not is_free(engine), within_s=SLACK_S, why="P does not run it")
    connection.close()
    assert wait_free(engine) < LEASE_S / 2
    assert engine.metrics()["nixl_num_kv_expired_reqs_total"] == expired


def test_equal_request_ids_of_clients_are_kept_apart(fleet: Fleet) -> None:
    engine = fleet.prefill
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
    wait_free(engine, within_s=LEASE_S + SLACK_S)
