"""What the operator would run for a resource, as text or JSON.

Pure. Shows programs as a pod would get them; the objects around them come with the operator.
"""

from __future__ import annotations

import json
import shlex
from typing import Final

from pdcluster_api import defaults
from pdcluster_api.loading import LoadedCluster
from pdcluster_api.proxy_config import Role
from pdcluster_api.revision import revision_of
from pdcluster_api.support import KEEPER, kubernetes_only
from pdcluster_api.timing import derive_timing
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_operator.program.engine import (
    QUIET_VLLM,
    default_command,
    engine_programs,
    role_spec,
)
from pdcluster_operator.program.programs import (
    EngineProgram,
    EnvValue,
    Placement,
    PodField,
    Probe,
    Probes,
    ProxyPlacement,
    ProxyProgram,
)
from pdcluster_operator.program.proxy import PROXY_COMMAND, proxy_program

__all__ = ["render_json", "render_text"]

_POD_ADDRESS: Final = PodField("status.podIP")
_CACHE_DIR: Final = "/var/cache/pdcluster"
_CONFIG_DIR: Final = "/etc/pdcluster"


def _engines(cluster: PDCluster) -> dict[Role, EngineProgram]:
    """Return one engine per role: all of a role are alike in their pods."""
    spec = cluster.spec
    cache = spec.model.cache
    place = Placement(
        host=_POD_ADDRESS,
        command=default_command(spec),
        scratch_dir=_CACHE_DIR,
        models_dir=cache.mount_path if cache is not None else f"{_CACHE_DIR}/models",
        args=QUIET_VLLM,
    )
    programs = engine_programs(cluster, lambda _role, _index: place)
    return {program.role: program for program in programs}


def _proxy(cluster: PDCluster) -> ProxyProgram:
    return proxy_program(
        cluster,
        ProxyPlacement(
            host="0.0.0.0",
            port=defaults.PROXY_PORT,
            admin_host="0.0.0.0",
            admin_port=defaults.ADMIN_PORT,
            command=PROXY_COMMAND,
            config_file=f"{_CONFIG_DIR}/proxy.json",
            endpoints_file=f"{_CONFIG_DIR}/endpoints.json",
            drain_s=float(cluster.spec.drain.settle_seconds),
        ),
    )


def _value(value: EnvValue) -> str:
    if isinstance(value, str):
        return shlex.quote(value)
    if isinstance(value, PodField):
        return f"<{value.path}>"
    source = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return f"<{json.dumps(source, separators=(',', ':'))}>"


def _argv_lines(argv: tuple[str, ...]) -> list[str]:
    """Break a command line before each flag."""
    lines = [""]
    for word in argv:
        quoted = word if word.startswith("$(") else shlex.quote(word)
        if word.startswith("-") and lines[-1]:
            lines.append(quoted)
        else:
            lines[-1] = f"{lines[-1]} {quoted}".strip()
    return [f"    {line} \\" for line in lines[:-1]] + [f"    {lines[-1]}"]


def _probe_line(name: str, probe: Probe) -> str:
    return (
        f"    {name}: GET {probe.path} on {probe.port} every {probe.period_s} s, "
        f"fails after {probe.failures} ({probe.budget_s} s)"
    )


def _probe_lines(probes: Probes) -> list[str]:
    return [
        _probe_line("startup", probes.startup),
        _probe_line("readiness", probes.readiness),
        _probe_line("liveness", probes.liveness),
    ]


def _program_lines(title: str, program: EngineProgram | ProxyProgram) -> list[str]:
    ports = ", ".join(f"{port.name} {port.number}" for port in program.ports)
    lines = [title, "  command:", *_argv_lines(program.argv)]
    if program.env:
        lines.append("  environment:")
        lines += [f"    {name}={_value(value)}" for name, value in program.env]
    lines += [f"  ports: {ports}", "  probes:", *_probe_lines(program.probes)]
    lines.append(f"  termination grace: {program.grace_s} s")
    return lines


def render_text(loaded: LoadedCluster) -> str:
    """Return what would run, for people.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    cluster = loaded.cluster
    timing = derive_timing(cluster.spec, keeper=KEEPER)
    lease = timing.lease
    lines = [
        f"{cluster.metadata.name}: revision {revision_of(cluster.spec)}, "
        f"lease {lease.duration_s} s, heartbeat {lease.heartbeat_interval_s} s, "
        f"extension {lease.extension_s} s, hand-off {timing.hand_off_cold_s:g} s "
        f"({timing.hand_off_warm_s:g} s for a pair that met), keeper: {timing.keeper.value}"
        if timing.hand_off_cold_s is not None and timing.hand_off_warm_s is not None
        else f"{cluster.metadata.name}: revision {revision_of(cluster.spec)}, "
        f"lease {lease.duration_s} s, keeper: {timing.keeper.value}",
    ]
    for role, program in _engines(cluster).items():
        count = role_spec(cluster.spec, role).num_engines
        lines += ["", *_program_lines(f"{role.value} x {count}", program)]
    proxy = _proxy(cluster)
    config = proxy.config.model_dump_json(by_alias=True, indent=2).splitlines()
    lines += ["", *_program_lines(f"proxy x {cluster.spec.proxy.replicas}", proxy)]
    lines += [f"  {_CONFIG_DIR}/proxy.json:", *(f"    {line}" for line in config)]
    only = kubernetes_only(cluster)
    lines += ["", "Honoured by a Kubernetes cluster only (`pdcluster up` runs without them):"]
    lines += [f"  {field}" for field in only] or ["  nothing of what the file says"]
    if loaded.skipped:
        lines += ["", f"Skipped documents of other kinds: {', '.join(loaded.skipped)}"]
    return "\n".join(lines)


def _program_object(program: EngineProgram | ProxyProgram) -> dict[str, object]:
    return {
        "argv": list(program.argv),
        "env": {name: _json_value(value) for name, value in program.env},
        "ports": {port.name: port.number for port in program.ports},
        "terminationGraceSeconds": program.grace_s,
    }


def _json_value(value: EnvValue) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, PodField):
        return {"fieldRef": {"fieldPath": value.path}}
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def render_json(loaded: LoadedCluster) -> str:
    """Return what would run, as a JSON object.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    cluster = loaded.cluster
    proxy = _proxy(cluster)
    return json.dumps(
        {
            "name": cluster.metadata.name,
            "revision": revision_of(cluster.spec),
            "engines": {
                role.value: {
                    "replicas": role_spec(cluster.spec, role).num_engines,
                    **_program_object(program),
                }
                for role, program in _engines(cluster).items()
            },
            "proxy": {
                "replicas": cluster.spec.proxy.replicas,
                **_program_object(proxy),
                "config": proxy.config.model_dump(mode="json", by_alias=True),
            },
            "kubernetesOnly": list(kubernetes_only(cluster)),
            "skipped": list(loaded.skipped),
        },
        indent=2,
    )
