"""What a rogue or broken prefill engine may answer, and what comes of it."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_lease.errors import RemoteProtocolError
from pdcluster_lease.params import ParamsLimits, parse_params

GOOD: dict[str, object] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3, 4, 5]],
    "remote_engine_id": "92b2db4f-4527-4d43-9e60-edd151ad6326",
    "remote_request_id": "cmpl-754397b2-0-972e69ec",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 138,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 0,
}
REJECTED_WITHIN_S = 0.05


def rejection(raw: bytes) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        parse_params(raw)
    return caught.value


def spoilt(**changes: object) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


@pytest.mark.parametrize(
    "field",
    [
        "do_remote_prefill",
        "do_remote_decode",
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
        "tp_size",
    ],
)
def test_a_missing_required_field_is_named(field: str) -> None:
    raw = json.dumps({name: value for name, value in GOOD.items() if name != field}).encode()
    assert field == rejection(raw).field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("do_remote_prefill", False),
        ("do_remote_prefill", 1),
        ("do_remote_prefill", "true"),
        ("do_remote_decode", True),
        ("do_remote_decode", None),
        ("remote_block_ids", None),
        ("remote_block_ids", []),
        ("remote_block_ids", [[]]),
        ("remote_block_ids", [[], []]),
        ("remote_block_ids", [1, 2]),
        ("remote_block_ids", [["1"]]),
        ("remote_block_ids", [[1.5]]),
        ("remote_block_ids", [[1.0]]),
        ("remote_block_ids", [[True]]),
        ("remote_block_ids", [[-1]]),
        ("remote_block_ids", [[2**31]]),
        ("remote_block_ids", [[10**40]]),
        ("remote_block_ids", [[[1]]]),
        ("remote_block_ids", {"0": [1]}),
        ("remote_block_ids", [[1]] * 2000),
        ("remote_engine_id", ""),
        ("remote_engine_id", None),
        ("remote_engine_id", 7),
        ("remote_engine_id", "e" * 4096),
        ("remote_request_id", ""),
        ("remote_request_id", ["a"]),
        ("remote_request_id", "r" * 4096),
        ("remote_host", ""),
        ("remote_host", None),
        ("remote_host", "h" * 4096),
        ("remote_port", 0),
        ("remote_port", -1),
        ("remote_port", 65536),
        ("remote_port", "22"),
        ("remote_port", 22.0),
        ("remote_port", True),
        ("tp_size", 0),
        ("tp_size", 10**9),
        ("tp_size", None),
        ("pp_size", 10**9),
        ("dcp_size", 10**9),
        ("pp_size", 0),
        ("remote_num_tokens", -1),
        ("remote_num_tokens", "138"),
        ("remote_num_tokens", 10**30),
        ("transfer_mode", "push"),
        ("transfer_mode", 1),
        ("remote_prefill_cached_tokens", -5),
        ("remote_blocks_expiry_time", "soon"),
        ("remote_registration_generation", "1"),
    ],
)
def test_a_wrong_value_is_rejected_and_its_field_named(field: str, value: object) -> None:
    assert field == rejection(spoilt(**{field: value})).field


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",
        "::",
        "169.254.169.254",
        "169.254.1.1",
        "fe80::1",
        "fe80::1%eth0",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:a9fe:a9fe",
        "64:ff9b::1%lo",
        "2002:a9fe:a9fe::",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "metadata.google.internal",
        "METADATA.google.internal.",
        "224.0.0.1",
        "ff02::1",
        "240.0.0.1",
        "255.255.255.255",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "10.0.0.1:5600",
        "[::1]",
        "user@10.0.0.1",
        "10.0.0.1/",
        "a b",
        "a\nb",
        "a\x00b",
        "a..b",
        ".",
        "-" * 64 + ".x",
        "\u2460.example",
        "\uff11\uff12\uff17.0.0.1",
    ],
)
def test_a_host_that_nobody_should_connect_to_is_rejected(host: str) -> None:
    assert rejection(spoilt(remote_host=host)).field == "remote_host"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"x"',
        b"{",
        b"nul",
        b"\xff\xfe",
        spoilt() + b"x",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        spoilt(remote_host="HOST").replace(b"HOST", b"\\ud800"),
        spoilt(remote_host="HOST").replace(b"HOST", b"\xff\xff"),
    ],
)
def test_what_is_no_json_object_is_rejected(raw: bytes) -> None:
    rejection(raw)


def deep(depth: int) -> bytes:
    return spoilt(other="X").replace(b'"X"', b"[" * depth + b"]" * depth)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(spoilt(remote_block_ids=[list(range(1_000_000))]), id="a-million-block-ids"),
        pytest.param(spoilt(remote_block_ids=[[7] * 120_000]), id="as-many-ids-as-fit"),
        pytest.param(spoilt(remote_block_ids=[[]] * 100_000), id="empty-groups"),
        pytest.param(
            spoilt(remote_num_tokens=0).replace(b'_tokens": 0', b'_tokens": ' + b"9" * 500_000),
            id="huge-int",
        ),
        pytest.param(deep(200_000), id="deep-nesting"),
        pytest.param(spoilt(remote_host="h" * 500_000), id="huge-name"),
        pytest.param(spoilt(remote_host="1." * 120), id="many-labels"),
        pytest.param(
            b"{" + b",".join(b'"k%d":{}' % i for i in range(40_000)) + b"}", id="many-fields"
        ),
    ],
)
def test_hostile_input_is_rejected_before_it_costs_much(raw: bytes) -> None:
    spent = []
    for _ in range(5):
        started_at = time.process_time()
        rejection(raw)
        spent.append(time.process_time() - started_at)
    # The best of five, in CPU time: what the input costs, not what else the machine was doing.
    assert min(spent) < REJECTED_WITHIN_S


def test_limits_are_the_callers() -> None:
    raw = spoilt(remote_block_ids=[[1, 2, 3]])
    parse_params(raw, ParamsLimits(block_ids=3))
    with pytest.raises(RemoteProtocolError, match="at most 2"):
        parse_params(raw, ParamsLimits(block_ids=2))
    with pytest.raises(RemoteProtocolError, match="bytes, at most 10"):
        parse_params(raw, ParamsLimits(raw_bytes=10))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@given(st.sampled_from(sorted(GOOD)), JSON)
def test_any_value_in_any_field_is_either_read_or_rejected(field: str, value: object) -> None:
    raw = spoilt(**{field: value})
    try:
        params = parse_params(raw)
    except RemoteProtocolError:
        return
    assert raw == params.raw


@given(st.binary(max_size=200))
def test_any_bytes_are_rejected(raw: bytes) -> None:
    rejection(raw)
