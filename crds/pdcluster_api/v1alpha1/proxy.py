"""The proxy in front of the engines.

Pure.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field
from pydantic import StringConstraints as Text

from pdcluster_api import defaults
from pdcluster_api.proxy_config import DecodePolicy, LocalPrefillFallback, PrefillPolicy
from pdcluster_api.v1alpha1.engine import LocalReference
from pdcluster_api.v1alpha1.role import ResourcesSpec
from pdcluster_api.v1alpha1.shape import ImageName, Seconds, Spec

__all__ = ["AdmissionSpec", "PolicySpec", "ProxySpec", "ServiceSpec", "ServiceType"]


class ServiceType(StrEnum):
    """How the Service is reached."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class ServiceSpec(Spec):
    """The Service in front of the proxies."""

    type: ServiceType = ServiceType.CLUSTER_IP
    """How the Service is reached."""
    port: Annotated[int, Field(ge=1, le=65_535)] = defaults.SERVICE_PORT
    """Port of the Service."""
    annotations: Annotated[
        dict[str, Annotated[str, Text(max_length=4096)]], Field(max_length=32)
    ] = Field(default_factory=dict)
    """Annotations of the Service, for cloud load balancers. Example
    service.beta.kubernetes.io/aws-load-balancer-type."""


class PolicySpec(Spec):
    """How engines are chosen."""

    prefill: PrefillPolicy = PrefillPolicy.PREFIX_AFFINITY
    """How a prefill engine is chosen. PrefixAffinity is not built yet: where it is not set, the
    engine with the fewest outstanding prompt tokens is chosen."""
    decode: DecodePolicy = DecodePolicy.LEAST_LOAD
    """How a decode engine is chosen, after prefill and by fresh load."""


class AdmissionSpec(Spec):
    """How much one proxy takes on."""

    max_in_flight: Annotated[int, Field(ge=1, le=1_000_000)] = defaults.MAX_IN_FLIGHT
    """Requests in flight per proxy."""
    max_queue: Annotated[int, Field(ge=0, le=1_000_000)] = defaults.MAX_QUEUE
    """Requests waiting for admission per proxy."""
    queue_timeout_seconds: Annotated[int, Field(ge=0, le=3600)] = defaults.QUEUE_TIMEOUT_SECONDS
    """Longest wait for admission, in seconds."""


class ProxySpec(Spec):
    """The proxy in front of the engines."""

    replicas: Annotated[int, Field(ge=1, le=100)] = defaults.PROXY_REPLICAS
    """Number of proxies."""
    image: ImageName = ""
    """Image of the proxy; empty means the operator's own."""
    resources: ResourcesSpec = ResourcesSpec()
    """Requests and limits of the proxy's container."""
    service: ServiceSpec = ServiceSpec()
    """The Service in front of the proxies."""
    policy: PolicySpec = PolicySpec()
    """How engines are chosen."""
    lease_keeper: bool = True
    """Let the proxy renew leases between prefill's and decode's answer, and release those nobody
    will read. Not built yet: without effect, the hand-off deadline holds."""
    hand_off_deadline_seconds: Annotated[int, Field(ge=1, le=3600)] | None = None
    """Latest start of decode after prefill's answer, in seconds. Default derived from the lease.
    Example 14."""
    max_hold_seconds: Annotated[int, Field(ge=6, le=14_400)] | None = None
    """How long the keeper may hold one lease, in seconds. Default four lease durations. Example
    120."""
    admission: AdmissionSpec = AdmissionSpec()
    """How much one proxy takes on."""
    request_timeout_seconds: Seconds = defaults.REQUEST_TIMEOUT_SECONDS
    """The overall deadline of a request, in seconds; also the longest generation."""
    first_byte_timeout_seconds: Seconds | None = None
    """Longest wait for the first byte of an answer, in seconds. Default requestTimeoutSeconds.
    Example 120."""
    idle_timeout_seconds: Seconds = defaults.IDLE_TIMEOUT_SECONDS
    """Longest silence of an engine within a stream, in seconds."""
    api_keys_secret_ref: LocalReference | None = None
    """Secret whose values are the API keys that clients may use. Without it no key is asked for.
    Not yet supported."""
    tls_secret_ref: LocalReference | None = None
    """Secret with tls.crt and tls.key. Without it the proxy speaks plain HTTP. Not yet
    supported."""
    local_prefill_fallback: LocalPrefillFallback = LocalPrefillFallback.NEVER
    """Whether decode engines may prefill by themselves while no prefill engine is ready."""
