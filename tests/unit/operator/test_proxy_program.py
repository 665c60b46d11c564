from __future__ import annotations

from typing import Any

import pytest
from tests.support.resources import MODEL, cluster

from pdcluster_api.proxy_config import (
    KeeperMode,
    LocalPrefillFallback,
    PrefillPolicy,
    ProxyConfig,
)
from pdcluster_lease.errors import TimingError
from pdcluster_operator.program.programs import ProxyPlacement, ProxyProgram
from pdcluster_operator.program.proxy import proxy_config, proxy_program

PLACE = ProxyPlacement(
    host="127.0.0.1",
    port=8080,
    admin_host="127.0.0.9",
    admin_port=9090,
    command=("proxy",),
    config_file="/run/proxy.json",
    endpoints_file="/run/endpoints.json",
    workers=3,
    drain_s=2.0,
)


def program(**fields: Any) -> ProxyProgram:
    return proxy_program(cluster(**fields), PLACE)


def config(**fields: Any) -> ProxyConfig:
    return proxy_config(cluster(**fields), PLACE)


def test_the_proxy_is_told_where_its_configuration_is() -> None:
    assert program().argv == ("proxy", "--config", "/run/proxy.json")
    assert program().config == config()


def test_the_place_decides_addresses_files_and_workers() -> None:
    found = config()
    assert (found.listen.host, found.listen.port) == ("127.0.0.1", 8080)
    assert (found.admin.host, found.admin.port) == ("127.0.0.9", 9090)
    assert found.endpoints_file == "/run/endpoints.json"
    assert (found.workers, found.drain_seconds) == (3, 2.0)
    assert [(port.name, port.number) for port in program().ports] == [
        ("http", 8080),
        ("admin", 9090),
    ]


def test_clients_send_the_served_name() -> None:
    assert config().model == "Qwen/Qwen3-8B"
    assert config(model=MODEL | {"servedName": "qwen"}).model == "qwen"


def test_the_lease_is_the_engines() -> None:
    found = config(kvTransfer={"kvLeaseDurationSeconds": 60})
    assert found.lease.duration_seconds == 60
    assert found.lease.max_hold_seconds == 240
    assert found.lease.hand_off_deadline_seconds is None


def test_stated_deadline_and_hold_are_passed_on() -> None:
    found = config(proxy={"handOffDeadlineSeconds": 7, "maxHoldSeconds": 90})
    assert found.lease.hand_off_deadline_seconds == 7
    assert found.lease.max_hold_seconds == 90


def test_there_is_no_keeper_whatever_the_resource_says() -> None:
    assert config(proxy={"leaseKeeper": True}).keeper is KeeperMode.ABSENT
    assert config(proxy={"leaseKeeper": False}).keeper is KeeperMode.ABSENT


def test_timeouts_follow_the_request_timeout() -> None:
    found = config(proxy={"requestTimeoutSeconds": 100}).timeouts
    assert (found.request_seconds, found.first_byte_seconds, found.idle_seconds) == (100, 100, 60)


def test_running_exchanges_may_finish_before_the_proxy_is_killed() -> None:
    found = program(proxy={"requestTimeoutSeconds": 100})
    assert found.config.grace_seconds == 100
    assert found.grace_s > found.config.drain_seconds + found.config.grace_seconds


def test_prefix_affinity_is_least_load_until_it_is_built() -> None:
    assert config().policy.prefill is PrefillPolicy.LEAST_LOAD
    stated = config(proxy={"policy": {"prefill": "PrefixAffinity"}})
    assert stated.policy.prefill is PrefillPolicy.LEAST_LOAD


def test_admission_and_fallback_are_passed_on() -> None:
    found = config(
        proxy={
            "admission": {"maxInFlight": 5, "maxQueue": 6, "queueTimeoutSeconds": 7},
            "localPrefillFallback": "WhenNoPrefill",
        }
    )
    assert found.admission.max_in_flight == 5
    assert found.admission.max_queue == 6
    assert found.admission.queue_timeout_seconds == 7
    assert found.local_prefill_fallback is LocalPrefillFallback.WHEN_NO_PREFILL


def test_the_start_is_probed_without_waiting_for_engines() -> None:
    probes = program().probes
    assert (probes.startup.path, probes.startup.port) == ("/healthz", 9090)
    assert (probes.liveness.path, probes.liveness.port) == ("/healthz", 8080)
    assert (probes.readiness.path, probes.readiness.port) == ("/readyz", 9090)


def test_an_impossible_lease_gives_no_proxy() -> None:
    with pytest.raises(TimingError):
        program(kvTransfer={"kvLeaseDurationSeconds": 7})


def test_the_configuration_survives_the_file() -> None:
    found = config()
    text = found.model_dump_json(by_alias=True)
    assert ProxyConfig.model_validate_json(text) == found
