"""vLLM's command line, as far as an engine without GPU can honour it.

Pure: argv and environment in, :class:`Settings` out. Three kinds of flags: those that are honoured,
those that are accepted because they change nothing here (``INERT_...``), and the simulator's own,
all of which begin with ``--sim-``. Any other is rejected as vLLM's parser rejects it, with exit
status 2.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final, NoReturn

from typing_extensions import override

from pdcluster_sim.core.digests import SLOT_BYTES_MIN
from pdcluster_sim.core.latency import LatencyModel
from pdcluster_sim.errors import FlagError
from pdcluster_sim.kv_config import PORT_MAX, parse_kv_transfer
from pdcluster_sim.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["INERT_SWITCHES", "INERT_VALUES", "parse_settings"]

_DEFAULT_MODEL: Final = "sim"
_DEFAULT_MAX_MODEL_LEN: Final = 8192
_DEFAULT_BLOCK_SIZE: Final = 16
_DEFAULT_NUM_BLOCKS: Final = 2048
_UNLOGGED_PATHS: Final = "/health,/metrics"
"""What is asked every second would fill the log. vLLM logs them unless told not to."""

INERT_SWITCHES: Final = (
    "--aggregate-engine-logging",
    "--async-scheduling",
    "--calculate-kv-scales",
    "--disable-cascade-attn",
    "--disable-custom-all-reduce",
    "--disable-fastapi-docs",
    "--disable-hybrid-kv-cache-manager",
    "--disable-log-stats",
    "--enable-chunked-prefill",
    "--enable-expert-parallel",
    "--enable-force-include-usage",
    "--enable-log-outputs",
    "--enable-log-requests",
    "--enable-request-id-headers",
    "--enable-server-load-tracking",
    "--enforce-eager",
    "--language-model-only",
    "--return-tokens-as-token-ids",
    "--skip-mm-profiling",
    "--trust-remote-code",
)
"""Switches of vLLM that change nothing here; each exists as ``--no-...`` too."""

INERT_VALUES: Final = (
    "--all2all-backend",
    "--allowed-headers",
    "--allowed-methods",
    "--allowed-origins",
    "--attention-backend",
    "--chat-template",
    "--chat-template-content-format",
    "--code-revision",
    "--compilation-config",
    "--config-format",
    "--cpu-offload-gb",
    "--default-chat-template-kwargs",
    "--distributed-executor-backend",
    "--download-dir",
    "--generation-config",
    "--gpu-memory-utilization",
    "--hf-overrides",
    "--hf-token",
    "--kv-cache-dtype",
    "--kv-cache-memory-bytes",
    "--limit-mm-per-prompt",
    "--load-format",
    "--max-log-len",
    "--optimization-level",
    "--override-generation-config",
    "--performance-mode",
    "--prefix-caching-hash-algo",
    "--quantization",
    "--reasoning-parser",
    "--response-role",
    "--revision",
    "--scheduling-policy",
    "--seed",
    "--stream-interval",
    "--swap-space",
    "--tokenizer",
    "--tokenizer-mode",
    "--tokenizer-revision",
)
"""Flags of vLLM whose value changes nothing here."""

_OFF_SWITCHES: Final = (
    "--disable-uvicorn-access-log",
    "--enable-auto-tool-choice",
    "--enable-prompt-tokens-details",
)


class _Parser(argparse.ArgumentParser):
    """argparse with vLLM's habits: underscores are dashes, abbreviations are rejected."""

    @override
    def error(self, message: str) -> NoReturn:
        self.print_usage()
        self.exit(2, f"{self.prog}: error: {message}\n")


