"""How KV blocks pass from prefill to decode.

Pure.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic import StringConstraints as Text
from pydantic_core import PydanticCustomError

from pdcluster_api import defaults
from pdcluster_api.rules import IMMUTABLE, KV_TRANSFER_RULES
from pdcluster_api.v1alpha1.shape import Obeys, OpenObject, Port, Spec

__all__ = [
    "BACKEND_PATTERN",
    "BufferDevice",
    "ExtraConnector",
    "KVTransferSpec",
    "LoadFailurePolicy",
    "UcxSpec",
]


class LoadFailurePolicy(StrEnum):
    """What a decode engine does when reading blocks fails."""

    FAIL = "Fail"
    """The request fails; the proxy prefills again."""
    RECOMPUTE = "Recompute"
    """The decode engine prefills by itself."""


class BufferDevice(StrEnum):
    """Where transfer buffers lie."""

    ENGINE_DEFAULT = ""
    CPU = "cpu"
    CUDA = "cuda"


class ExtraConnector(OpenObject):
    """One more connector beside NIXL, passed through unchecked."""


class UcxSpec(Spec):
    """Settings of UCX; an empty one renders nothing, since a pinned value can disable RDMA."""

    tls: Annotated[str, Text(max_length=253)] = ""
    """Value of UCX_TLS. Example rc,cuda_copy,cuda_ipc."""
    net_devices: Annotated[str, Text(max_length=253)] = ""
    """Value of UCX_NET_DEVICES. Example mlx5_0:1."""


def _once(values: tuple[str, ...]) -> tuple[str, ...]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise PydanticCustomError(
                "duplicate_item",
                "[{index}] is {value} a second time; each may stand once",
                {"index": index, "value": repr(value)},
            )
    return values


BACKEND_PATTERN = "^[A-Z][A-Z0-9_]*$"
_Backend = Annotated[str, Text(max_length=32, pattern=BACKEND_PATTERN)]
_Backends = Annotated[
    tuple[_Backend, ...],
    Field(min_length=1, max_length=4, json_schema_extra={"x-kubernetes-list-type": "set"}),
    AfterValidator(_once),
]


class KVTransferSpec(Spec):
    """How KV blocks pass from prefill to decode; the same on both roles."""

    obeys = KV_TRANSFER_RULES

    connector: Annotated[Literal["Nixl"], Obeys(IMMUTABLE)] = "Nixl"
    """KV connector of the engines. Cannot be changed."""
    kv_lease_duration_seconds: Annotated[int, Field(ge=0, le=3600)] = (
        defaults.KV_LEASE_DURATION_SECONDS
    )
    """How long a prefill engine keeps blocks for a decode engine that has not yet asked, in
    seconds."""
    decoder_kv_blocks_ttl_seconds: Annotated[int, Field(ge=0, le=86_400)] | None = Field(
        default=None, alias="decoderKVBlocksTTLSeconds"
    )
    """How long a decode engine keeps its blocks for the next turn, in seconds. Only with
    bidirectional. Default 480 then."""
    bidirectional: bool = False
    """Let prefill engines read decode engines' blocks in the next turn."""
    kv_recompute_threshold: Annotated[int, Field(ge=0, le=1_048_576)] | None = None
    """Fewer missing tokens than this are recomputed rather than read. Only with bidirectional.
    Default 64 then."""
    load_failure_policy: LoadFailurePolicy = LoadFailurePolicy.FAIL
    """What a decode engine does when reading blocks fails."""
    buffer_device: BufferDevice = BufferDevice.ENGINE_DEFAULT
    """Where transfer buffers lie; empty means the engine's default, cpu is for CPU engines."""
    enforce_handshake_compatibility: bool = True
    """Reject a peer whose compatibility hash differs."""
    side_channel_port: Port = defaults.SIDE_CHANNEL_FIRST_PORT
    """First port of the side channel; each data parallel rank takes one."""
    backends: _Backends = ("UCX",)
    """NIXL's transfer backends."""
    extra_connectors: Annotated[tuple[ExtraConnector, ...], Field(max_length=4)] = ()
    """Connectors beside NIXL, passed through unchecked and untested. Example
    OffloadingConnector."""
    ucx: UcxSpec = UcxSpec()
    """Settings of UCX; an empty one renders nothing."""
