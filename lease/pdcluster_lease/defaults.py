"""Constants of the KV lease protocol, each with unit and source.

Pure. Holds what the protocol and vLLM fix; what a user may choose in the resource has its defaults
in ``pdcluster_api``. A literal of the protocol anywhere else is a mistake.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ADDRESS_NAME_MAX_CHARS",
    "ANSWER_ALLOWANCE_S",
    "BLOCK_IDS_MAX",
    "DECODER_KV_BLOCKS_TTL_S",
    "EXTENSION_DENOMINATOR",
    "EXTENSION_NUMERATOR",
    "HANDSHAKE_ALLOWANCE_S",
    "HANDSHAKE_TIMEOUT_S",
    "HAND_OFF_MARGIN_COLD_S",
    "HAND_OFF_MARGIN_WARM_S",
    "HEARTBEATS_PER_DURATION",
    "IDENTIFIER_MAX_CHARS",
    "KV_LEASE_DURATION_S",
    "KV_RECOMPUTE_THRESHOLD",
    "LEASE_DURATION_MIN_S",
    "PARALLEL_SIZE_MAX",
    "PARAMS_MAX_BYTES",
    "SIDE_CHANNEL_HOST",
    "SIDE_CHANNEL_PORT",
]

KV_LEASE_DURATION_S: Final = 30
"""Seconds of the initial grant. Source: vLLM, ``kv_lease_duration`` of the NIXL connector."""

LEASE_DURATION_MIN_S: Final = 6
"""Shortest sane duration in seconds: below it the heartbeat interval, duration // 6, is 0."""

HEARTBEATS_PER_DURATION: Final = 6
"""The heartbeat interval is duration // 6. Source: vLLM 0.22.0 and later, ``base_scheduler.py``."""

EXTENSION_NUMERATOR: Final = 2
"""A heartbeat grants duration * 2 // 3. Source: vLLM 0.22.0 and later, ``base_worker.py``."""

EXTENSION_DENOMINATOR: Final = 3
"""See :data:`EXTENSION_NUMERATOR`."""

HANDSHAKE_TIMEOUT_S: Final = 5.0
"""Seconds one rank's side channel may take to answer. Source: vLLM, fixed receive timeout."""

HANDSHAKE_ALLOWANCE_S: Final = 5
"""Seconds the hand-off deadline of a pair that never met keeps free for the first handshake."""

HAND_OFF_MARGIN_COLD_S: Final = 1
"""Seconds of safety in the hand-off deadline of a pair that never met."""

HAND_OFF_MARGIN_WARM_S: Final = 2
"""Seconds of safety in the hand-off deadline of a pair that did meet."""

ANSWER_ALLOWANCE_S: Final = 1.0
"""Seconds by which the proxy's clock starts early: P grants before its answer leaves."""

DECODER_KV_BLOCKS_TTL_S: Final = 480
"""Seconds D pins its own blocks in bidirectional mode. Source: vLLM, ``decoder_kv_blocks_ttl``."""

KV_RECOMPUTE_THRESHOLD: Final = 64
"""Tokens below which a second turn recomputes. Source: vLLM, ``kv_recompute_threshold``."""

SIDE_CHANNEL_HOST: Final = "localhost"
"""Where the side channel binds and what it advertises. Source: vLLM,
``VLLM_NIXL_SIDE_CHANNEL_HOST``."""

SIDE_CHANNEL_PORT: Final = 5600
"""Port of data-parallel rank 0. Source: vLLM, ``VLLM_NIXL_SIDE_CHANNEL_PORT``."""

PARAMS_MAX_BYTES: Final = 512 * 1024
"""Largest ``kv_transfer_params`` we read, in bytes: 65,536 block ids of seven digits fit."""

BLOCK_IDS_MAX: Final = 65_536
"""Most block ids in one object, over all groups: a million tokens in blocks of 16."""

IDENTIFIER_MAX_CHARS: Final = 512
"""Longest engine or request id; vLLM's own are below 100 characters."""

ADDRESS_NAME_MAX_CHARS: Final = 253
"""Longest host name. Source: RFC 1035, 2.3.4."""

PARALLEL_SIZE_MAX: Final = 1024
"""Largest tensor, context or pipeline parallel size we believe."""
