"""What the operator (or ``pdcluster up``) tells the proxy.

Pure. Two documents, because they change at different rates: :class:`ProxyConfig` is static for the
life of a proxy process; :class:`EndpointsFile` is live and is re-read whenever it changes. Both are
camelCase on disk, like the resource they come from.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from pdcluster_lease.defaults import LEASE_DURATION_MIN_S

__all__ = [
    "AdmissionConfig",
    "EndpointConfig",
    "EndpointsFile",
    "KeeperMode",
    "KubernetesDiscovery",
    "LeaseConfig",
    "ListenConfig",
    "LocalPrefillFallback",
    "PolicyConfig",
    "ProxyConfig",
    "Role",
    "TimeoutsConfig",
]

_Port = Annotated[int, Field(ge=1, le=65535)]


class _Model(BaseModel):
    """Frozen, camelCase on the wire, and rejects what it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


class Role(StrEnum):
    """The two roles of an engine."""

    PREFILL = "prefill"
    DECODE = "decode"


class KeeperMode(StrEnum):
    """Whether the proxy renews leases itself between P's answer and D's."""

    ABSENT = "absent"
    """Nobody renews until D does: the no-keeper hand-off deadlines hold."""
    ENABLED = "enabled"
    """The companion's NIXL agent renews from the grant until D's answer begins."""


class LocalPrefillFallback(StrEnum):
    """What happens to a two-leg request while no prefill engine is ready."""

    NEVER = "Never"
    WHEN_NO_PREFILL = "WhenNoPrefill"


class PrefillPolicy(StrEnum):
    """How a prefill engine is chosen."""

    PREFIX_AFFINITY = "PrefixAffinity"
    LEAST_LOAD = "LeastLoad"


class DecodePolicy(StrEnum):
    """How a decode engine is chosen."""

    LEAST_LOAD = "LeastLoad"


class ListenConfig(_Model):
    """An address to listen on."""

    host: str
    port: _Port
    shared: bool = False
    """Another proxy of ours may still listen there: that is how one replaces another without a gap.
    Else a port that is in use is an error."""


class LeaseConfig(_Model):
    """The lease settings of the cluster's engines, for endpoints that do not state their own."""

    duration_seconds: Annotated[int, Field(ge=LEASE_DURATION_MIN_S)]
    hand_off_deadline_seconds: Annotated[int, Field(ge=1)] | None = None
    """Replaces both derived hand-off deadlines where set."""
    max_hold_seconds: Annotated[int, Field(ge=1)]
    """Longest time one lease may be kept alive for one exchange, in whole seconds."""


class TimeoutsConfig(_Model):
    """Bounds on the legs, in seconds."""

    connect_seconds: float = 2.0
    request_seconds: float
    """The one overall deadline of an exchange."""
    first_byte_seconds: float
    idle_seconds: float


class PolicyConfig(_Model):
    """How endpoints are chosen."""

    prefill: PrefillPolicy = PrefillPolicy.LEAST_LOAD
    decode: DecodePolicy = DecodePolicy.LEAST_LOAD


class AdmissionConfig(_Model):
    """Bounds of the whole proxy process group; each worker takes its share."""

    max_in_flight: Annotated[int, Field(ge=1)]
    max_queue: Annotated[int, Field(ge=0)]
    queue_timeout_seconds: Annotated[float, Field(ge=0)]


class KubernetesDiscovery(_Model):
    """The engines are the pods of one PDCluster."""

    namespace: str
    """Its namespace."""
    cluster: str
    """Its name."""


class ProxyConfig(_Model):
    """All a proxy needs to know before it starts; see :class:`EndpointsFile` for the rest."""

    cluster: str
    """Name of the PDCluster, for metrics and logs."""
    model: str
    """The served model name: what clients send as ``model``."""
    listen: ListenConfig
    admin: ListenConfig
    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Number of worker processes; 0 means one per core the process may use."""
    lease: LeaseConfig
    keeper: KeeperMode = KeeperMode.ABSENT
    timeouts: TimeoutsConfig
    policy: PolicyConfig = PolicyConfig()
    admission: AdmissionConfig
    local_prefill_fallback: LocalPrefillFallback = LocalPrefillFallback.NEVER
    max_body_bytes: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    exchange_log: bool = True
    """One JSON line per ended exchange on standard error; never prompts or answers."""
    endpoints_file: str = ""
    """Path of the :class:`EndpointsFile`; watched for changes."""
    kubernetes: KubernetesDiscovery | None = None
    """Where the engines are pods, instead of ``endpoints_file``."""
    drain_seconds: float = 5.0
    """How long readiness answers 503 before the listener closes."""
    grace_seconds: float
    """How long running exchanges may take to finish after that."""

    @model_validator(mode="after")
    def _has_one_discovery(self) -> Self:
        if bool(self.endpoints_file) == (self.kubernetes is not None):
            message = "set endpointsFile or kubernetes, and not both"
            raise ValueError(message)
        return self


class EndpointConfig(_Model):
    """One engine, as discovery knows it."""

    name: str
    role: Role
    url: str
    """``http://host:port`` of the engine's HTTP API."""
    side_channel: str
    """``host:port`` that the engine advertises in ``kv_transfer_params``."""
    revision: str
    block_size: Annotated[int, Field(ge=1)] | None = None
    """Tokens per KV block where known; engines of unequal size are never paired."""
    lease_duration_seconds: Annotated[int, Field(ge=LEASE_DURATION_MIN_S)] | None = None
    """The lease this engine grants; absent means the cluster's."""
    draining: bool = False
    """No new work goes to it; what runs finishes."""


class EndpointsFile(_Model):
    """The live list of engines; replaced atomically (write a new file, rename it over)."""

    endpoints: tuple[EndpointConfig, ...]
