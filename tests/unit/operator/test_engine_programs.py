from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.support.resources import ENGINE, MODEL, cluster, resource, validated

from pdcluster_api.proxy_config import Role
from pdcluster_api.v1alpha1.engine import ValueSource
from pdcluster_lease.errors import TimingError
from pdcluster_operator.program.engine import (
    QUIET_VLLM,
    default_command,
    endpoint_of,
    engine_program,
    engine_programs,
    role_spec,
)
from pdcluster_operator.program.environment import MODEL_VARIABLES, SCRATCH_VARIABLES
from pdcluster_operator.program.programs import EngineProgram, Placement, PodField


def local(role: Role, index: int) -> Placement:
    first = 2 if role is Role.PREFILL else 12
    return Placement(
        host=f"127.0.0.{first + index}",
        command=("vllm", "serve"),
        scratch_dir="/scratch",
        models_dir="/models",
    )


def pod(_role: Role, _index: int) -> Placement:
    return Placement(
        host=PodField("status.podIP"),
        command=("vllm", "serve"),
        scratch_dir="/scratch",
        models_dir="/models",
    )


def programs(place: Any = local, **fields: Any) -> dict[str, EngineProgram]:
    return {program.name: program for program in engine_programs(cluster(**fields), place)}


def flag(program: EngineProgram, name: str) -> str:
    assert program.argv.count(name) == 1
    return program.argv[program.argv.index(name) + 1]


def env(program: EngineProgram) -> dict[str, object]:
    names = [name for name, _ in program.env]
    assert len(set(names)) == len(names)
    return dict(program.env)


def test_two_engines_per_role_by_default_prefill_first() -> None:
    assert list(programs()) == ["prefill-0", "prefill-1", "decode-0", "decode-1"]


@pytest.mark.parametrize(
    ("fields", "prefill", "decode"),
    [
        ({"prefill": {"replicas": 1}, "decode": {"replicas": 3}}, 1, 3),
        ({"prefill": {"replicas": 0}, "decode": {"replicas": 0}}, 0, 0),
        ({"prefill": {"autoscaling": {"minReplicas": 4, "maxReplicas": 9}}}, 4, 2),
    ],
)
def test_there_are_as_many_engines_as_asked_for(
    fields: dict[str, Any], prefill: int, decode: int
) -> None:
    roles = [program.role for program in programs(**fields).values()]
    assert (roles.count(Role.PREFILL), roles.count(Role.DECODE)) == (prefill, decode)


def test_the_command_line_of_a_prefill_engine() -> None:
    program = programs()["prefill-1"]
    config = json.dumps(
        {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_producer",
            "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": {
                "kv_lease_duration": 30,
                "enforce_handshake_compat": True,
                "backends": ["UCX"],
            },
        },
        separators=(",", ":"),
    )
    assert program.argv == (
        "vllm",
        "serve",
        "Qwen/Qwen3-8B",
        "--served-model-name",
        "Qwen/Qwen3-8B",
        "--host",
        "127.0.0.3",
        "--port",
        "8000",
        "--kv-transfer-config",
        config,
        "--shutdown-timeout",
        "80",
    )


def test_the_model_is_positional_right_after_the_command() -> None:
    program = programs()["decode-0"]
    assert "--model" not in program.argv
    assert program.argv[2] == "Qwen/Qwen3-8B"


def test_served_name_and_revision_come_from_the_model() -> None:
    program = programs(model=MODEL | {"servedName": "qwen", "revision": "main"})["prefill-0"]
    assert flag(program, "--served-model-name") == "qwen"
    assert flag(program, "--revision") == "main"


def test_no_revision_renders_no_flag() -> None:
    assert "--revision" not in programs()["prefill-0"].argv


