"""The PDPool resource: the number of engines of one role, for scalers.

Pure. A version of a CRD has one scale subresource and a cluster has two roles, so the operator
makes one PDPool per role.
"""

from typing import Annotated, Literal

from pydantic import Field
from pydantic import StringConstraints as Text

from pdcluster_api import defaults
from pdcluster_api.proxy_config import Role
from pdcluster_api.rules import IMMUTABLE
from pdcluster_api.v1alpha1.cluster import ObjectMeta
from pdcluster_api.v1alpha1.shape import Obeys, Spec

__all__ = ["PDPool", "PDPoolSpec", "PDPoolStatus"]


class PDPoolSpec(Spec):
    """What is wanted."""

    cluster_name: Annotated[str, Text(max_length=defaults.NAME_MAX_CHARS), Obeys(IMMUTABLE)]
    """The PDCluster. Example qwen."""
    role: Annotated[Role, Obeys(IMMUTABLE)]
    """The role. Example decode."""
    replicas: Annotated[int, Field(ge=0, le=defaults.REPLICAS_MAX)]
    """Number of engines. Example 4."""


class PDPoolStatus(Spec):
    """What the operator saw."""

    replicas: int | None = None
    """Pods of this role. Example 4."""
    selector: Annotated[str, Text(max_length=512)] | None = None
    """Label selector of these pods. Example pdcluster.io/cluster=qwen,pdcluster.io/role=decode."""


class PDPool(Spec):
    """The number of engines of one role, for kubectl scale, HorizontalPodAutoscaler and KEDA."""

    api_version: Literal["pdcluster.io/v1alpha1"] = defaults.API_VERSION
    """Version of this resource."""
    kind: Literal["PDPool"] = "PDPool"
    """Kind of this resource."""
    metadata: ObjectMeta
    """Name, namespace, labels."""
    spec: PDPoolSpec
    """What is wanted."""
    status: PDPoolStatus | None = None
    """What the operator saw."""
