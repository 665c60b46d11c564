from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.resources import cluster

from pdcluster_api.proxy_config import Role
from pdcluster_operator.program.kv_transfer import kv_transfer_config


def config(role: Role, **fields: Any) -> dict[str, Any]:
    spec = cluster(kvTransfer=fields).spec
    parsed = json.loads(kv_transfer_config(spec.kv_transfer, role))
    assert isinstance(parsed, dict)
    return parsed


def test_prefill_produces_and_decode_consumes() -> None:
    assert config(Role.PREFILL)["kv_role"] == "kv_producer"
    assert config(Role.DECODE)["kv_role"] == "kv_consumer"


def test_both_do_both_where_blocks_travel_both_ways() -> None:
    for role in Role:
        found = config(role, bidirectional=True)
        assert found["kv_role"] == "kv_both"
        extra = found["kv_connector_extra_config"]
        assert extra["bidirectional_kv_xfer"] is True
        assert (extra["decoder_kv_blocks_ttl"], extra["kv_recompute_threshold"]) == (480, 64)


def test_stated_bidirectional_settings_win_even_at_zero() -> None:
    found = config(
        Role.DECODE, bidirectional=True, decoderKVBlocksTTLSeconds=60, kvRecomputeThreshold=0
    )
    extra = found["kv_connector_extra_config"]
    assert (extra["decoder_kv_blocks_ttl"], extra["kv_recompute_threshold"]) == (60, 0)


def test_one_way_says_nothing_of_the_other() -> None:
    assert set(config(Role.DECODE)["kv_connector_extra_config"]) == {
        "kv_lease_duration",
        "enforce_handshake_compat",
        "backends",
    }


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kvLeaseDurationSeconds": 60},
        {"bidirectional": True},
        {"enforceHandshakeCompatibility": False, "backends": ["UCX", "GDS"]},
    ],
)
def test_lease_settings_are_the_same_on_both_roles(fields: dict[str, Any]) -> None:
    prefill, decode = config(Role.PREFILL, **fields), config(Role.DECODE, **fields)
    assert prefill["kv_connector_extra_config"] == decode["kv_connector_extra_config"]


@pytest.mark.parametrize(("policy", "word"), [("Fail", "fail"), ("Recompute", "recompute")])
def test_the_load_failure_policy_in_the_engines_word(policy: str, word: str) -> None:
    assert config(Role.DECODE, loadFailurePolicy=policy)["kv_load_failure_policy"] == word


def test_a_buffer_device_is_rendered_only_where_stated() -> None:
    assert "kv_buffer_device" not in config(Role.PREFILL)
    assert config(Role.PREFILL, bufferDevice="cpu")["kv_buffer_device"] == "cpu"


def test_an_engine_id_is_never_pinned() -> None:
    assert "engine_id" not in config(Role.PREFILL, bidirectional=True)


def test_the_text_is_one_word_without_spaces() -> None:
    assert " " not in kv_transfer_config(cluster().spec.kv_transfer, Role.PREFILL)
