"""Rules across nodes: of the whole spec, and of the resource with its name.

Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pdcluster_api import defaults
from pdcluster_api.rules.rule import Rule
from pdcluster_lease.defaults import (
    EXTENSION_DENOMINATOR,
    EXTENSION_NUMERATOR,
    HAND_OFF_MARGIN_WARM_S,
    HEARTBEATS_PER_DURATION,
)
from pdcluster_lease.timing import LeaseTiming

if TYPE_CHECKING:
    from pdcluster_api.v1alpha1.cluster import PDCluster, PDClusterSpec

__all__ = ["CLUSTER_RULES", "NAME_PATTERN", "SPEC_RULES"]


def _both_roles_or_neither(spec: PDClusterSpec) -> bool:
    return (spec.prefill.replicas == 0) == (spec.decode.replicas == 0)


def _side_channel_fits(spec: PDClusterSpec) -> bool:
    copies = max(spec.prefill.data_parallel_size, spec.decode.data_parallel_size)
    return spec.kv_transfer.side_channel_port + copies - 1 <= _PORT_MAX


def _ports_are_apart(spec: PDClusterSpec) -> bool:
    copies = max(spec.prefill.data_parallel_size, spec.decode.data_parallel_size)
    first = spec.kv_transfer.side_channel_port
    return not first <= spec.engine.port < first + copies


def _start_fits_progress(spec: PDClusterSpec) -> bool:
    slowest = max(spec.prefill.startup_timeout_seconds, spec.decode.startup_timeout_seconds)
    return slowest < spec.rollout.progress_deadline_seconds


def _hold_covers_lease(spec: PDClusterSpec) -> bool:
    hold = spec.proxy.max_hold_seconds
    return hold is None or hold >= spec.kv_transfer.kv_lease_duration_seconds


def _cold_pair_can_meet(spec: PDClusterSpec) -> bool:
    return (
        spec.proxy.lease_keeper
        or spec.proxy.hand_off_deadline_seconds is not None
        or spec.kv_transfer.kv_lease_duration_seconds >= _LEASE_MIN_WITHOUT_KEEPER
    )


def _hand_off_fits_lease(spec: PDClusterSpec) -> bool:
    lease = spec.kv_transfer.kv_lease_duration_seconds
    deadline = spec.proxy.hand_off_deadline_seconds
    return (
        deadline is None
        or deadline <= lease - lease // HEARTBEATS_PER_DURATION - HAND_OFF_MARGIN_WARM_S
    )


def _grace_outlives_leases(spec: PDClusterSpec) -> bool:
    drain, grace = spec.drain, spec.drain.termination_grace_period_seconds
    lease = LeaseTiming.from_duration(spec.kv_transfer.kv_lease_duration_seconds)
    held = max(lease.duration_s, drain.decode_admission_timeout_seconds) + lease.extension_s
    return grace is None or grace > drain.settle_seconds + held


_PORT_MAX: Final = 65535
_LEASE_MIN_WITHOUT_KEEPER: Final = 9
"""Seconds from which ``L - 2 * (L // 6) - 6``, the hand-off deadline of a pair that never met, is
at least 1. Held equal to the lease library's own figure by a test."""
_SIZES_CEL: Final = "[self.prefill.dataParallelSize, self.decode.dataParallelSize]"
_LEASE_CEL: Final = "self.kvTransfer.kvLeaseDurationSeconds"
_DEADLINE_CEL: Final = "self.proxy.handOffDeadlineSeconds"
_GRACE_CEL: Final = "self.drain.terminationGracePeriodSeconds"

SPEC_RULES: Final = (
    Rule(
        cel=(
            "(has(self.prefill.replicas) && self.prefill.replicas == 0) == "
            "(has(self.decode.replicas) && self.decode.replicas == 0)"
        ),
        holds=_both_roles_or_neither,
        message=(
            "one role cannot serve alone: set prefill.replicas and decode.replicas both to 0 "
            "(asleep) or both to at least 1"
        ),
        field="decode.replicas",
    ),
    Rule(
        cel=f"{_SIZES_CEL}.all(n, self.kvTransfer.sideChannelPort + n - 1 <= {_PORT_MAX})",
        holds=_side_channel_fits,
        message=(
            f"sideChannelPort + dataParallelSize - 1 must not exceed {_PORT_MAX}, since each rank "
            "listens on a port of its own; lower the port"
        ),
        field="kvTransfer.sideChannelPort",
    ),
    Rule(
        cel=(
            f"{_SIZES_CEL}.all(n, self.engine.port < self.kvTransfer.sideChannelPort "
            "|| self.engine.port > self.kvTransfer.sideChannelPort + n - 1)"
        ),
        holds=_ports_are_apart,
        message=(
            "lies among the side channel's ports (sideChannelPort to sideChannelPort + "
            "dataParallelSize - 1); choose another"
        ),
        field="engine.port",
    ),
    Rule(
        cel=(
            "[self.prefill.startupTimeoutSeconds, self.decode.startupTimeoutSeconds]"
            ".all(n, n < self.rollout.progressDeadlineSeconds)"
        ),
        holds=_start_fits_progress,
        message=(
            "must be longer than startupTimeoutSeconds of both roles, or every rollout would be "
            "reported as failed; raise it"
        ),
        field="rollout.progressDeadlineSeconds",
    ),
    Rule(
        cel=f"!has(self.proxy.maxHoldSeconds) || self.proxy.maxHoldSeconds >= {_LEASE_CEL}",
        holds=_hold_covers_lease,
        message=(
            "must be at least kvTransfer.kvLeaseDurationSeconds; raise it, or leave it out for "
            f"{defaults.HOLD_LEASES} lease durations"
        ),
        field="proxy.maxHoldSeconds",
    ),
    Rule(
        cel=(
            "self.proxy.leaseKeeper || has(self.proxy.handOffDeadlineSeconds) || "
            f"{_LEASE_CEL} >= {_LEASE_MIN_WITHOUT_KEEPER}"
        ),
        holds=_cold_pair_can_meet,
        message=(
            f"below {_LEASE_MIN_WITHOUT_KEEPER} s and without proxy.leaseKeeper a pair that never "
            f"met has no time to meet; use {_LEASE_MIN_WITHOUT_KEEPER} or more, or the keeper, or "
            "set proxy.handOffDeadlineSeconds"
        ),
        field="kvTransfer.kvLeaseDurationSeconds",
    ),
    Rule(
        cel=(
            f"!has({_DEADLINE_CEL}) || {_DEADLINE_CEL} <= "
            f"{_LEASE_CEL} - {_LEASE_CEL} / {HEARTBEATS_PER_DURATION} - {HAND_OFF_MARGIN_WARM_S}"
        ),
        holds=_hand_off_fits_lease,
        message=(
            f"is later than the lease allows: at most L - L / {HEARTBEATS_PER_DURATION} - "
            f"{HAND_OFF_MARGIN_WARM_S} with L = kvTransfer.kvLeaseDurationSeconds; "
            "lower it or leave it out"
        ),
        field="proxy.handOffDeadlineSeconds",
    ),
    # What a whole drain needs is more than this; a grace in between is kept and reported. Below it
    # an engine is killed while a decode engine still reads from it.
    Rule(
        cel=(
            f"!has({_GRACE_CEL}) || "
            f"[{_LEASE_CEL}, self.drain.decodeAdmissionTimeoutSeconds].all(n, {_GRACE_CEL} > "
            "self.drain.settleSeconds + n + "
            f"{_LEASE_CEL} * {EXTENSION_NUMERATOR} / {EXTENSION_DENOMINATOR})"
        ),
        holds=_grace_outlives_leases,
        message=(
            "ends before the last lease of a draining prefill engine can: must be more than "
            "settleSeconds + max(L, decodeAdmissionTimeoutSeconds) + "
            f"L * {EXTENSION_NUMERATOR} / {EXTENSION_DENOMINATOR} with "
            "L = kvTransfer.kvLeaseDurationSeconds; raise it, or leave it out"
        ),
        field="drain.terminationGracePeriodSeconds",
    ),
)

NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"


def _name_is_a_label(cluster: PDCluster) -> bool:
    return re.fullmatch(NAME_PATTERN, cluster.metadata.name) is not None


def _name_is_short(cluster: PDCluster) -> bool:
    return len(cluster.metadata.name) <= defaults.NAME_MAX_CHARS


def _name_is_short_enough_for_nodes(cluster: PDCluster) -> bool:
    one_node = cluster.spec.prefill.nodes == 1 and cluster.spec.decode.nodes == 1
    return one_node or len(cluster.metadata.name) <= defaults.NAME_MAX_CHARS_MULTI_NODE


CLUSTER_RULES: Final = (
    Rule(
        cel=f"self.metadata.name.matches('{NAME_PATTERN}')",
        holds=_name_is_a_label,
        message=(
            "metadata.name must begin with a letter and hold only a-z, 0-9 and '-' (no dot), "
            "because Services are named after it; rename it"
        ),
        field="metadata.name",
    ),
    Rule(
        cel=f"self.metadata.name.size() <= {defaults.NAME_MAX_CHARS}",
        holds=_name_is_short,
        message=(
            f"metadata.name may have {defaults.NAME_MAX_CHARS} characters, because names and "
            "labels of pods are made from it; shorten it"
        ),
        field="metadata.name",
    ),
    Rule(
        cel=(
            f"self.metadata.name.size() <= {defaults.NAME_MAX_CHARS_MULTI_NODE} || "
            "(self.spec.prefill.nodes == 1 && self.spec.decode.nodes == 1)"
        ),
        holds=_name_is_short_enough_for_nodes,
        message=(
            f"metadata.name may have {defaults.NAME_MAX_CHARS_MULTI_NODE} characters where a role "
            "has nodes above 1, because a LeaderWorkerSet makes longer names; shorten it"
        ),
        field="metadata.name",
    ),
)
