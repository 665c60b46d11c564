"""The JSON of ``--kv-transfer-config``.

Pure. Lease settings are identical on both roles: D's heartbeat interval comes from D's own value,
P's extension from P's, and a pair that disagrees loses leases.
"""

from __future__ import annotations

import json
from typing import Final

from pdcluster_api import defaults
from pdcluster_api.proxy_config import Role
from pdcluster_api.v1alpha1.kv_transfer import BufferDevice, KVTransferSpec, LoadFailurePolicy

__all__ = ["kv_transfer_config"]

_CONNECTORS: Final = {"Nixl": "NixlConnector"}
_POLICIES: Final = {LoadFailurePolicy.FAIL: "fail", LoadFailurePolicy.RECOMPUTE: "recompute"}
_ROLES: Final = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
_BOTH: Final = "kv_both"


def kv_transfer_config(transfer: KVTransferSpec, role: Role) -> str:
    """Return the value of ``--kv-transfer-config`` for one role.

    ``kv_producer`` and ``kv_consumer`` are no mere labels: vLLM protects a producer's last step
    against preemption and defers a consumer's block frees. Where blocks travel both ways, both
    engines need both.

    Source:
        vLLM 0.33.0, ``KVTransferConfig`` and the NIXL connector's ``kv_connector_extra_config``.
    """
    extra: dict[str, object] = {
        "kv_lease_duration": transfer.kv_lease_duration_seconds,
        "enforce_handshake_compat": transfer.enforce_handshake_compatibility,
        "backends": list(transfer.backends),
    }
    if transfer.bidirectional:
        ttl = transfer.decoder_kv_blocks_ttl_seconds
        threshold = transfer.kv_recompute_threshold
        extra |= {
            "bidirectional_kv_xfer": True,
            "decoder_kv_blocks_ttl": defaults.DECODER_KV_BLOCKS_TTL_SECONDS if ttl is None else ttl,
            "kv_recompute_threshold": (
                defaults.KV_RECOMPUTE_THRESHOLD_TOKENS if threshold is None else threshold
            ),
        }
    config: dict[str, object] = {
        "kv_connector": _CONNECTORS[transfer.connector],
        "kv_role": _BOTH if transfer.bidirectional else _ROLES[role],
        "kv_load_failure_policy": _POLICIES[transfer.load_failure_policy],
    }
    if transfer.buffer_device is not BufferDevice.ENGINE_DEFAULT:
        config["kv_buffer_device"] = transfer.buffer_device.value
    config["kv_connector_extra_config"] = extra
    return json.dumps(config, separators=(",", ":"))
