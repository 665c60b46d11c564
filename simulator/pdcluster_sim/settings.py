"""All that one simulated engine is told, by flags and environment, before it starts.

Pure. Parsed once in ``flags.py``; nothing else reads the command line or the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pdcluster_lease.timing import LeaseTiming
    from pdcluster_sim.core.latency import LatencyModel

__all__ = ["VLLM_VERSION", "KVTransferSettings", "Settings"]

VLLM_VERSION: Final = "0.32.0"
"""The release this engine imitates: what ``/version`` answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransferSettings:
    """``--kv-transfer-config`` and the environment of the side channel.

    Attributes:
        role: ``kv_producer``, ``kv_consumer`` or ``kv_both``; a label, as in vLLM's pull mode.
        engine_id: Pinned, or None for a fresh one per boot.
        timing: From ``kv_lease_duration``.
        recomputes: ``kv_load_failure_policy`` is ``recompute``, not ``fail``.
        enforces_compatibility: ``enforce_handshake_compat``.
        side_channel_host: Bound and advertised.
        side_channel_port: Bound and advertised.
    """

    role: str
    engine_id: str | None
    timing: LeaseTiming
    recomputes: bool
    enforces_compatibility: bool
    side_channel_host: str
    side_channel_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One engine.

    Attributes:
        model: The model string, verbatim; enters the compatibility hash.
        served_names: What clients may send as ``model``; the first is the one in answers.
        host: Address of the HTTP server.
        port: Its port.
        api_keys: If any, one of them is needed on ``/v1`` routes.
        dtype: Enters the compatibility hash.
        block_size: Tokens per KV block.
        num_blocks: KV blocks, block 0 included.
        max_model_len: Most tokens of a prompt and its answer.
        max_logprobs: Most log probabilities per token that a client may ask for; -1 is no bound.
        max_num_seqs: Requests that run at a time.
        max_num_batched_tokens: Tokens computed in one step.
        prefix_caching: Whether blocks are found again.
        parses_tools: Whether calls of tools could be found in answers; without, asking for them is
            an error.
        prompt_tokens_details: Whether usage says how many prompt tokens were cached.
        shutdown_timeout_s: Seconds SIGTERM waits for requests and leases; 0 aborts them.
        access_log: Whether uvicorn logs requests.
        unlogged_paths: Paths whose requests it does not log.
        log_level: Level of the engine's own lines.
        slot_bytes: Bytes of KV per token.
        latency: How long things take.
        admin: Whether ``/sim/...`` is served.
        fault_script: Path of a file with faults to inject, or None.
        kv_transfer: None for an engine on its own.
    """

    model: str
    served_names: tuple[str, ...]
    host: str
    port: int
    api_keys: frozenset[str]
    dtype: str
    block_size: int
    num_blocks: int
    max_model_len: int
    max_logprobs: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool
    parses_tools: bool
    prompt_tokens_details: bool
    shutdown_timeout_s: float
    access_log: bool
    unlogged_paths: frozenset[str]
    log_level: str
    slot_bytes: int
    latency: LatencyModel
    admin: bool
    fault_script: str | None
    kv_transfer: KVTransferSettings | None
