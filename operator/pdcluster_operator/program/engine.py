"""The engines' programs.

Pure. Everything an engine is told stands here: command line, environment, ports, probes, grace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pdcluster_api import defaults
from pdcluster_api.proxy_config import EndpointConfig, Role
from pdcluster_api.revision import revision_of
from pdcluster_api.support import KEEPER
from pdcluster_api.timing import derive_timing
from pdcluster_api.v1alpha1 import PDCluster, PDClusterSpec, RoleSpec
from pdcluster_operator.program.environment import engine_environment
from pdcluster_operator.program.kv_transfer import kv_transfer_config
from pdcluster_operator.program.programs import (
    EngineProgram,
    Placement,
    PodField,
    Port,
    Probe,
    Probes,
)

__all__ = [
    "QUIET_VLLM",
    "Place",
    "default_command",
    "endpoint_of",
    "engine_program",
    "engine_programs",
    "role_spec",
]

Place = Callable[[Role, int], Placement]
"""Says where the n-th engine of a role runs."""

_HEALTH: Final = "/health"
_OWN_ADDRESS: Final = "$(VLLM_HOST_IP)"
"""In a pod Kubernetes fills in the variable, which is the pod's address."""


QUIET_VLLM: Final = ("--disable-access-log-for-endpoints", "/health,/metrics")
"""Words that keep probes and scrapes, several lines a second, out of an engine's log.

Source:
    vLLM 0.32.0, ``entrypoints/launchers/cli_args.py``.
"""


def default_command(spec: PDClusterSpec) -> tuple[str, ...]:
    """Return the program and first words where the place has no opinion of its own."""
    return spec.engine.command or ("vllm", "serve")


def role_spec(spec: PDClusterSpec, role: Role) -> RoleSpec:
    """Return what the spec says of one role."""
    return spec.prefill if role is Role.PREFILL else spec.decode


def engine_programs(cluster: PDCluster, place: Place) -> tuple[EngineProgram, ...]:
    """Return the programs of all engines: prefill first, then decode, each by number.

    Args:
        cluster: A valid resource.
        place: Says where each engine runs.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    return tuple(
        engine_program(cluster, role, place(role, index), name=f"{role.value}-{index}")
        for role in Role
        for index in range(role_spec(cluster.spec, role).num_engines)
    )


def engine_program(
    cluster: PDCluster, role: Role, place: Placement, *, name: str = ""
) -> EngineProgram:
    """Return the program of one engine.

    Args:
        cluster: A valid resource.
        role: Its role.
        place: Where it runs.
        name: Its name within the cluster; a pod's is Kubernetes' to give.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    spec = cluster.spec
    timing = derive_timing(spec, keeper=KEEPER)
    asked = role_spec(spec, role)
    is_prefill = role is Role.PREFILL
    shutdown_s = timing.prefill_shutdown_s if is_prefill else timing.decode_shutdown_s
    first = spec.kv_transfer.side_channel_port
    return EngineProgram(
        name=name or role.value,
        role=role,
        revision=revision_of(spec),
        lease_duration_s=timing.lease.duration_s,
        host=place.host,
        argv=_argv(spec, role, place, shutdown_s),
        env=engine_environment(spec, asked, place),
        ports=(
            Port(name="http", number=spec.engine.port),
            # D listens too, and each data parallel rank has a port of its own.
            *(
                Port(name=f"side-channel-{rank}" if rank else "side-channel", number=first + rank)
                for rank in range(asked.data_parallel_size)
            ),
        ),
        probes=_probes(spec.engine.port, asked.startup_timeout_seconds),
        grace_s=timing.prefill_grace_s if is_prefill else timing.decode_grace_s,
        shutdown_timeout_s=shutdown_s,
    )


def _argv(spec: PDClusterSpec, role: Role, place: Placement, shutdown_s: int) -> tuple[str, ...]:
    model, asked = spec.model, role_spec(spec, role)
    words = [
        *place.command,
        # The model is positional: vLLM warns that --model will go.
        model.name,
        "--served-model-name",
        model.served_name or model.name,
        "--host",
        _OWN_ADDRESS if isinstance(place.host, PodField) else place.host,
        "--port",
        str(spec.engine.port),
    ]
    if model.revision:
        words += ["--revision", model.revision]
    for flag, size in (
        ("--tensor-parallel-size", asked.tensor_parallel_size),
        ("--pipeline-parallel-size", asked.pipeline_parallel_size),
        ("--data-parallel-size", asked.data_parallel_size),
    ):
        if size > 1:
            words += [flag, str(size)]
    words += [
        "--kv-transfer-config",
        kv_transfer_config(spec.kv_transfer, role),
        "--shutdown-timeout",
        str(shutdown_s),
    ]
    return (*words, *place.args, *spec.engine.args, *asked.args)


def _probes(port: int, startup_timeout_s: int) -> Probes:
    def probe(period_s: int, failures: int) -> Probe:
        return Probe(
            path=_HEALTH,
            port=port,
            period_s=period_s,
            timeout_s=defaults.PROBE_TIMEOUT_SECONDS,
            failures=failures,
        )

    period_s = defaults.STARTUP_PERIOD_SECONDS
    return Probes(
        startup=probe(period_s, -(-startup_timeout_s // period_s)),
        readiness=probe(defaults.READINESS_PERIOD_SECONDS, defaults.READINESS_FAILURES),
        liveness=probe(defaults.LIVENESS_PERIOD_SECONDS, defaults.LIVENESS_FAILURES),
    )


def endpoint_of(
    program: EngineProgram, *, name: str = "", draining: bool = False
) -> EndpointConfig:
    """Return an engine as the proxy's discovery should see it.

    Args:
        program: An engine with a literal address; a pod's is known to Kubernetes only.
        name: Name of the endpoint where it differs from the program's.
        draining: No new work goes to it.
    """
    assert isinstance(program.host, str), "a pod's endpoint comes from the pod's status"
    http, side_channel = program.ports[0], program.ports[1]
    return EndpointConfig(
        name=name or program.name,
        role=program.role,
        url=f"http://{program.host}:{http.number}",
        side_channel=f"{program.host}:{side_channel.number}",
        revision=program.revision,
        lease_duration_seconds=program.lease_duration_s,
        draining=draining,
    )
