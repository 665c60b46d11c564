"""``--kv-transfer-config`` and the environment of the side channel.

Pure.

Source:
    vLLM 0.32.0, ``config/kv_transfer.py`` and the keys that its NIXL connector reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pdcluster_lease import defaults
from pdcluster_lease.errors import TimingError
from pdcluster_lease.timing import LeaseTiming
from pdcluster_sim.errors import FlagError
from pdcluster_sim.settings import KVTransferSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PORT_MAX", "parse_kv_transfer"]

PORT_MAX: Final = 65_535


class _ExtraConfig(msgspec.Struct):
    """What the connector reads of ``kv_connector_extra_config``; unknown keys are ignored."""

    kv_lease_duration: int = defaults.KV_LEASE_DURATION_S
    enforce_handshake_compat: bool = True
    bidirectional_kv_xfer: bool = False


class _KVTransferConfig(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's ``KVTransferConfig``, whose unknown keys are rejected."""

    kv_connector: str | None = None
    kv_role: str | None = None
    engine_id: str | None = None
    kv_buffer_device: str | None = None
    kv_buffer_size: float | None = None
    kv_rank: int | None = None
    kv_parallel_size: int | None = None
    kv_ip: str | None = None
    kv_port: int | None = None
    kv_connector_module_path: str | None = None
    enable_permute_local_kv: bool = False
    kv_load_failure_policy: str = "fail"
    kv_connector_extra_config: _ExtraConfig = msgspec.field(default_factory=_ExtraConfig)


_ROLES: Final = ("kv_producer", "kv_consumer", "kv_both")
_POLICIES: Final = ("fail", "recompute")
_CONNECTORS: Final = ("NixlConnector", "NixlPullConnector")


def parse_kv_transfer(raw: str | None, environ: Mapping[str, str]) -> KVTransferSettings | None:
    """Read the flag's JSON and the environment of the side channel.

    Args:
        raw: The flag's value, or None where it was not given.
        environ: ``VLLM_NIXL_SIDE_CHANNEL_HOST`` and ``_PORT`` are read.

    Raises:
        FlagError: Not the JSON object vLLM takes, or something that cannot be simulated.
    """
    if raw is None:
        return None
    flag = "--kv-transfer-config"
    try:
        config = msgspec.json.decode(raw, type=_KVTransferConfig)
    except msgspec.DecodeError as error:
        raise FlagError(f"{flag}: {error}. Give one JSON object as vLLM takes it.") from error
    extra = config.kv_connector_extra_config
    for field, value, allowed in (
        ("kv_connector", config.kv_connector, _CONNECTORS),
        ("kv_role", config.kv_role, _ROLES),
        ("kv_load_failure_policy", config.kv_load_failure_policy, _POLICIES),
        ("bidirectional_kv_xfer", extra.bidirectional_kv_xfer, (False,)),
    ):
        if value not in allowed:
            raise FlagError(f"{flag}: {field} is {value!r}; the simulator takes {allowed}.")
    try:
        timing = LeaseTiming.from_duration(extra.kv_lease_duration)
    except TimingError as error:
        raise FlagError(f"{flag}: kv_lease_duration: {error}") from error
    return KVTransferSettings(
        role=str(config.kv_role),
        engine_id=config.engine_id,
        timing=timing,
        recomputes=config.kv_load_failure_policy == "recompute",
        enforces_compatibility=extra.enforce_handshake_compat,
        side_channel_host=environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", defaults.SIDE_CHANNEL_HOST),
        side_channel_port=_side_channel_port(environ),
    )


def _side_channel_port(environ: Mapping[str, str]) -> int:
    raw = environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", str(defaults.SIDE_CHANNEL_PORT))
    if not raw.isdecimal() or not 1 <= int(raw) <= PORT_MAX:
        raise FlagError(f"VLLM_NIXL_SIDE_CHANNEL_PORT is {raw!r}; set it to 1..{PORT_MAX}.")
    return int(raw)
