"""Running a cluster: draining, rolling out, proportions, access, monitoring.

Pure.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field
from pydantic import StringConstraints as Text

from pdcluster_api import defaults
from pdcluster_api.rules import RATIO_PATTERN, RATIO_RULES, ROLLOUT_RULES
from pdcluster_api.v1alpha1.shape import OpenObject, Seconds, Spec

__all__ = [
    "DrainSpec",
    "MonitoringSpec",
    "NetworkPeer",
    "NetworkPolicySpec",
    "RatioSpec",
    "RolloutSpec",
    "RolloutStrategy",
]


class DrainSpec(Spec):
    """How an engine leaves."""

    settle_seconds: Annotated[int, Field(ge=0, le=600)] = defaults.SETTLE_SECONDS
    """Time for every proxy to learn that an engine drains, in seconds."""
    max_prefill_seconds: Seconds = defaults.MAX_PREFILL_SECONDS
    """Longest running prefill that is waited for, in seconds."""
    decode_admission_timeout_seconds: Seconds = defaults.DECODE_ADMISSION_TIMEOUT_SECONDS
    """Longest wait of a prefilled request for a decode engine while its prefill engine drains, in
    seconds."""
    termination_grace_period_seconds: Seconds | None = None
    """Termination grace of both roles, in seconds; must outlast the last lease of a draining
    prefill engine. Default derived from the lease. Example 155."""


class RolloutStrategy(StrEnum):
    """In which order old and new engines pass."""

    COORDINATED = "Coordinated"
    """New decode, new prefill, then the old ones drain."""
    DRAIN_FIRST = "DrainFirst"
    """The old pair drains before the new one starts: needs no spare GPU."""


class RolloutSpec(Spec):
    """How a change rolls out."""

    obeys = ROLLOUT_RULES

    strategy: RolloutStrategy = RolloutStrategy.COORDINATED
    """Coordinated starts the new engines first; DrainFirst needs no spare GPU."""
    max_surge: Annotated[int, Field(ge=0, le=1000)] = defaults.MAX_SURGE
    """Engines above the wanted number."""
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] = defaults.MAX_UNAVAILABLE
    """Engines below the wanted number."""
    progress_deadline_seconds: Annotated[int, Field(ge=60, le=172_800)] = (
        defaults.PROGRESS_DEADLINE_SECONDS
    )
    """A rollout that takes longer is reported as failed, in seconds."""
    paused: bool = False
    """Neither roll out nor scale; status goes on."""


_Ratio = Annotated[str, Text(max_length=9, pattern=RATIO_PATTERN)]


class RatioSpec(Spec):
    """Bounds of prefill to decode engines."""

    obeys = RATIO_RULES

    min_prefill_per_decode: _Ratio = defaults.MIN_PREFILL_PER_DECODE
    """Fewest prefill engines per decode engines."""
    max_prefill_per_decode: _Ratio = defaults.MAX_PREFILL_PER_DECODE
    """Most prefill engines per decode engines."""


class NetworkPeer(OpenObject):
    """A NetworkPolicyPeer of Kubernetes."""


_Peers = Annotated[tuple[NetworkPeer, ...], Field(max_length=16)]


class NetworkPolicySpec(Spec):
    """Who may reach the pods."""

    enabled: bool = True
    """Make NetworkPolicies."""
    clients_from: _Peers = ()
    """Who may send requests; empty means any pod. Example a namespaceSelector."""
    metrics_from: _Peers = ()
    """Who may read metrics besides proxy and operator. Example a namespaceSelector."""


class MonitoringSpec(Spec):
    """Objects for the Prometheus operator."""

    pod_monitor: bool = False
    """Make PodMonitors. Not yet supported."""
    rules: bool = False
    """Make a PrometheusRule. Not yet supported."""
