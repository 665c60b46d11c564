"""vLLM's command line: what is honoured, what is accepted, what is rejected and how."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pdcluster_sim.errors import FlagError
from pdcluster_sim.flags import INERT_SWITCHES, INERT_VALUES, parse_settings

if TYPE_CHECKING:
    from pdcluster_sim.settings import Settings

CONFIG = {
    "kv_connector": "NixlConnector",
    "kv_role": "kv_producer",
    "kv_load_failure_policy": "fail",
    "kv_connector_extra_config": {
        "kv_lease_duration": 6,
        "enforce_handshake_compat": True,
        "backends": ["UCX"],
    },
}


def parse(*argv: str, **environ: str) -> Settings:
    return parse_settings(argv, environ)


def with_config(**changes: object) -> tuple[str, str]:
    return "--kv-transfer-config", json.dumps({**CONFIG, **changes})


def rejection(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Parse what vLLM's parser rejects; return what it says."""
    with pytest.raises(SystemExit) as caught:
        parse(*argv)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_without_flags_an_engine_is_vllms_default_where_there_is_one() -> None:
    settings = parse()
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)
    assert (settings.model, settings.served_names) == ("sim", ("sim",))
    assert (settings.block_size, settings.max_num_seqs) == (16, 256)
    assert settings.prefix_caching
    assert not settings.prompt_tokens_details
    assert settings.shutdown_timeout_s == 0
    assert settings.kv_transfer is None
    assert not settings.admin


def test_the_operators_command_line_is_understood() -> None:
    settings = parse(
        *("serve", "Qwen/Qwen3-8B", "--served-model-name", "qwen3-8b", "--host", "10.0.0.1"),
        *("--port", "8001", "--revision", "main", *with_config(), "--shutdown-timeout", "50"),
        *("--tensor-parallel-size", "1", "--block-size", "32", "--max-num-seqs", "4"),
        *("--num-gpu-blocks-override", "128", "--max-model-len", "1024", "--dtype", "float32"),
        "--enforce-eager",
        VLLM_NIXL_SIDE_CHANNEL_HOST="10.0.0.1",
        VLLM_NIXL_SIDE_CHANNEL_PORT="5601",
    )
    assert settings.model == "Qwen/Qwen3-8B"
    assert settings.served_names == ("qwen3-8b",)
    assert (settings.block_size, settings.num_blocks, settings.max_num_seqs) == (32, 128, 4)
    assert settings.shutdown_timeout_s == 50
    kv = settings.kv_transfer
    assert kv is not None
    assert (kv.side_channel_host, kv.side_channel_port) == ("10.0.0.1", 5601)
    assert kv.timing.duration_s == 6
    assert not kv.recomputes
    assert kv.engine_id is None


@pytest.mark.parametrize(
    "argv",
    [
        ("serve", "m"),
        ("m",),
        ("--model", "m"),
        ("serve", "--model", "m"),
        (
            "serve",
            "--model=m",
        ),
    ],
)
def test_the_model_may_be_positional_or_a_flag(argv: tuple[str, ...]) -> None:
    assert parse(*argv).model == "m"


def test_underscores_are_dashes_as_in_vllm() -> None:
    assert parse("--max_model_len=1024", "--block_size", "32").max_model_len == 1024


@pytest.mark.parametrize(("text", "tokens"), [("4096", 4096), ("4k", 4000), ("4K", 4096)])
def test_a_number_of_tokens_may_have_a_suffix(text: str, tokens: int) -> None:
    assert parse("--max-model-len", text).max_model_len == tokens


def test_the_cache_grows_with_the_model_length_where_its_size_is_not_given() -> None:
    settings = parse("--max-model-len", "100000")
    assert (settings.num_blocks - 1) * settings.block_size >= 2 * 100_000


@pytest.mark.parametrize(("argv", "most"), [((), 20), (("--max-logprobs", "-1"), -1)])
def test_the_bound_on_logprobs_is_vllms_unless_it_is_given(
    argv: tuple[str, ...], most: int
) -> None:
    assert parse(*argv).max_logprobs == most


def test_several_names_may_be_served() -> None:
    assert parse("m", "--served-model-name", "a", "b").served_names == ("a", "b")


def test_keys_come_from_flag_and_environment() -> None:
    settings = parse("--api-key", "one", "two", VLLM_API_KEY="three")
    assert settings.api_keys == {"one", "two", "three"}


@pytest.mark.parametrize("switch", INERT_SWITCHES)
def test_a_switch_that_changes_nothing_is_accepted_both_ways(switch: str) -> None:
    assert parse(switch) == parse(switch.replace("--", "--no-", 1)) == parse()


