"""The environment of an engine: writable caches, own address, transfer settings.

Pure. One table of cache variables for pods and local processes: an engine under a random uid has no
home, and each library looks for its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pdcluster_api.v1alpha1 import PDClusterSpec, RoleSpec
from pdcluster_api.v1alpha1.engine import EnvironmentVariable
from pdcluster_operator.program.programs import Environment, EnvValue, Placement

__all__ = ["MODEL_VARIABLES", "SCRATCH_VARIABLES", "USER_VARIABLES", "engine_environment"]

SCRATCH_VARIABLES: Final = (
    ("HOME", ""),
    ("XDG_CACHE_HOME", "cache"),
    ("XDG_CONFIG_HOME", "config"),
    ("XDG_DATA_HOME", "data"),
    ("VLLM_CACHE_ROOT", "vllm"),
    ("VLLM_CONFIG_ROOT", "vllm-config"),
    ("TORCHINDUCTOR_CACHE_DIR", "torchinductor"),
    ("TRITON_CACHE_DIR", "triton"),
    ("NUMBA_CACHE_DIR", "numba"),
)
"""Variable and the folder below the scratch folder it points to."""

MODEL_VARIABLES: Final = ("HF_HOME",)
"""Variables that point to the folder of downloaded models."""

USER_VARIABLES: Final = ("USER", "LOGNAME")
"""torch asks for the user's name, and a random uid has none: any name will do."""

_USER: Final = "engine"


def engine_environment(spec: PDClusterSpec, role: RoleSpec, place: Placement) -> Environment:
    """Return an engine's variables, each name once, in the order of first mention.

    What comes later wins: caches, the place, ``engine.env``, the role's ``env``, and last what the
    operator owns (which the resource's rules keep out of the former two).
    """
    merged: dict[str, EnvValue] = {}
    for name, folder in SCRATCH_VARIABLES:
        merged[name] = f"{place.scratch_dir}/{folder}".rstrip("/")
    for name in MODEL_VARIABLES:
        merged[name] = place.models_dir
    for name in USER_VARIABLES:
        merged[name] = _USER
    merged.update(place.env)
    ucx = spec.kv_transfer.ucx
    # An empty setting renders nothing: a pinned UCX_TLS has turned RDMA off before.
    merged.update(
        (name, value)
        for name, value in (("UCX_TLS", ucx.tls), ("UCX_NET_DEVICES", ucx.net_devices))
        if value
    )
    merged.update(_values(spec.engine.env))
    merged.update(_values(role.env))
    merged["VLLM_HOST_IP"] = place.host
    merged["VLLM_NIXL_SIDE_CHANNEL_HOST"] = place.host
    merged["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(spec.kv_transfer.side_channel_port)
    return tuple(merged.items())


def _values(variables: Iterable[EnvironmentVariable]) -> Iterable[tuple[str, EnvValue]]:
    for variable in variables:
        # Neither a value nor a source means an empty one, as in Kubernetes.
        yield variable.name, variable.value_from or variable.value or ""
