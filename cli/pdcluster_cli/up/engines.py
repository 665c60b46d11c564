"""Where engines come from on this machine: the simulator, or a real vLLM.

Shell: looks at the file system and at what can be imported.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_cli.errors import EngineMissingError
from pdcluster_cli.settings import Settings
from pdcluster_cli.up.wishes import EngineSource
from pdcluster_operator.program.engine import QUIET_VLLM

__all__ = ["PROXY_COMMAND", "VLLM_POINTER", "find_simulator", "find_vllm"]

PROXY_COMMAND: Final = (sys.executable, "-P", "-m", "pdcluster_proxy.main")
"""The proxy of the same installation."""

VLLM_POINTER: Final = "vllm-cpu-current.json"
"""File in the cache that says where ``make vllm-env`` has put vLLM: command, env, cwd."""

_NIXL_PACKAGES: Final = ("nixl_cu13", "nixl_cu12", "nixl")

_LOOPBACK: Final = (
    # Over tcp alone, a reader that is killed in the middle of a READ takes the owner with it.
    ("UCX_TLS", "tcp,sm,self"),
    ("UCX_NET_DEVICES", "lo"),
    ("PYTHONUNBUFFERED", "1"),
)
"""What NIXL needs to talk within one machine, and logs that can be read while they grow."""


def _local(settings: Settings) -> tuple[tuple[str, str], ...]:
    # A person's own process keeps the person's home: packages may be installed there.
    return (*_LOOPBACK, ("HOME", settings.home_dir))


def find_simulator(settings: Settings) -> EngineSource:
    """Return the simulated engine of the same installation.

    Raises:
        EngineMissingError: The simulator or NIXL is not installed.
    """
    if importlib.util.find_spec("pdcluster_sim") is None:
        raise EngineMissingError(
            "the simulated engine is not installed: pip install 'pdcluster[sim,nixl]'"
        )
    if not any(importlib.util.find_spec(name) for name in _NIXL_PACKAGES):
        raise EngineMissingError(
            "NIXL is not installed, and engines hand over KV blocks through it: "
            "pip install 'pdcluster[nixl]', or `make setup` in a checkout"
        )
    return EngineSource(
        label="simulator",
        command=(sys.executable, "-P", "-m", "pdcluster_sim", "serve"),
        # All requests: it cannot leave out probes and scrapes alone.
        args=("--disable-uvicorn-access-log",),
        env=_local(settings),
    )


def find_vllm(settings: Settings, cluster: PDCluster) -> EngineSource:
    """Return the real vLLM: the resource's ``engine.command``, else the one in the cache.

    Raises:
        EngineMissingError: The resource names no command and the cache holds no vLLM.
    """
    command = cluster.spec.engine.command
    if command:
        return EngineSource(label="vLLM", command=command, args=QUIET_VLLM, env=_local(settings))
    pointer = Path(settings.cache_dir) / VLLM_POINTER
    found = _read_pointer(pointer)
    if found is None:
        raise EngineMissingError(
            f"no vLLM on this machine: {pointer} does not exist. Run `make vllm-env` in a "
            "checkout, or name a command in spec.engine.command, or use --engine sim"
        )
    return EngineSource(
        label="vLLM",
        command=found.command,
        args=QUIET_VLLM,
        env=(*_local(settings), *found.env.items()),
        cwd=found.cwd,
    )


class _Pointer(BaseModel):
    """Content of the pointer file; further keys are for other tools."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    command: tuple[str, ...]
    env: dict[str, str]
    cwd: str | None = None


def _read_pointer(pointer: Path) -> _Pointer | None:
    try:
        found = _Pointer.model_validate_json(pointer.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise EngineMissingError(
            f"{pointer} cannot be used; run `make vllm-env` again: {error}"
        ) from error
    if not found.command or not Path(found.command[0]).exists():
        raise EngineMissingError(
            f"{pointer} names {' '.join(found.command)!r}, which does not exist; run "
            "`make vllm-env` again"
        )
    return found
