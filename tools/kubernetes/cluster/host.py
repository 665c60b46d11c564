"""The host's side of a cluster: start, stop, run something in it.

Shell. Nothing of a cluster outlives :func:`stop`, also where its start or its process 1 was killed:
processes are found by their command line, links, cgroups and files by the cluster's name.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from tools.kubernetes.cluster.certificates import write_certificates
from tools.kubernetes.cluster.layout import (
    COMPONENTS,
    HIDDEN_FOLDERS,
    Facts,
    Layout,
    cluster_name,
    free_net,
)
from tools.kubernetes.cluster.shell import ClusterError, run, wait_for
from tools.kubernetes.cluster.supervisor import CGROUPS

__all__ = ["Cluster", "missing_system_programs"]

_SOURCE_ROOT = Path(__file__).resolve().parents[3]
_SUBFOLDERS = ("pki", "logs", "lib", "log", "etcd", "cni", "sysctl", "images", "held")
_SYSTEM_PROGRAMS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "ip": "iproute2",
    "openssl": "openssl",
    "mount": "mount",
}
_NODE_SYSTEM_PROGRAMS = {
    "runc": "runc",
    "nft": "nftables",
    "conntrack": "conntrack",
    "busybox": "busybox-static",
}
_POLICY_SYSTEM_PROGRAMS = {"iptables": "iptables", "ipset": "ipset"}


def missing_system_programs(*, is_full: bool, has_policies: bool) -> dict[str, str]:
    """Tell which programs of the system a cluster would lack.

    Returns:
        Program to the Debian package that has it.
    """
    wanted = dict(_SYSTEM_PROGRAMS)
    if is_full:
        wanted |= _NODE_SYSTEM_PROGRAMS
    if has_policies:
        wanted |= _POLICY_SYSTEM_PROGRAMS
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return {name: package for name, package in wanted.items() if not shutil.which(name, path=path)}


class Cluster:
    """One cluster, by its folder.

    Args:
        folder: Its own folder; in memory (``/dev/shm``) it starts and stops fastest.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        # This is all the mutable state: what this process has started, to be reaped at the end.
        self._outer: subprocess.Popen[bytes] | None = None

    @property
    def layout(self) -> Layout:
        """Paths and addresses of the cluster that was started here.

        Raises:
            ClusterError: None was.
        """
        try:
            facts = json.loads((self.folder / "cluster.json").read_text())
        except FileNotFoundError as error:
            message = f"no cluster was started in {self.folder}"
            raise ClusterError(message) from error
        facts["images"] = tuple(facts["images"])
        return Layout(self.folder, Facts(**facts))

    @property
    def pid(self) -> int:
        """Process 1 of the namespaces as the host sees it; 0 where there is none."""
        return next((outer for outer, inner in self._processes() if inner == 1), 0)

    @property
    def is_running(self) -> bool:
        """Whether it can be used."""
        return bool(self.pid) and (self.folder / "ready").exists()

    def start(
        self,
        bin_folder: Path,
        *,
        is_full: bool = True,
        has_policies: bool = False,
        images: Sequence[Path] = (),
        ends_with_us: bool = False,
        timeout_s: float = 180.0,
    ) -> Layout:
        """Start it; what an earlier one left in its folder is removed before.

        Args:
            bin_folder: Folder of the programs.
            is_full: With a node.
            has_policies: NetworkPolicies are enforced.
            images: Archives that the node is given.
            ends_with_us: The kernel ends it when the calling thread ends, however it does.
            timeout_s: Longest wait until it is ready.

        Raises:
            ClusterError: Something is missing, or it did not become ready in time.
        """
        self._check_host(is_full=is_full, has_policies=has_policies)
        self.stop()
        facts = Facts(
            bin=str(bin_folder.resolve()),
            net=free_net(self.folder, run("ip", "-4", "route", "show")),
            is_full=is_full,
            has_policies=has_policies,
            images=tuple(str(image.resolve()) for image in images),
        )
        layout = Layout(self.folder, facts)
        missing = [name for name in layout.wanted_programs() if not (layout.bin / name).exists()]
        if missing:
            message = f"{layout.bin} lacks {', '.join(missing)}: run 'make kubernetes'"
            raise ClusterError(message)
        self.folder.mkdir(parents=True, exist_ok=True)
        # First: by it a stop knows that the folder is a cluster's.
        (self.folder / "cluster.json").write_text(json.dumps(dataclasses.asdict(facts)))
        for name in _SUBFOLDERS:
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        write_certificates(layout)
        self._outer = outer = self._launch_supervisor(ends_with_us=ends_with_us)
        try:
            self._connect(layout, timeout_s, outer)
        except ClusterError as error:
            log = (layout.logs / "supervisor.log").read_text(errors="replace")
            tail = "\n".join(log.splitlines()[-15:])
            self.stop()
            message = f"{error}\n{tail}"
            raise ClusterError(message) from error
        return layout

    def stop(self) -> None:
        """End every process and remove link, cgroups and files; the logs stay. Idempotent.

        Raises:
            ClusterError: The folder holds what is no cluster's; nothing was removed.
        """
        self._check_folder()
        pid = self.pid
        if pid:
            # The kernel ends every other process of that namespace with it.
            os.kill(pid, signal.SIGKILL)
        wait_for(
            "end of the namespaces",
            lambda: not list(self._processes()),
            timeout_s=30.0,
            pause_s=0.02,
        )
        if self._outer is not None:
            self._outer.wait(10)
            self._outer = None
        name = cluster_name(self.folder)
        run("ip", "link", "del", name, check=False)  # Usually gone with its peer already.
        for top in (*CGROUPS.glob(f"*/{name}"), CGROUPS / name):
            wait_for(f"empty cgroup {top}", partial(_remove_cgroup, top), timeout_s=20.0)
        for entry in self.folder.glob("*"):
            if entry.name not in {"lock", "logs"}:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def remove(self) -> None:
        """Stop it and remove its folder too, with the logs.

        Raises:
            ClusterError: The folder holds what is no cluster's; nothing was removed.
        """
        self.stop()
        shutil.rmtree(self.folder)

    def exec(self, argv: Sequence[str]) -> int:
        """Run a program in the cluster's namespaces; returns its exit code.

        Raises:
            ClusterError: The cluster does not run.
        """
        pid, layout = self.pid, self.layout
        if not pid:
            message = f"the cluster in {self.folder} does not run"
            raise ClusterError(message)
        env = {
            **os.environ,
            "PATH": f"{layout.bin}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "KUBECONFIG": str(layout.kubeconfig),
        }
        into = ["nsenter", "-t", str(pid), "-m", "-n", "-p", "-i", "-u", "--"]
        return subprocess.run([*into, *argv], env=env, check=False).returncode

    def shell(self) -> int:
        """Run the user's shell on the host, with kubectl and helm for this cluster.

        Raises:
            ClusterError: The cluster does not run.
        """
        if not self.is_running:
            message = f"the cluster in {self.folder} does not run: start it with 'make cluster'"
            raise ClusterError(message)
        layout = self.layout
        # Beside this Python lies our plugin, kubectl-pdcluster.
        path = f"{layout.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {
            **os.environ,
            "PATH": path,
            "KUBECONFIG": str(layout.kubeconfig),
            # Helm's own folders, so that the user's repositories are left alone.
            **{
                f"HELM_{kind}_HOME": str(self.folder / "helm")
                for kind in ("CACHE", "CONFIG", "DATA")
            },
        }
        program = os.environ.get("SHELL", "/bin/sh")
        return subprocess.run([program], env=env, check=False).returncode

    def import_image(self, archive: Path) -> None:
        """Give the node an image from a docker or OCI archive.

        Raises:
            ClusterError: It could not be imported.
        """
        words = ["ctr", "-n", "k8s.io", "images", "import", str(archive.resolve())]
        if self.exec(words):
            message = f"{archive} could not be imported"
            raise ClusterError(message)

    def hold(self, component: str, *, is_down: bool) -> None:
        """Kill a component and keep it down, or let it come up again.

        Raises:
            ClusterError: There is no such component.
        """
        if component not in COMPONENTS:
            message = f"{component!r} is none of {', '.join(COMPONENTS)}"
            raise ClusterError(message)
        mark = self.layout.held / component
        if is_down:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

    # Inside --------------------------------------------------------------------------------

    def _check_host(self, *, is_full: bool, has_policies: bool) -> None:
        if os.geteuid():
            message = "a cluster needs root: it makes namespaces, links and cgroups"
            raise ClusterError(message)
        if any(str(self.folder).startswith(hidden) for hidden in HIDDEN_FOLDERS):
            message = f"{self.folder} lies under a folder that the cluster covers; use another"
            raise ClusterError(message)
        missing = missing_system_programs(is_full=is_full, has_policies=has_policies)
        if missing:
            packages = " ".join(sorted(set(missing.values())))
            message = f"missing: {', '.join(missing)}. On Debian: apt-get install {packages}"
            raise ClusterError(message)

    def _check_folder(self) -> None:
        """Make sure that nobody else's files are in the folder that is about to be emptied."""
        foreign = sorted({entry.name for entry in self.folder.glob("*")} - {"lock", "logs"})
        if foreign and not (self.folder / "cluster.json").exists():
            message = f"{self.folder} is no cluster's: it holds {', '.join(foreign[:5])}"
            raise ClusterError(message)

    def _launch_supervisor(self, *, ends_with_us: bool) -> subprocess.Popen[bytes]:
        flags = [
            "--mount",
            "--net",
            "--pid",
            "--ipc",
            "--uts",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        program = [sys.executable, "-B", "-m", "tools.kubernetes.cluster"]
        leash = ["setpriv", "--pdeathsig", "KILL"] if ends_with_us else []
        with (self.folder / "logs" / "supervisor.log").open("wb") as log:
            return subprocess.Popen(
                [*leash, "unshare", *flags, *program, "supervise", "--dir", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=_SOURCE_ROOT,
            )

    def _connect(self, layout: Layout, timeout_s: float, outer: subprocess.Popen[bytes]) -> None:
        """Give the namespaces their link to the host, then wait until the cluster is ready."""
        wait_for("supervisor", lambda: self.pid, timeout_s=10.0, pause_s=0.02)
        name = layout.name
        peer = ("peer", "name", "eth0", "netns", str(self.pid))
        run("ip", "link", "add", name, "type", "veth", *peer)
        run("ip", "address", "add", f"{layout.host_ip}/30", "dev", name)
        run("ip", "link", "set", name, "up")
        run("ip", "route", "add", layout.route, "via", layout.node_ip, "dev", name)
        wait_for(
            "ready cluster",
            lambda: layout.ready_file.exists() or outer.poll() is not None,
            timeout_s=timeout_s,
        )
        if outer.poll() is not None:
            message = "the cluster's supervisor ended early"
            raise ClusterError(message)

    def _processes(self) -> Iterator[tuple[int, int]]:
        """This cluster's ``unshare`` and supervisor: pid here, and pid innermost."""
        mark = f"\0supervise\0--dir\0{self.folder}\0".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "cmdline").read_bytes():
                    line = (process / "status").read_text().split("NSpid:")[1].split("\n")[0]
                    yield int(process.name), int(line.split()[-1])
            except (OSError, IndexError):
                continue


def _remove_cgroup(top: Path) -> bool:
    for folder, _, _ in os.walk(top, topdown=False):
        Path(folder).rmdir()
    return True
