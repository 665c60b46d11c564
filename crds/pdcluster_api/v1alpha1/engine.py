"""The model and the engine: what both roles serve and run.

Pure.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic import StringConstraints as Text

from pdcluster_api import defaults
from pdcluster_api.rules import ENVIRONMENT_RULES, VARIABLE_RULES
from pdcluster_api.v1alpha1.shape import (
    Arguments,
    ImageName,
    ListMap,
    Obeys,
    ObjectName,
    Port,
    Spec,
    Words,
)

__all__ = [
    "ABSOLUTE_PATH_PATTERN",
    "VARIABLE_PATTERN",
    "EngineSpec",
    "Environment",
    "EnvironmentVariable",
    "FieldReference",
    "ImagePullPolicy",
    "KeyReference",
    "LocalReference",
    "ModelCache",
    "ModelSpec",
    "ValueSource",
]

ABSOLUTE_PATH_PATTERN = "^/"
VARIABLE_PATTERN = "^[A-Za-z_][A-Za-z0-9_]*$"


class KeyReference(Spec):
    """A key of an object in this namespace."""

    name: ObjectName
    """Name of the object. Example hf."""
    key: ObjectName
    """Key in it. Example token."""
    optional: bool | None = None
    """Start without it where it is missing. Example true."""


class LocalReference(Spec):
    """An object in this namespace."""

    name: ObjectName
    """Name of the object. Example registry."""


class FieldReference(Spec):
    """A field of the pod."""

    field_path: ObjectName
    """Path of the field. Example status.hostIP."""


class ValueSource(Spec):
    """Where the value of a variable comes from; exactly one of the three."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    secret_key_ref: KeyReference | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyReference | None = None
    """A key of a ConfigMap."""
    field_ref: FieldReference | None = None
    """A field of the pod."""


class EnvironmentVariable(Spec):
    """One environment variable."""

    obeys = VARIABLE_RULES

    name: Annotated[str, Text(max_length=253, pattern=VARIABLE_PATTERN)]
    """Name of the variable. Example NCCL_DEBUG."""
    value: Annotated[str, Text(max_length=2048)] | None = None
    """Literal value. Example INFO."""
    value_from: ValueSource | None = None
    """Source of the value instead of a literal."""


Environment = Annotated[
    tuple[EnvironmentVariable, ...],
    Field(max_length=64),
    ListMap("name"),
    Obeys(*ENVIRONMENT_RULES),
]
"""Further variables of an engine; what the operator owns is rejected."""


class ModelCache(Spec):
    """A claim that holds model weights, so that engines do not download them."""

    persistent_volume_claim: ObjectName
    """Name of the PersistentVolumeClaim. Example models."""
    mount_path: Annotated[
        str, Text(min_length=1, max_length=253, pattern=ABSOLUTE_PATH_PATTERN)
    ] = defaults.MODEL_CACHE_MOUNT_PATH
    """Where it is mounted in the engine's container."""
    read_only: bool = True
    """Mount it read-only."""


class ModelSpec(Spec):
    """The model that both roles serve."""

    name: Annotated[str, Text(min_length=1, max_length=253)]
    """The string given to the engine; P and D must have it letter for letter. Example
    Qwen/Qwen3-8B."""
    served_name: Annotated[str, Text(min_length=1, max_length=253)] | None = None
    """What clients send as model. Default is model.name. Example qwen3-8b."""
    revision: Annotated[str, Text(max_length=253)] = ""
    """Revision of the model at its hub; empty means the hub's default. Example main."""
    token_secret_ref: KeyReference | None = None
    """Secret with the hub's token, for models that need one."""
    cache: ModelCache | None = None
    """Claim with the model's weights."""


class ImagePullPolicy(StrEnum):
    """When the kubelet pulls an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class EngineSpec(Spec):
    """What both roles run."""

    image: Annotated[ImageName, Text(min_length=1)]
    """Image of the engine. Example vllm/vllm-openai:v0.32.0."""
    image_pull_policy: ImagePullPolicy = ImagePullPolicy.IF_NOT_PRESENT
    """When the image is pulled."""
    image_pull_secrets: Annotated[
        tuple[LocalReference, ...], Field(max_length=8), ListMap("name")
    ] = ()
    """Secrets for pulling the image. Example registry."""
    command: Words = ()
    """Program and first words of the command line. Default is vllm serve."""
    port: Port = defaults.ENGINE_PORT
    """HTTP port of the engine."""
    args: Arguments = ()
    """Further command line words of both roles, before the role's own. Flags that the operator owns
    are rejected. Example --max-model-len=8192."""
    env: Environment = ()
    """Further environment of both roles. Names that the operator owns are rejected. Example
    NCCL_DEBUG."""