@pytest.mark.parametrize("flag", INERT_VALUES)
def test_a_flag_that_changes_nothing_is_accepted_with_its_value(flag: str) -> None:
    assert parse(flag, "0.9") == parse()


@pytest.mark.parametrize(
    "argv",
    [
        ("--no-such-flag",),
        ("--sim-no-such-flag", "1"),
        ("--block-siz", "16"),
        ("m", "another"),
        ("--kv-lease-duration", "6"),
    ],
)
def test_an_unknown_flag_is_rejected(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]
) -> None:
    assert "unrecognized arguments" in rejection(capsys, *argv)


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("--port", "0"), "--port"),
        (("--port", "65536"), "--port"),
        (("--port", "http"), "--port"),
        (("--block-size", "0"), "--block-size"),
        (("--max-num-seqs", "-1"), "--max-num-seqs"),
        (("--max-model-len", "long"), "--max-model-len"),
        (("--dtype", "int4"), "--dtype"),
        (("--tensor-parallel-size", "2"), "one rank"),
        (("--pipeline-parallel-size", "2"), "one rank"),
        (("--sim-step-time-ms", "-1"), "--sim-step-time-ms"),
        (("--sim-step-time-ms", "nan"), "--sim-step-time-ms"),
        (("--sim-transfer-gbps", "inf"), "--sim-transfer-gbps"),
        (("--shutdown-timeout", "soon"), "--shutdown-timeout"),
        (("--port",), "--port"),
    ],
)
def test_a_wrong_value_is_rejected_and_its_flag_named(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], named: str
) -> None:
    assert named in rejection(capsys, *argv)


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("--num-gpu-blocks-override", "10"), "--num-gpu-blocks-override"),
        (("--sim-kv-bytes-per-token", "100"), "multiple of 64"),
        (("--kv-transfer-config", "{"), "--kv-transfer-config"),
        (("--kv-transfer-config", "[]"), "--kv-transfer-config"),
        (with_config(kv_connector="LMCacheConnector"), "kv_connector"),
        (with_config(kv_connector=None), "kv_connector"),
        (with_config(kv_role="prefill"), "kv_role"),
        (with_config(kv_load_failure_policy="Fail"), "kv_load_failure_policy"),
        (with_config(unknown=1), "unknown"),
        (with_config(kv_connector_extra_config={"kv_lease_duration": 5}), "kv_lease_duration"),
        (with_config(kv_connector_extra_config={"kv_lease_duration": "6"}), "kv_lease_duration"),
        (
            with_config(kv_connector_extra_config={"bidirectional_kv_xfer": True}),
            "bidirectional_kv_xfer",
        ),
    ],
)
def test_what_cannot_work_is_rejected_by_name(argv: tuple[str, ...], named: str) -> None:
    with pytest.raises(FlagError, match=named):
        parse(*argv)


@pytest.mark.parametrize("port", ["", "0", "65536", "http", "-1", "5600.0"])
def test_a_side_channel_port_that_is_none_is_rejected(port: str) -> None:
    with pytest.raises(FlagError, match="VLLM_NIXL_SIDE_CHANNEL_PORT"):
        parse_settings(with_config(), {"VLLM_NIXL_SIDE_CHANNEL_PORT": port})


def test_the_side_channel_is_vllms_default_where_nothing_is_said() -> None:
    kv = parse(*with_config()).kv_transfer
    assert kv is not None
    assert (kv.side_channel_host, kv.side_channel_port) == ("localhost", 5600)


def test_unknown_keys_of_the_extra_config_are_ignored_as_in_vllm() -> None:
    config = {"initial_kv_lease": 1, "heartbeat_interval": 2}
    kv = parse(*with_config(kv_connector_extra_config=config)).kv_transfer
    assert kv is not None
    assert kv.timing.duration_s == 30


def test_the_policy_and_a_pinned_engine_id_are_taken() -> None:
    kv = parse(*with_config(kv_load_failure_policy="recompute", engine_id="e1")).kv_transfer
    assert kv is not None
    assert (kv.recomputes, kv.engine_id) == (True, "e1")


def test_help_says_what_is_not_vllms(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "flags that vLLM does not have" in shown
    assert "--sim-step-time-ms" in shown


def test_tools_are_parsed_where_both_flags_say_so() -> None:
    both = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    assert parse_settings(both, {}).parses_tools
    assert not parse_settings(both[1:], {}).parses_tools
    with pytest.raises(FlagError, match="needs --tool-call-parser"):
        parse_settings(both[:1], {})


def test_probes_and_scrapes_are_not_logged_unless_asked_for() -> None:
    assert parse_settings([], {}).unlogged_paths == {"/health", "/metrics"}
    given = parse_settings(["--disable-access-log-for-endpoints", "/ping,/load"], {})
    assert given.unlogged_paths == {"/ping", "/load"}
