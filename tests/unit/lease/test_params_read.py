"""What is read of a good answer, and that nothing of it is lost."""

from __future__ import annotations

import json

import pytest

from pdcluster_lease.params import (
    PREFILL_REQUEST_RAW,
    EngineId,
    RemoteLease,
    RequestId,
    parse_params,
)

# Answered by vLLM 0.32.0, spaces as the engine spelt them.
ANSWER = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5]],'
    b'"remote_engine_id":"92b2db4f-4527-4d43-9e60-edd151ad6326",'
    b'"remote_request_id":"cmpl-754397b2-aff1-445b-b95c-a2a3289017cd-0-972e69ec",'
    b'"remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,'
    b'"remote_num_tokens":138,"remote_blocks_expiry_time":null,"transfer_mode":"pull",'
    b'"remote_prefill_cached_tokens":0}'
)


def test_a_real_answer_is_read_field_by_field() -> None:
    params = parse_params(ANSWER)
    assert params.engine_id == "92b2db4f-4527-4d43-9e60-edd151ad6326"
    assert params.request_id == "cmpl-754397b2-aff1-445b-b95c-a2a3289017cd-0-972e69ec"
    assert (params.host, params.port) == ("127.0.0.1", 5600)
    assert params.block_ids == [[1, 2, 3, 4, 5]]
    assert params.num_blocks == 5
    assert (params.tp_size, params.pp_size, params.dcp_size) == (1, 1, 1)
    assert params.num_tokens == 138
    assert params.transfer_mode == "pull"
    assert params.cached_tokens == 0
    assert params.registration_generation is None


@pytest.mark.parametrize(
    "raw",
    [
        ANSWER,
        ANSWER.replace(b",", b" ,\n\t"),
        ANSWER.replace(b'"tp_size"', b'"new_field":{"a":[1,{"b":2e400}]},"tp_size"'),
        ANSWER.replace(b"127.0.0.1", b"\\u0031\\u0032\\u0037.0.0.1"),
        ANSWER.replace(b'"pp_size":1', b'"pp_size":1,"remote_registration_generation":3'),
    ],
)
def test_the_bytes_stay_as_they_came(raw: bytes) -> None:
    params = parse_params(raw)
    assert raw is params.raw
    assert params.host == "127.0.0.1"


def test_empty_groups_beside_a_full_one_are_legal() -> None:
    params = parse_params(ANSWER.replace(b"[[1,2,3,4,5]]", b"[[],[7],[]]"))
    assert params.block_ids == [[], [7], []]
    assert params.num_blocks == 1


@pytest.mark.parametrize(
    "field",
    [
        "dcp_size",
        "pp_size",
        "remote_num_tokens",
        "transfer_mode",
        "remote_blocks_expiry_time",
        "remote_prefill_cached_tokens",
    ],
)
def test_what_older_engines_do_not_say_is_optional(field: str) -> None:
    answer = json.loads(ANSWER)
    del answer[field]
    params = parse_params(json.dumps(answer).encode())
    assert (params.pp_size, params.dcp_size) == (1, 1)


def test_of_a_duplicated_key_the_last_counts_as_it_does_in_the_engine() -> None:
    raw = ANSWER.replace(b'"remote_port":5600', b'"remote_port":1,"remote_port":5601')
    assert json.loads(raw)["remote_port"] == parse_params(raw).port


@pytest.mark.parametrize(
    "host",
    ["10.0.0.1", "localhost", "127.0.0.3", "prefill-0.pods.example", "fd12::7", "::1", "a_b"],
)
def test_ordinary_hosts_are_taken(host: str) -> None:
    raw = ANSWER.replace(b"127.0.0.1", host.encode())
    if "_" in host:
        with pytest.raises(Exception, match="remote_host"):
            parse_params(raw)
    else:
        assert host == parse_params(raw).host


def test_the_lease_is_what_a_keeper_needs() -> None:
    expected = RemoteLease(
        engine_id=EngineId("92b2db4f-4527-4d43-9e60-edd151ad6326"),
        request_id=RequestId("cmpl-754397b2-aff1-445b-b95c-a2a3289017cd-0-972e69ec"),
        host="127.0.0.1",
        port=5600,
        tp_size=1,
        pp_size=1,
    )
    assert expected == parse_params(ANSWER).lease


def test_the_prefill_request_is_the_six_field_template() -> None:
    expected = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    assert expected == json.loads(PREFILL_REQUEST_RAW)