def parse_settings(
    argv: Sequence[str], environ: Mapping[str, str], *, prog: str = "pdcluster-sim"
) -> Settings:
    """Parse ``[serve] [MODEL] flags``.

    Args:
        argv: Arguments after the program's name.
        environ: ``VLLM_NIXL_SIDE_CHANNEL_HOST`` and ``_PORT``, ``VLLM_LOGGING_LEVEL`` and
            ``VLLM_API_KEY`` are read.
        prog: The program's name in messages.

    Raises:
        SystemExit: An unknown flag or a value of the wrong type, with status 2.
        FlagError: A value that is well-formed but cannot work; the message names the remedy.
    """
    words = [_dashed(word) for word in argv]
    if words[:1] == ["serve"]:
        words = words[1:]
    given = _parser(prog).parse_args(words)
    model = given.model or given.model_tag or _DEFAULT_MODEL
    return Settings(
        model=model,
        served_names=tuple(given.served_model_name or [model]),
        host=given.host or "0.0.0.0",
        port=given.port,
        api_keys=frozenset(_api_keys(given, environ)),
        dtype=given.dtype,
        block_size=given.block_size,
        num_blocks=_num_blocks(given),
        max_model_len=given.max_model_len,
        max_logprobs=given.max_logprobs,
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=given.max_num_batched_tokens,
        prefix_caching=given.enable_prefix_caching,
        parses_tools=_parses_tools(given),
        prompt_tokens_details=given.enable_prompt_tokens_details,
        shutdown_timeout_s=given.shutdown_timeout,
        access_log=not given.disable_uvicorn_access_log,
        unlogged_paths=frozenset(given.disable_access_log_for_endpoints.split(",")),
        log_level=environ.get("VLLM_LOGGING_LEVEL", "INFO").upper(),
        slot_bytes=_slot_bytes(given),
        latency=LatencyModel(
            prefill_tokens_per_s=given.sim_prefill_tokens_per_second,
            step_time_s=given.sim_step_time_ms / 1000,
            transfer_gbps=given.sim_transfer_gbps,
        ),
        admin=given.sim_admin,
        fault_script=given.sim_fault_script,
        kv_transfer=parse_kv_transfer(given.kv_transfer_config, environ),
    )


