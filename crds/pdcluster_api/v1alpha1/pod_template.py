"""What a user adds to the pods of a role.

Pure. Unknown fields are Kubernetes' own and kept; only what a rule reads is declared.
"""

from typing import Annotated

from pydantic import Field
from pydantic import StringConstraints as Text

from pdcluster_api.rules import CONTAINER_RULES
from pdcluster_api.v1alpha1.shape import (
    ImageName,
    Labels,
    ListMap,
    Obeys,
    OpenObject,
    Spec,
    Words,
)

__all__ = ["ContainerTemplate", "ContainerVariable", "PodMetadata", "PodSpec", "PodTemplate"]


class ContainerVariable(OpenObject):
    """One environment variable of a container."""

    name: Annotated[str, Text(max_length=253)]
    """Name of the variable. Example NCCL_DEBUG."""


class ContainerTemplate(OpenObject):
    """A container; the engine's is called engine."""

    name: Annotated[str, Text(max_length=63)]
    """Name of the container. Example engine."""
    image: ImageName | None = None
    """Image; not for the container engine. Example busybox:1.37."""
    command: Words | None = None
    """Command; not for the container engine. Example sleep."""
    args: Words | None = None
    """Arguments; not for the container engine. Example infinity."""
    env: Annotated[tuple[ContainerVariable, ...], Field(max_length=64)] = ()
    """Further environment. Example NCCL_DEBUG."""


class PodMetadata(Spec):
    """Further labels and annotations of the pods."""

    labels: Labels = Field(default_factory=dict)
    """Further labels; those below pdcluster.io/ are the operator's. Example team."""
    annotations: Annotated[
        dict[str, Annotated[str, Text(max_length=4096)]], Field(max_length=32)
    ] = Field(default_factory=dict)
    """Further annotations. Example sidecar.istio.io/inject."""


class PodSpec(OpenObject):
    """As in a Deployment; checked by a dry run of the operator and shown in ConfigValid."""

    containers: Annotated[
        tuple[ContainerTemplate, ...],
        Field(max_length=8),
        ListMap("name"),
        Obeys(*CONTAINER_RULES),
    ] = ()
    """Additions to the container engine, and further containers. Example engine."""


class PodTemplate(OpenObject):
    """Merged over the operator's pod template, lists by their keys."""

    metadata: PodMetadata | None = None
    """Further labels and annotations of the pods."""
    spec: PodSpec | None = None
    """As in a Deployment; checked by a dry run of the operator and shown in ConfigValid."""
