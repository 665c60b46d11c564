"""One role: how many engines, how large, and what differs from the other role.

Pure.
"""

from typing import Annotated

from pydantic import Field

from pdcluster_api import defaults
from pdcluster_api.rules import AUTOSCALING_RULES, ROLE_RULES
from pdcluster_api.v1alpha1.engine import Environment
from pdcluster_api.v1alpha1.pod_template import PodTemplate
from pdcluster_api.v1alpha1.shape import Arguments, ImageName, Quantities, Spec

__all__ = ["AutoscalingSpec", "ResourcesSpec", "RoleSpec"]

_Replicas = Annotated[int, Field(ge=1, le=defaults.REPLICAS_MAX)]
_ParallelSize = Annotated[int, Field(ge=1, le=64)]


class AutoscalingSpec(Spec):
    """Bounds of the HorizontalPodAutoscaler that the operator makes for the role's PDPool."""

    obeys = AUTOSCALING_RULES

    min_replicas: _Replicas = 1
    """Lower bound."""
    max_replicas: _Replicas
    """Upper bound. Example 8."""


class ResourcesSpec(Spec):
    """Requests and limits of the engine's container."""

    requests: Quantities = Field(default_factory=dict)
    """Quantity per resource name. Example cpu 4."""
    limits: Quantities = Field(default_factory=dict)
    """Quantity per resource name. Example nvidia.com/gpu 1."""


class RoleSpec(Spec):
    """The engines of one role."""

    obeys = ROLE_RULES

    replicas: Annotated[int, Field(ge=0, le=defaults.REPLICAS_MAX)] | None = None
    """Number of engines. Default 2 where autoscaling is not set."""
    autoscaling: AutoscalingSpec | None = None
    """Let load decide the number of engines, instead of replicas."""
    tensor_parallel_size: _ParallelSize = 1
    """GPUs per pipeline stage."""
    pipeline_parallel_size: _ParallelSize = 1
    """Pipeline stages."""
    data_parallel_size: Annotated[int, Field(ge=1, le=256)] = 1
    """Copies of the model in one engine."""
    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Pods per engine; above 1 needs LeaderWorkerSet."""
    startup_timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] = (
        defaults.STARTUP_TIMEOUT_SECONDS
    )
    """Budget for loading and warming up, in seconds."""
    resources: ResourcesSpec = ResourcesSpec()
    """Requests and limits of the engine's container."""
    image: ImageName = ""
    """Image of this role; empty means engine.image."""
    args: Arguments = ()
    """Further command line words of this role, after engine.args. Flags that the operator owns are
    rejected. Example --max-num-seqs=64."""
    env: Environment = ()
    """Further environment of this role, over engine.env. Names that the operator owns are rejected.
    Example NCCL_DEBUG."""
    pod_template: PodTemplate | None = None
    """Merged over the operator's pod template by name; the engine's container is called engine."""

    @property
    def num_engines(self) -> int:
        """Engines to begin with: ``replicas``, else autoscaling's lower bound, else 2."""
        if self.replicas is not None:
            return self.replicas
        if self.autoscaling is not None:
            return self.autoscaling.min_replicas
        return defaults.REPLICAS
