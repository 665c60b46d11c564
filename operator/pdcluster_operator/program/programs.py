"""What a program is, before it is a pod or a local process.

Pure. Types only; :mod:`engine` and :mod:`proxy` make them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pdcluster_api.proxy_config import KubernetesDiscovery, ProxyConfig, Role
from pdcluster_api.v1alpha1.engine import ValueSource

__all__ = [
    "EngineProgram",
    "EnvValue",
    "Environment",
    "Placement",
    "PodField",
    "Port",
    "Probe",
    "Probes",
    "ProxyPlacement",
    "ProxyProgram",
]


@dataclass(frozen=True, slots=True)
class PodField:
    """A value that only the pod knows.

    Attributes:
        path: Field of the pod, for example ``status.podIP``.
    """

    path: str


EnvValue: TypeAlias = str | PodField | ValueSource
"""A literal, a field of the pod, or what the user's ``valueFrom`` says."""

Environment: TypeAlias = tuple[tuple[str, EnvValue], ...]
"""Variables in order; each name stands once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port a program listens on.

    Attributes:
        name: What it is for: ``http``, ``side-channel``, ``admin``.
        number: The port.
    """

    name: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """How to ask a program over HTTP whether it is well; 200 is yes.

    Attributes:
        path: Path of the request.
        port: Port of the request.
        period_s: Seconds between two probes.
        timeout_s: Seconds one probe may take.
        failures: Failed probes in a row that count as "no".
    """

    path: str
    port: int
    period_s: int
    timeout_s: int
    failures: int

    @property
    def budget_s(self) -> int:
        """Seconds from the first failure to "no"."""
        return self.period_s * self.failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The three probes of a program, sized apart.

    Attributes:
        startup: Until it succeeds once, nothing else is asked; its budget bounds loading.
        readiness: Whether new work may go there.
        liveness: Whether it must be restarted.
    """

    startup: Probe
    readiness: Probe
    liveness: Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where an engine runs and what the place gives it.

    Attributes:
        host: Address the engine listens on and is reached at: a loopback address, or the pod's.
        command: Program and first words, before the model; see
            :func:`pdcluster_operator.program.engine.default_command`.
        scratch_dir: Writable folder for the engine's caches, keyed by revision.
        models_dir: Folder for downloaded models; may be shared.
        args: What the place asks for; the resource's own words come after it and win.
        env: The same of variables.
    """

    host: str | PodField
    command: tuple[str, ...]
    scratch_dir: str
    models_dir: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgram:
    """One engine.

    Attributes:
        name: Name within the cluster, for example ``prefill-0``.
        role: Its role.
        revision: What it must share with an engine of the other role to pair.
        lease_duration_s: The lease it grants or expects, in seconds.
        host: See :class:`Placement`.
        argv: Command line; in a pod it may hold ``$(NAME)``, which Kubernetes fills in.
        env: Environment beside what the image or the shell has.
        ports: HTTP first, then the side channel's, one per data parallel rank.
        probes: How to ask whether it is well.
        grace_s: Seconds from TERM to KILL.
        shutdown_timeout_s: Its ``--shutdown-timeout``: how long it waits for requests and leases.
    """

    name: str
    role: Role
    revision: str
    lease_duration_s: int
    host: str | PodField
    argv: tuple[str, ...]
    env: Environment
    ports: tuple[Port, ...]
    probes: Probes
    grace_s: int
    shutdown_timeout_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlacement:
    """Where a proxy runs.

    Attributes:
        host: Address it listens on for clients.
        port: Port for clients.
        admin_host: Address of the companion's admin page.
        admin_port: Port of it.
        command: Program and first words.
        config_file: Path under which the proxy finds its configuration.
        endpoints_file: Path under which it finds the live list of engines; "" where they are pods.
        discovery: Whose pods the engines are, where they are pods.
        workers: Worker processes; 0 is one per core.
        replaces: Another proxy still listens on the clients' port; this one replaces it.
        drain_s: Seconds readiness answers 503 before the listener closes: the time a load balancer
            needs to notice; 0 where there is none.
    """

    host: str
    port: int
    admin_host: str
    admin_port: int
    command: tuple[str, ...]
    config_file: str
    endpoints_file: str = ""
    discovery: KubernetesDiscovery | None = None
    workers: int = 0
    replaces: bool = False
    drain_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyProgram:
    """One proxy: its companion and workers.

    Attributes:
        name: Name within the cluster.
        config: What goes into ``config_file``.
        argv: Command line.
        env: Environment beside what the image or the shell has.
        ports: Clients' port first, then the admin port.
        probes: How to ask whether it is well.
        grace_s: Seconds from TERM to KILL.
    """

    name: str
    config: ProxyConfig
    argv: tuple[str, ...]
    env: Environment
    ports: tuple[Port, ...]
    probes: Probes
    grace_s: int