def test_what_the_place_asks_for_comes_before_the_resources_own_words() -> None:
    asked = cluster(engine=ENGINE | {"args": ["--a"]}, decode={"args": ["--b"]})
    place = replace(local(Role.DECODE, 0), args=QUIET_VLLM)
    argv = engine_program(asked, Role.DECODE, place).argv
    assert argv[-4:] == ("--disable-access-log-for-endpoints", "/health,/metrics", "--a", "--b")


def test_the_users_words_come_last_the_roles_after_the_engines() -> None:
    found = programs(engine=ENGINE | {"args": ["--a"]}, decode={"args": ["--b", "1"]})
    assert found["decode-0"].argv[-3:] == ("--a", "--b", "1")
    assert found["prefill-0"].argv[-1] == "--a"


def test_parallel_sizes_are_rendered_only_above_one() -> None:
    found = programs(prefill={"tensorParallelSize": 2, "pipelineParallelSize": 3})
    assert flag(found["prefill-0"], "--tensor-parallel-size") == "2"
    assert flag(found["prefill-0"], "--pipeline-parallel-size") == "3"
    assert not any("parallel" in word for word in found["decode-0"].argv)


def test_each_data_parallel_rank_has_a_side_channel_port_on_both_roles() -> None:
    found = programs(prefill={"dataParallelSize": 3})
    assert [(port.name, port.number) for port in found["prefill-0"].ports] == [
        ("http", 8000),
        ("side-channel", 5600),
        ("side-channel-1", 5601),
        ("side-channel-2", 5602),
    ]
    assert [port.name for port in found["decode-0"].ports] == ["http", "side-channel"]


def test_shutdown_timeout_and_grace_follow_from_the_lease() -> None:
    found = programs(kvTransfer={"kvLeaseDurationSeconds": 90})
    prefill, decode = found["prefill-0"], found["decode-0"]
    assert (prefill.shutdown_timeout_s, prefill.grace_s) == (150, 225)
    assert (decode.shutdown_timeout_s, decode.grace_s) == (600, 605)
    assert flag(prefill, "--shutdown-timeout") == "150"
    assert flag(decode, "--shutdown-timeout") == "600"


def test_an_impossible_lease_gives_no_programs() -> None:
    with pytest.raises(TimingError):
        programs(kvTransfer={"kvLeaseDurationSeconds": 6})


def test_the_startup_probe_covers_the_startup_timeout() -> None:
    for seconds in (10, 11, 1800):
        probes = programs(prefill={"startupTimeoutSeconds": seconds})["prefill-0"].probes
        assert seconds <= probes.startup.budget_s < seconds + probes.startup.period_s
        assert probes.liveness.budget_s >= 60
        assert {probes.startup.path, probes.readiness.path, probes.liveness.path} == {"/health"}