def _dashed(word: str) -> str:
    """Spell ``--max_model_len=5`` as ``--max-model-len=5``, as vLLM's parser does."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _parser(prog: str) -> _Parser:
    parser = _Parser(
        prog=f"{prog} serve",
        allow_abbrev=False,
        description="An engine without GPU that speaks vLLM's HTTP API and KV lease over NIXL.",
    )
    _add_honoured(parser)
    own = parser.add_argument_group("simulator", "flags that vLLM does not have")
    own.add_argument(
        "--sim-prefill-tokens-per-second",
        type=_not_negative,
        default=20_000.0,
        help="prompt tokens computed per second; 0: at once (default: %(default)s)",
    )
    own.add_argument(
        "--sim-step-time-ms",
        type=_not_negative,
        default=10.0,
        help="milliseconds of an engine step beyond its prefill (default: %(default)s)",
    )
    own.add_argument(
        "--sim-transfer-gbps",
        type=_not_negative,
        default=0.0,
        help="gigabits per second of a KV transfer; 0: as fast as NIXL is",
    )
    own.add_argument(
        "--sim-kv-bytes-per-token",
        type=_positive,
        default=1024,
        help="bytes of KV per token, a multiple of 64 (default: %(default)s)",
    )
    own.add_argument(
        "--sim-admin",
        action="store_true",
        help="serve /sim/...: state, faults, memory; never where others can reach it",
    )
    own.add_argument(
        "--sim-fault-script",
        default=None,
        metavar="FILE",
        help="JSON list of faults to inject, each with an optional afterSeconds",
    )
    _add_inert(parser)
    return parser


def _add_inert(parser: _Parser) -> None:
    ignored = ", ".join(sorted((*INERT_SWITCHES, *INERT_VALUES)))
    inert = parser.add_argument_group(
        "accepted", f"flags of vLLM that change nothing here: {ignored}"
    )
    for switch in INERT_SWITCHES:
        inert.add_argument(switch, action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)
    for flag in INERT_VALUES:
        inert.add_argument(flag, nargs="+", help=argparse.SUPPRESS)


def _add_honoured(parser: _Parser) -> None:
    add = parser.add_argument
    add("model_tag", nargs="?", default=None, metavar="MODEL", help="the model to pretend to serve")
    add("--model", default=None, help="the same, by flag")
    add("--served-model-name", nargs="+", default=None, help="what clients send as model")
    add("--host", default=None, help="address to listen on")
    add("--port", type=_port, default=8000, help="port to listen on (default: %(default)s)")
    add("--api-key", nargs="+", default=None, help="if given, /v1 routes need one of them")
    add(
        "--dtype",
        default="auto",
        help="enters the compatibility hash",
        choices=["auto", "bfloat16", "float", "float16", "float32", "half"],
    )
    add("--block-size", type=_positive, default=_DEFAULT_BLOCK_SIZE, help="tokens per KV block")
    add("--num-gpu-blocks-override", type=_positive, default=None, help="number of KV blocks")
    add(
        "--max-model-len",
        type=_tokens,
        default=_DEFAULT_MAX_MODEL_LEN,
        help="most tokens of a prompt and its answer (default: %(default)s)",
    )
    add("--max-logprobs", type=int, default=20, help="most logprobs per token; -1: no bound")
    add("--max-num-seqs", type=_positive, default=256, help="requests that run at a time")
    add("--max-num-batched-tokens", type=_tokens, default=8192, help="tokens computed per step")
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    for switch in _OFF_SWITCHES:
        add(switch, action=argparse.BooleanOptionalAction, default=False)
    add("--tool-call-parser", default=None, help="needed for requests with tools; calls none")
    add(
        "--shutdown-timeout",
        type=_not_negative,
        default=0.0,
        help="seconds SIGTERM waits for requests and leases; 0 aborts them",
    )
    add(
        "--disable-access-log-for-endpoints",
        default=_UNLOGGED_PATHS,
        metavar="PATHS",
        help="paths, with commas, whose requests are not logged (default: %(default)s)",
    )
    add(
        "--uvicorn-log-level",
        default="info",
        help=argparse.SUPPRESS,
        choices=["critical", "debug", "error", "info", "trace", "warning"],
    )
    add("--kv-transfer-config", default=None, metavar="JSON", help="vLLM's KVTransferConfig")
    for size in ("tensor", "pipeline", "data", "decode-context"):
        suffix = f"{size}-parallel-size"
        add(f"--{suffix}", type=_one, default=1, help=argparse.SUPPRESS)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive integer")
    return value


def _tokens(text: str) -> int:
    """Read a number of tokens; vLLM takes ``8k`` (8000) and ``8K`` (8192) too."""
    factors = {"k": 1000, "K": 1024, "m": 1_000_000, "M": 1_048_576}
    factor = factors.get(text[-1:])
    return _positive(text) if factor is None else int(float(text[:-1]) * factor)


def _one(text: str) -> int:
    value = _positive(text)
    if value != 1:
        raise argparse.ArgumentTypeError(f"{text}: the simulator has one rank; use 1")
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not value >= 0 or value == float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of 0 or more")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 1 <= value <= PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not a port (1 to {PORT_MAX})")
    return value


def _api_keys(given: argparse.Namespace, environ: Mapping[str, str]) -> list[str]:
    from_environment = environ.get("VLLM_API_KEY")
    return [*(given.api_key or []), *([from_environment] if from_environment else [])]


def _parses_tools(given: argparse.Namespace) -> bool:
    """Say whether calls of tools are parsed: vLLM needs both flags for any kind of choice."""
    if given.enable_auto_tool_choice and given.tool_call_parser is None:
        raise FlagError("--enable-auto-tool-choice needs --tool-call-parser. Set both or neither.")
    return bool(given.enable_auto_tool_choice)


def _num_blocks(given: argparse.Namespace) -> int:
    """Return the number of blocks, or reject a cache that does not hold the longest request."""
    enough = 2 * given.max_model_len // given.block_size + 1
    num_blocks: int = given.num_gpu_blocks_override or max(_DEFAULT_NUM_BLOCKS, enough)
    capacity = (num_blocks - 1) * given.block_size
    if capacity < given.max_model_len:
        raise FlagError(
            f"--max-model-len {given.max_model_len} does not fit into the KV cache of {capacity} "
            f"tokens ({num_blocks} blocks of {given.block_size}, one of them reserved). Lower it, "
            "or raise --num-gpu-blocks-override."
        )
    return num_blocks


def _slot_bytes(given: argparse.Namespace) -> int:
    slot_bytes: int = given.sim_kv_bytes_per_token
    if slot_bytes % SLOT_BYTES_MIN:
        raise FlagError(
            f"--sim-kv-bytes-per-token {given.sim_kv_bytes_per_token} is no multiple of "
            f"{SLOT_BYTES_MIN}."
        )
    return slot_bytes
