"""Every default and limit of the PDCluster resource, once.

Pure. The models, the CRD and the programs read them from here; what the lease protocol itself fixes
stands in :mod:`pdcluster_lease.defaults`. Names end in their unit; limits end in ``_MIN``/``_MAX``.
"""

from __future__ import annotations

from typing import Final

from pdcluster_lease.defaults import (
    DECODER_KV_BLOCKS_TTL_S,
    KV_LEASE_DURATION_S,
    KV_RECOMPUTE_THRESHOLD,
    LEASE_DURATION_MIN_S,
    SIDE_CHANNEL_PORT,
)

__all__ = [
    "ADMIN_PORT",
    "API_GROUP",
    "API_VERSION",
    "ARGUMENTS_MAX",
    "ARGUMENT_MAX_CHARS",
    "DECODER_KV_BLOCKS_TTL_SECONDS",
    "DECODE_ADMISSION_TIMEOUT_SECONDS",
    "ENGINE_PORT",
    "GRACE_MARGIN_SECONDS",
    "HOLD_LEASES",
    "IDLE_TIMEOUT_SECONDS",
    "KV_LEASE_DURATION_SECONDS",
    "KV_RECOMPUTE_THRESHOLD_TOKENS",
    "LEASE_DURATION_SECONDS_MIN",
    "LIVENESS_FAILURES",
    "LIVENESS_PERIOD_SECONDS",
    "MAX_IN_FLIGHT",
    "MAX_PREFILL_PER_DECODE",
    "MAX_PREFILL_SECONDS",
    "MAX_QUEUE",
    "MAX_SURGE",
    "MAX_UNAVAILABLE",
    "MIN_PREFILL_PER_DECODE",
    "MODEL_CACHE_MOUNT_PATH",
    "NAME_MAX_CHARS",
    "NAME_MAX_CHARS_MULTI_NODE",
    "PROBE_TIMEOUT_SECONDS",
    "PROGRESS_DEADLINE_SECONDS",
    "PROXY_PORT",
    "PROXY_REPLICAS",
    "QUEUE_TIMEOUT_SECONDS",
    "READINESS_FAILURES",
    "READINESS_PERIOD_SECONDS",
    "REPLICAS",
    "REPLICAS_MAX",
    "REQUEST_TIMEOUT_SECONDS",
    "SERVICE_PORT",
    "SETTLE_SECONDS",
    "SIDE_CHANNEL_FIRST_PORT",
    "STARTUP_PERIOD_SECONDS",
    "STARTUP_TIMEOUT_SECONDS",
]

API_GROUP: Final = "pdcluster.io"
API_VERSION: Final = "pdcluster.io/v1alpha1"

# --- names -----------------------------------------------------------------------------------

NAME_MAX_CHARS: Final = 40
"""Longest cluster name: ``<name>-prefill-<revision>`` adds 17 and a label value may have 63."""

NAME_MAX_CHARS_MULTI_NODE: Final = 30
"""The same where a role has several nodes: a LeaderWorkerSet's StatefulSets may have 52."""

ARGUMENTS_MAX: Final = 64
"""Most words of one ``args`` or ``command``: CEL's cost limit counts words times characters."""

ARGUMENT_MAX_CHARS: Final = 1024
"""Longest word of ``args`` or ``command``."""

# --- engines ---------------------------------------------------------------------------------

REPLICAS: Final = 2
"""Engines per role where neither ``replicas`` nor ``autoscaling`` is set; no default in the CRD,
because a rule asks which of the two the user set."""

REPLICAS_MAX: Final = 1000
"""Most engines per role."""

ENGINE_PORT: Final = 8000
"""HTTP port of an engine. Source: ``vllm serve``."""

STARTUP_TIMEOUT_SECONDS: Final = 1800
"""Budget for loading and warming up: large models load for many minutes from a cold cache."""

MODEL_CACHE_MOUNT_PATH: Final = "/models"
"""Where the model cache's claim is mounted."""

STARTUP_PERIOD_SECONDS: Final = 2
"""Seconds between two startup probes."""

READINESS_PERIOD_SECONDS: Final = 2
"""Seconds between two readiness probes."""

READINESS_FAILURES: Final = 3
"""Failed readiness probes after which an engine gets no new work."""

LIVENESS_PERIOD_SECONDS: Final = 10
"""Seconds between two liveness probes."""

LIVENESS_FAILURES: Final = 6
"""Failed liveness probes after which an engine is restarted: a minute, since a long prefill may
keep the API server from answering and a restart throws away every lease."""

PROBE_TIMEOUT_SECONDS: Final = 5
"""Seconds one probe may take."""

# --- KV transfer -----------------------------------------------------------------------------

KV_LEASE_DURATION_SECONDS: Final = KV_LEASE_DURATION_S
LEASE_DURATION_SECONDS_MIN: Final = LEASE_DURATION_MIN_S
DECODER_KV_BLOCKS_TTL_SECONDS: Final = DECODER_KV_BLOCKS_TTL_S
KV_RECOMPUTE_THRESHOLD_TOKENS: Final = KV_RECOMPUTE_THRESHOLD
SIDE_CHANNEL_FIRST_PORT: Final = SIDE_CHANNEL_PORT

# --- proxy -----------------------------------------------------------------------------------

PROXY_REPLICAS: Final = 2
"""Proxies: one may go without an outage."""

PROXY_PORT: Final = 8080
"""Where clients connect to a proxy."""

ADMIN_PORT: Final = 9090
"""The companion's ``/metrics`` and ``/readyz``."""

SERVICE_PORT: Final = 80
"""Port of the Service in front of the proxies."""

HOLD_LEASES: Final = 4
"""The keeper holds a lease for at most this many lease durations where ``maxHoldSeconds`` is
unset."""

REQUEST_TIMEOUT_SECONDS: Final = 600
"""The overall deadline of an exchange, which is also the longest generation."""

IDLE_TIMEOUT_SECONDS: Final = 60
"""Longest silence of a decode engine within a stream."""

MAX_IN_FLIGHT: Final = 4096
"""Exchanges in flight per proxy: twice the load goal of 2,000 streams."""

MAX_QUEUE: Final = 1024
"""Exchanges waiting for admission per proxy."""

QUEUE_TIMEOUT_SECONDS: Final = 10
"""Longest wait for admission: longer, and clients have given up."""

# --- drain and rollout -----------------------------------------------------------------------

SETTLE_SECONDS: Final = 5
"""Time for every proxy to learn that an engine drains."""

MAX_PREFILL_SECONDS: Final = 60
"""Longest running prefill a draining prefill engine waits for."""

DECODE_ADMISSION_TIMEOUT_SECONDS: Final = 60
"""Longest wait of a granted request for a decode engine while its prefill engine drains."""

GRACE_MARGIN_SECONDS: Final = 10
"""Slack in a prefill engine's termination grace, for process exit."""

MAX_SURGE: Final = 1
"""Engines above the wanted number during a rollout."""

MAX_UNAVAILABLE: Final = 0
"""Engines below it."""

PROGRESS_DEADLINE_SECONDS: Final = 3600
"""Then a rollout is reported as failed; must exceed the startup budget."""

MIN_PREFILL_PER_DECODE: Final = "1:4"
"""Lower bound of prefill to decode engines."""

MAX_PREFILL_PER_DECODE: Final = "2:1"
"""Upper bound of prefill to decode engines."""