def test_ports_are_the_resources_own() -> None:
    found = programs(engine=ENGINE | {"port": 9000}, kvTransfer={"sideChannelPort": 7000})
    program = found["decode-1"]
    assert flag(program, "--port") == "9000"
    assert env(program)["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "7000"
    assert program.probes.readiness.port == 9000


def test_both_roles_have_one_revision_and_one_lease() -> None:
    found = programs(kvTransfer={"kvLeaseDurationSeconds": 42}).values()
    assert len({program.revision for program in found}) == 1
    assert {program.lease_duration_s for program in found} == {42}


# --- environment -------------------------------------------------------------------------------


def test_an_engine_advertises_the_address_it_listens_on() -> None:
    program = programs()["prefill-0"]
    variables = env(program)
    assert variables["VLLM_HOST_IP"] == "127.0.0.2"
    assert variables["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.2"
    assert flag(program, "--host") == "127.0.0.2"


def test_in_a_pod_the_address_is_the_pods() -> None:
    program = programs(pod)["prefill-0"]
    assert env(program)["VLLM_HOST_IP"] == PodField("status.podIP")
    assert env(program)["VLLM_NIXL_SIDE_CHANNEL_HOST"] == PodField("status.podIP")
    assert flag(program, "--host") == "$(VLLM_HOST_IP)"


def test_every_cache_lies_in_the_scratch_folder_and_models_in_theirs() -> None:
    variables = env(programs()["decode-0"])
    for name, _ in SCRATCH_VARIABLES:
        assert str(variables[name]).startswith("/scratch")
    for name in MODEL_VARIABLES:
        assert variables[name] == "/models"
    assert variables["HOME"] == "/scratch"
    assert variables["USER"] == variables["LOGNAME"] == "engine"


def test_two_libraries_never_share_a_cache_folder() -> None:
    folders = [folder for _, folder in SCRATCH_VARIABLES]
    assert len(set(folders)) == len(folders)


def test_what_is_more_particular_wins() -> None:
    def place(role: Role, index: int) -> Placement:
        base = local(role, index)
        return Placement(
            host=base.host,
            command=base.command,
            scratch_dir="/scratch",
            models_dir="/models",
            env=(("HOME", "/home/me"), ("A", "place"), ("B", "place"), ("UCX_TLS", "tcp")),
        )

    found = programs(
        place,
        engine=ENGINE | {"env": [{"name": "A", "value": "engine"}, {"name": "C", "value": "x"}]},
        decode={"env": [{"name": "A", "value": "decode"}]},
    )
    assert env(found["decode-0"])["HOME"] == "/home/me"
    assert env(found["decode-0"])["A"] == "decode"
    assert env(found["prefill-0"])["A"] == "engine"
    assert env(found["prefill-0"])["B"] == "place"
    assert env(found["prefill-0"])["C"] == "x"
    assert env(found["prefill-0"])["UCX_TLS"] == "tcp"


def test_stated_ucx_settings_win_over_the_places_and_empty_ones_render_nothing() -> None:
    found = programs(kvTransfer={"ucx": {"tls": "rc", "netDevices": "mlx5_0:1"}})["decode-0"]
    assert env(found)["UCX_TLS"] == "rc"
    assert env(found)["UCX_NET_DEVICES"] == "mlx5_0:1"
    assert not any(name.startswith("UCX") for name in env(programs()["decode-0"]))


def test_a_variable_from_a_source_is_passed_on_as_it_is() -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    found = programs(decode={"env": [{"name": "A", "valueFrom": source}, {"name": "B"}]})
    value = env(found["decode-0"])["A"]
    assert isinstance(value, ValueSource)
    assert value.model_dump(by_alias=True, exclude_none=True) == source
    assert env(found["decode-0"])["B"] == ""


# --- the rest ----------------------------------------------------------------------------------


def test_the_default_command_is_vllm_serve_and_a_stated_one_wins() -> None:
    assert default_command(cluster().spec) == ("vllm", "serve")
    stated = cluster(engine=ENGINE | {"command": ["python3", "-m", "x"]})
    assert default_command(stated.spec) == ("python3", "-m", "x")


def test_a_role_has_its_own_spec() -> None:
    spec = cluster(prefill={"replicas": 1}, decode={"replicas": 3}).spec
    assert role_spec(spec, Role.PREFILL).replicas == 1
    assert role_spec(spec, Role.DECODE).replicas == 3


def test_an_engine_as_the_proxy_sees_it() -> None:
    program = programs(engine=ENGINE | {"port": 9000})["decode-0"]
    endpoint = endpoint_of(program, name="d", draining=True)
    assert endpoint.name == "d"
    assert endpoint.role is Role.DECODE
    assert endpoint.url == "http://127.0.0.12:9000"
    assert endpoint.side_channel == "127.0.0.12:5600"
    assert (endpoint.revision, endpoint.lease_duration_seconds) == (program.revision, 30)
    assert endpoint.draining
    assert endpoint_of(program).name == "decode-0"


def test_equal_resources_give_equal_programs() -> None:
    document = resource(decode={"args": ["--x"]})
    once = engine_programs(validated(document), local)
    assert once == engine_programs(validated(document), local)
