"""Rules between the fields of one node.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdcluster_api import defaults
from pdcluster_api.rules.rule import Rule
from pdcluster_lease.defaults import HANDSHAKE_ALLOWANCE_S

if TYPE_CHECKING:
    from pdcluster_api.v1alpha1.kv_transfer import KVTransferSpec
    from pdcluster_api.v1alpha1.operation import RatioSpec, RolloutSpec
    from pdcluster_api.v1alpha1.role import AutoscalingSpec, RoleSpec

__all__ = [
    "AUTOSCALING_RULES",
    "KV_TRANSFER_RULES",
    "RATIO_PATTERN",
    "RATIO_RULES",
    "ROLE_RULES",
    "ROLLOUT_RULES",
]


def _replicas_xor_autoscaling(role: RoleSpec) -> bool:
    return role.replicas is None or role.autoscaling is None


def _one_node_or_one_copy(role: RoleSpec) -> bool:
    return role.nodes == 1 or role.data_parallel_size == 1


def _min_within_max(bounds: AutoscalingSpec) -> bool:
    return bounds.min_replicas <= bounds.max_replicas


AUTOSCALING_RULES: Final = (
    Rule(
        cel="self.minReplicas <= self.maxReplicas",
        holds=_min_within_max,
        message="minReplicas must not exceed maxReplicas; lower it or raise maxReplicas",
        field="minReplicas",
    ),
)
ROLE_RULES: Final = (
    Rule(
        cel="!(has(self.replicas) && has(self.autoscaling))",
        holds=_replicas_xor_autoscaling,
        message="set replicas or autoscaling, not both",
        field="replicas",
    ),
    Rule(
        cel="self.nodes == 1 || self.dataParallelSize == 1",
        holds=_one_node_or_one_copy,
        message="dataParallelSize above 1 over several nodes is not supported; set nodes to 1",
        field="nodes",
    ),
)


def _lease_is_long_enough(transfer: KVTransferSpec) -> bool:
    return transfer.kv_lease_duration_seconds >= defaults.LEASE_DURATION_SECONDS_MIN


def _ttl_is_bidirectional(transfer: KVTransferSpec) -> bool:
    return transfer.bidirectional or transfer.decoder_kv_blocks_ttl_seconds is None


def _ttl_outlives_handshake(transfer: KVTransferSpec) -> bool:
    ttl = transfer.decoder_kv_blocks_ttl_seconds
    return ttl is None or ttl > _HANDSHAKE_SECONDS


def _threshold_is_bidirectional(transfer: KVTransferSpec) -> bool:
    return transfer.bidirectional or transfer.kv_recompute_threshold is None


_HANDSHAKE_SECONDS: Final = HANDSHAKE_ALLOWANCE_S
_LEASE_MIN: Final = defaults.LEASE_DURATION_SECONDS_MIN

KV_TRANSFER_RULES: Final = (
    Rule(
        cel=f"self.kvLeaseDurationSeconds >= {_LEASE_MIN}",
        holds=_lease_is_long_enough,
        message=(
            f"must be at least {_LEASE_MIN}: the heartbeat interval is a sixth of it in whole "
            f"seconds, so less means no heartbeat at all; use {_LEASE_MIN} or more"
        ),
        field="kvLeaseDurationSeconds",
    ),
    Rule(
        cel="self.bidirectional || !has(self.decoderKVBlocksTTLSeconds)",
        holds=_ttl_is_bidirectional,
        message="has an effect only with bidirectional: true; set that or leave this out",
        field="decoderKVBlocksTTLSeconds",
    ),
    Rule(
        cel=(
            "!has(self.decoderKVBlocksTTLSeconds) "
            f"|| self.decoderKVBlocksTTLSeconds > {_HANDSHAKE_SECONDS}"
        ),
        holds=_ttl_outlives_handshake,
        message=(
            f"must be more than {_HANDSHAKE_SECONDS}: a reader wants that many seconds left after "
            "its handshake; use a minute or more"
        ),
        field="decoderKVBlocksTTLSeconds",
    ),
    Rule(
        cel="self.bidirectional || !has(self.kvRecomputeThreshold)",
        holds=_threshold_is_bidirectional,
        message="has an effect only with bidirectional: true; set that or leave this out",
        field="kvRecomputeThreshold",
    ),
)


def _something_can_move(rollout: RolloutSpec) -> bool:
    return rollout.max_surge > 0 or rollout.max_unavailable > 0


def _ratio_is_ordered(ratio: RatioSpec) -> bool:
    low_prefill, low_decode = (int(part) for part in ratio.min_prefill_per_decode.split(":"))
    high_prefill, high_decode = (int(part) for part in ratio.max_prefill_per_decode.split(":"))
    return low_prefill * high_decode <= high_prefill * low_decode


ROLLOUT_RULES: Final = (
    Rule(
        cel="self.maxSurge > 0 || self.maxUnavailable > 0",
        holds=_something_can_move,
        message="maxSurge and maxUnavailable cannot both be 0, nothing could move; raise one",
        field="maxUnavailable",
    ),
)
RATIO_PATTERN: Final = "^[1-9][0-9]{0,3}:[1-9][0-9]{0,3}$"
RATIO_RULES: Final = (
    Rule(
        # The pattern is asked again: rules run even where the pattern has already failed.
        cel=(
            "[self.minPrefillPerDecode, self.maxPrefillPerDecode]"
            f".exists(r, !r.matches('{RATIO_PATTERN}')) || "
            "int(self.minPrefillPerDecode.split(':')[0]) "
            "* int(self.maxPrefillPerDecode.split(':')[1]) <= "
            "int(self.maxPrefillPerDecode.split(':')[0]) "
            "* int(self.minPrefillPerDecode.split(':')[1])"
        ),
        holds=_ratio_is_ordered,
        message="must not be above maxPrefillPerDecode; lower it or raise that one",
        field="minPrefillPerDecode",
    ),
)
