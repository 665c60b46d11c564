"""Process 1 of a cluster's namespaces: mounts, starts the components in order, keeps them running.

Shell. When it ends, the kernel ends every process, mount and link in there. A component that dies
is started again a second later, as a service manager would, unless it is held down.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.kubernetes.cluster import components
from tools.kubernetes.cluster.dns import DNS_DEPLOYMENT, dns_manifests
from tools.kubernetes.cluster.layout import NODE, Layout
from tools.kubernetes.cluster.oci_image import Image, write_image
from tools.kubernetes.cluster.shell import ClusterError, run, wait_for

__all__ = ["CGROUPS", "Supervisor"]

CGROUPS = Path("/sys/fs/cgroup")

_STEP_TIMEOUT_S = 120.0
_RESTART_S = 1.0
_POLL_S = 0.1
# The kubelet wants these values and would write them for the whole machine. Files that say so are
# bound over them in our mount namespace, and it is content.
_KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_SYSCTLS = ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables", "ipv4/conf/all/route_localnet")
_APPLETS = "sh wget nslookup httpd nc sleep cat ls id date touch timeout env kill"
_SLEEPER = (
    "/bin/busybox",
    "sh",
    "-c",
    "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done",
)


class Supervisor:
    """One cluster's process 1.

    Args:
        layout: The cluster.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._began_at = time.monotonic()
        # This is all the mutable state.
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._due: dict[str, float] = {}

    def run(self) -> None:
        """Start everything, say that it is ready, then look after it for ever."""
        layout = self._layout
        os.environ["PATH"] = f"{layout.bin}:/usr/sbin:/usr/bin:/sbin:/bin"
        socket.sethostname(NODE)
        self._mount()
        self._set_up_network()
        self._write("audit.json", components.AUDIT_POLICY)
        self._launch("etcd")
        self._wait("etcd", _accepts_on_port(2379))
        self._launch("kube-apiserver")
        if layout.facts.is_full:  # While the API server starts.
            self._make_cgroups()
            self._write("cni/10-bridge.conflist", components.cni_config(layout))
            (layout.folder / "containerd.toml").write_text(components.containerd_config(layout))
            self._launch("containerd")
            self._import_images()
        self._wait("API server", lambda: self._api("GET", "/readyz")[0] == http.client.OK)
        self._launch("kube-controller-manager")
        self._launch("kube-scheduler")
        if layout.facts.is_full:
            (layout.folder / "resolv.conf").write_text("")
            self._write("kubelet.json", components.kubelet_config(layout))
            self._write("kube-proxy.json", components.kube_proxy_config(layout))
            self._launch("kubelet")
            self._launch("kube-proxy")
        self._wait("default ServiceAccount", self._has_service_account)
        if layout.facts.is_full:
            self._start_dns()
        layout.ready_file.touch()
        self._look_after()

    # Components ------------------------------------------------------------------------------

    def _launch(self, component: str) -> None:
        with (self._layout.logs / f"{component}.log").open("ab") as log:
            self._running[component] = subprocess.Popen(
                components.command(component, self._layout),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        pids = {name: process.pid for name, process in self._running.items()}
        self._write("pids.json", pids)

    def _look_after(self) -> None:
        held = self._layout.held
        while True:
            self._reap()
            now = time.monotonic()
            for component, process in self._running.items():
                if (held / component).exists() and process.returncode is None:
                    process.send_signal(signal.SIGKILL)
            for component, due_at in list(self._due.items()):
                if now >= due_at and not (held / component).exists():
                    del self._due[component]
                    self._say(f"{component}: starting it again")
                    self._launch(component)
            time.sleep(_POLL_S)

    def _reap(self) -> None:
        """Collect what has ended, orphans included, as process 1 must."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for component, process in self._running.items():
                if process.pid == pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    self._say(f"{component}: ended with {process.returncode}")
                    self._due[component] = time.monotonic() + _RESTART_S

    def _wait(self, what: str, test: Callable[[], object]) -> None:
        wait_for(what, test, timeout_s=_STEP_TIMEOUT_S)
        self._say(what)

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_at:5.1f} s  {text}", flush=True)

    def _write(self, path: str, content: object) -> None:
        (self._layout.folder / path).write_text(json.dumps(content))

    # What the components stand on ------------------------------------------------------------

    def _mount(self) -> None:
        """Cover folders, so that every component keeps its default paths and the host none."""
        folder = self._layout.folder
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        run("mount", "--bind", folder / "lib", "/var/lib")
        run("mount", "--bind", folder / "log", "/var/log")
        for path in ("/var/lib/kubelet", "/var/log/pods", "/run/netns"):
            Path(path).mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", "/var/lib/kubelet", "/var/lib/kubelet")
        run("mount", "--make-rshared", "/var/lib/kubelet")
        for number, (key, value) in enumerate(_KUBELET_SYSCTLS.items()):
            cover = folder / "sysctl" / str(number)
            cover.write_text(value + "\n")
            run("mount", "--bind", cover, f"/proc/sys/{key}")

    def _set_up_network(self) -> None:
        wait_for("link from the host", lambda: run("ip", "link", "show", "eth0"), timeout_s=10.0)
        run("ip", "link", "set", "lo", "up")
        run("ip", "address", "add", f"{self._layout.node_ip}/30", "dev", "eth0")
        run("ip", "link", "set", "eth0", "up")
        for key in _SYSCTLS:
            Path("/proc/sys/net", key).write_text("1")

    def _make_cgroups(self) -> None:
        name = self._layout.name
        if (CGROUPS / "cgroup.controllers").exists():  # Version 2 has one hierarchy.
            (CGROUPS / name).mkdir(exist_ok=True)
            return
        for hierarchy in CGROUPS.iterdir():
            if hierarchy.is_dir() and not hierarchy.is_symlink():
                (hierarchy / name).mkdir(exist_ok=True)
        for key in ("cpuset.cpus", "cpuset.mems"):  # An empty one takes no process.
            root = CGROUPS / "cpuset"
            (root / name / key).write_text((root / key).read_text())

    def _import_images(self) -> None:
        """The pause image, busybox for small pods, CoreDNS; then the caller's archives."""
        layout = self._layout
        found = shutil.which("busybox")
        if found is None:
            message = "the program 'busybox' is missing"
            raise ClusterError(message)
        busybox = {"/bin/busybox": Path(found)}
        applets = tuple((f"/bin/{name}", "busybox") for name in _APPLETS.split())
        own = (
            Image(name=components.PAUSE_IMAGE, files=busybox, entrypoint=_SLEEPER, user="65535"),
            Image(name=components.BUSYBOX_IMAGE, files=busybox, entrypoint=_SLEEPER, links=applets),
            Image(
                name=components.DNS_IMAGE,
                files={"/coredns": layout.bin / "coredns"},
                entrypoint=("/coredns",),
            ),
        )
        archives: list[Path] = []
        for number, image in enumerate(own):
            archive = layout.folder / "images" / f"{number}.tar"
            write_image(image, archive)
            archives.append(archive)
        self._wait("containerd", lambda: run("ctr", "version"))
        for each in (*archives, *map(Path, layout.facts.images)):
            run("ctr", "-n", "k8s.io", "images", "import", each)
        self._say("images")

    # The API server --------------------------------------------------------------------------

    def _start_dns(self) -> None:
        layout = self._layout
        for path, manifest in dns_manifests(layout.dns_ip, components.DNS_IMAGE):
            self._apply(path, manifest)
        self._wait("Ready node", self._node_is_ready)
        if layout.facts.has_policies:  # It ends where it finds no Node object.
            self._launch("kube-router")
        self._wait("cluster DNS", self._dns_is_available)

    def _has_service_account(self) -> bool:
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        return self._api("GET", path)[0] == http.client.OK

    def _node_is_ready(self) -> bool:
        status, node = self._api("GET", f"/api/v1/nodes/{NODE}")
        return status == http.client.OK and any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in json.loads(node)["status"]["conditions"]
        )

    def _dns_is_available(self) -> bool:
        status, deployment = self._api("GET", DNS_DEPLOYMENT)
        return status == http.client.OK and bool(
            json.loads(deployment)["status"].get("availableReplicas")
        )

    def _apply(self, path: str, manifest: Mapping[str, object]) -> None:
        metadata = manifest["metadata"]
        assert isinstance(metadata, dict)
        query = "fieldManager=test-cluster&force=true"
        status, answer = self._api("PATCH", f"{path}/{metadata['name']}?{query}", manifest)
        if status >= http.client.MULTIPLE_CHOICES:
            message = f"apply {path}/{metadata['name']}: {status} {answer}"
            raise ClusterError(message)

    def _api(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> tuple[int, str]:
        pki = self._layout.pki
        context = ssl.create_default_context(cafile=pki / "ca.crt")
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        connection = http.client.HTTPSConnection(
            self._layout.node_ip, 6443, context=context, timeout=10
        )
        try:
            content = json.dumps(body) if body is not None else None
            connection.request(
                method, path, content, {"Content-Type": "application/apply-patch+yaml"}
            )
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def _accepts_on_port(port: int) -> Callable[[], bool]:
    def accepts() -> bool:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True

    return accepts
