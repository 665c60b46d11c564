"""Where a test cluster's files lie and which addresses it has.

Pure. Both sides, the host's and the one inside the namespaces, work it out from the same facts, so
nothing is told twice.

Source: the Kubernetes documentation's defaults; the address plan is ours.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "COMPONENTS",
    "CONTROL_PLANE",
    "HIDDEN_FOLDERS",
    "NODE",
    "NODE_PROGRAMS",
    "Facts",
    "Layout",
    "cluster_name",
    "free_net",
]

NODE = "node-1"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE_PROGRAMS = (
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "kubelet",
    "kube-proxy",
    "coredns",
    "bridge",
    "host-local",
    "loopback",
    "portmap",
)
COMPONENTS = (*CONTROL_PLANE, "containerd", "kubelet", "kube-proxy", "kube-router")
"""What can be held down for a time."""
HIDDEN_FOLDERS = ("/run", "/var/lib", "/var/log", "/proc", "/sys")
"""Covered inside the cluster, so its own folder must lie elsewhere."""

_FIRST_NET, _NUM_NETS = 64, 128
"""A cluster's network is 10.N.0.0/16 with N from 64 to 191."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a start was asked for; kept in ``cluster.json``.

    Attributes:
        bin: Folder of the programs.
        net: The N of 10.N.0.0/16.
        is_full: With a node; else the control plane alone, and a test plays the kubelet.
        has_policies: NetworkPolicies are enforced.
        images: Archives that are imported at the start.
    """

    bin: str
    net: int
    is_full: bool = True
    has_policies: bool = False
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """One cluster's paths and addresses.

    Attributes:
        folder: Its own folder.
        facts: What it was started with.
    """

    folder: Path
    facts: Facts

    @property
    def name(self) -> str:
        """Name of its link and cgroup: at most 15 bytes, the kernel's limit for links."""
        return cluster_name(self.folder)

    @property
    def bin(self) -> Path:
        """Folder of the programs."""
        return Path(self.facts.bin)

    @property
    def pki(self) -> Path:
        """Folder of keys and certificates."""
        return self.folder / "pki"

    @property
    def logs(self) -> Path:
        """Folder of the components' logs, and of the audit log."""
        return self.folder / "logs"

    @property
    def audit_log(self) -> Path:
        """Every request to the API server, a JSON line each."""
        return self.logs / "audit.log"

    @property
    def held(self) -> Path:
        """Folder with a file per component that is held down."""
        return self.folder / "held"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, good on both sides."""
        return self.folder / "kubeconfig"

    @property
    def ready_file(self) -> Path:
        """Exists once the cluster is usable."""
        return self.folder / "ready"

    @property
    def route(self) -> str:
        """All of its addresses."""
        return f"10.{self.facts.net}.0.0/16"

    @property
    def pods(self) -> str:
        """Its pods' addresses."""
        return f"10.{self.facts.net}.0.0/24"

    @property
    def services(self) -> str:
        """Its Services' addresses."""
        return f"10.{self.facts.net}.128.0/20"

    @property
    def host_ip(self) -> str:
        """The host as pods and API server see it: a test's own servers listen here."""
        return f"10.{self.facts.net}.255.1"

    @property
    def node_ip(self) -> str:
        """Node and API server."""
        return f"10.{self.facts.net}.255.2"

    @property
    def api_ip(self) -> str:
        """The Service of the API server."""
        return f"10.{self.facts.net}.128.1"

    @property
    def dns_ip(self) -> str:
        """The Service of the cluster's DNS."""
        return f"10.{self.facts.net}.128.10"

    @property
    def api_url(self) -> str:
        """Where the API server listens."""
        return f"https://{self.node_ip}:6443"

    def wanted_programs(self) -> tuple[str, ...]:
        """Programs that must be there for such a cluster."""
        node = NODE_PROGRAMS if self.facts.is_full else ()
        policies = ("kube-router",) if self.facts.has_policies else ()
        return (*CONTROL_PLANE, *node, *policies)


def _hash(folder: Path) -> int:
    return int(hashlib.sha256(str(folder).encode()).hexdigest(), 16)


def cluster_name(folder: Path) -> str:
    """Derive a cluster's name from its folder."""
    return f"pdc{_hash(folder):064x}"[:10]


def free_net(folder: Path, routes: str) -> int:
    """Choose a network that has no route yet; the same folder prefers the same one.

    Args:
        folder: The cluster's folder.
        routes: What ``ip -4 route show`` prints.

    Raises:
        ValueError: All of them have routes.
    """
    first = _hash(folder) % _NUM_NETS
    for step in range(_NUM_NETS):
        net = _FIRST_NET + (first + step) % _NUM_NETS
        if f"10.{net}." not in routes:
            return net
    message = "No network from 10.64.0.0/16 to 10.191.0.0/16 is free of routes."
    raise ValueError(message)
