"""The PDCluster resource as a whole.

Pure.
"""

from typing import Literal

from pydantic import ConfigDict

from pdcluster_api import defaults
from pdcluster_api.rules import CLUSTER_RULES, SPEC_RULES
from pdcluster_api.v1alpha1.engine import EngineSpec, ModelSpec
from pdcluster_api.v1alpha1.kv_transfer import KVTransferSpec
from pdcluster_api.v1alpha1.operation import (
    DrainSpec,
    MonitoringSpec,
    NetworkPolicySpec,
    RatioSpec,
    RolloutSpec,
)
from pdcluster_api.v1alpha1.proxy import ProxySpec
from pdcluster_api.v1alpha1.role import RoleSpec
from pdcluster_api.v1alpha1.shape import Spec
from pdcluster_api.v1alpha1.status import PDClusterStatus

__all__ = ["ObjectMeta", "PDCluster", "PDClusterSpec"]


class ObjectMeta(Spec):
    """The part of Kubernetes' metadata that we read; the rest is kept."""

    model_config = ConfigDict(extra="allow")

    name: str
    """Name of the resource. Example qwen."""
    namespace: str | None = None
    """Namespace of the resource. Example serving."""


class PDClusterSpec(Spec):
    """What the user wants."""

    obeys = SPEC_RULES

    model: ModelSpec
    """The model that both roles serve."""
    engine: EngineSpec
    """What both roles run."""
    prefill: RoleSpec = RoleSpec()
    """The engines that compute prompts."""
    decode: RoleSpec = RoleSpec()
    """The engines that generate answers."""
    kv_transfer: KVTransferSpec = KVTransferSpec()
    """How KV blocks pass from prefill to decode; the same on both roles."""
    proxy: ProxySpec = ProxySpec()
    """The proxy in front of the engines."""
    drain: DrainSpec = DrainSpec()
    """How an engine leaves."""
    rollout: RolloutSpec = RolloutSpec()
    """How a change rolls out."""
    ratio: RatioSpec = RatioSpec()
    """Bounds of prefill to decode engines."""
    network_policy: NetworkPolicySpec = NetworkPolicySpec()
    """Who may reach the pods."""
    monitoring: MonitoringSpec = MonitoringSpec()
    """Objects for the Prometheus operator."""


class PDCluster(Spec):
    """One vLLM service with separate prefill and decode engines behind one proxy."""

    obeys = CLUSTER_RULES

    api_version: Literal["pdcluster.io/v1alpha1"] = defaults.API_VERSION
    """Version of this resource."""
    kind: Literal["PDCluster"] = "PDCluster"
    """Kind of this resource."""
    metadata: ObjectMeta
    """Name, namespace, labels."""
    spec: PDClusterSpec
    """What the user wants."""
    status: PDClusterStatus = PDClusterStatus()
    """What the operator saw."""
