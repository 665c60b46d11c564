"""What operator and proxy tell each other survives the way over disk and wire."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from pdcluster_api.proxy_config import EndpointConfig, EndpointsFile, ProxyConfig, Role
from pdcluster_api.proxy_state import EngineLedger, ProxyState

CONFIG = {
    "cluster": "qwen",
    "model": "m",
    "listen": {"host": "127.0.0.1", "port": 8080},
    "admin": {"host": "127.0.0.1", "port": 9090},
    "lease": {"durationSeconds": 30, "maxHoldSeconds": 120},
    "timeouts": {"requestSeconds": 600, "firstByteSeconds": 600, "idleSeconds": 60},
    "admission": {"maxInFlight": 10, "maxQueue": 10, "queueTimeoutSeconds": 1},
    "endpointsFile": "/e.json",
    "graceSeconds": 600,
}


def test_a_proxy_config_is_camel_case_on_disk() -> None:
    config = ProxyConfig.model_validate_json(json.dumps(CONFIG))
    written = json.loads(config.model_dump_json(by_alias=True))
    assert CONFIG.keys() <= written.keys()
    assert ProxyConfig.model_validate(written) == config


def test_an_unknown_key_of_a_proxy_config_is_rejected() -> None:
    with pytest.raises(ValidationError, match="not permitted"):
        ProxyConfig.model_validate(CONFIG | {"colour": "red"})


def test_an_endpoints_file_survives_writing_and_reading() -> None:
    endpoints = EndpointsFile(
        endpoints=(
            EndpointConfig(
                name="p",
                role=Role.PREFILL,
                url="http://127.0.0.2:8000",
                side_channel="127.0.0.2:5600",
                revision="6f9c12ab",
                draining=True,
            ),
        )
    )
    written = endpoints.model_dump_json(by_alias=True)
    assert '"sideChannel"' in written
    assert EndpointsFile.model_validate_json(written) == endpoints


def ledger(**fields: object) -> EngineLedger:
    return EngineLedger.model_validate({"name": "p", "role": "prefill", "inFlight": 0} | fields)


@pytest.mark.parametrize(
    ("engine", "quiet"),
    [
        (ledger(held=0), True),
        (ledger(held=1), False),
        (ledger(held=0, inFlight=1), False),
        (ledger(), None),
        (ledger(role="decode"), True),
        (ledger(role="decode", inFlight=2), False),
        (ledger(name="other", held=0), None),
    ],
)
def test_an_engine_is_quiet_only_where_the_proxy_knows_that_nothing_is_left(
    engine: EngineLedger, *, quiet: bool | None
) -> None:
    state = ProxyState(cluster="qwen", in_flight=0, engines=(engine,))
    assert state.is_quiet("p") is quiet


def test_a_newer_proxys_fields_are_skipped() -> None:
    state = ProxyState.model_validate({"cluster": "q", "inFlight": 1, "colour": "red"})
    assert state.in_flight == 1


@pytest.mark.parametrize("count", [-1, "many"])
def test_a_count_that_is_none_is_rejected(count: object) -> None:
    with pytest.raises(ValidationError):
        ProxyState.model_validate({"cluster": "q", "inFlight": count})
