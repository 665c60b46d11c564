"""The operator as a process against a real API server; the test plays the kubelet."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.kubernetes.cluster.layout import Layout

from tests.support.kubernetes import Kubectl, eventually
from tests.support.kubernetes_world import resource

__all__ = ["NODE", "READY", "OperatorRig"]

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "fake"},
    "status": {
        "capacity": {"cpu": "64", "memory": "256Gi", "pods": "200"},
        "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "200"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
READY = {
    "phase": "Running",
    "conditions": [
        {"type": kind, "status": "True"}
        for kind in ("Ready", "ContainersReady", "Initialized", "PodScheduled")
    ],
}


class OperatorRig:
    """One namespace, one operator over it, and a kubelet that is the test."""

    def __init__(self, kubectl: Kubectl, namespace: str, layout: Layout, folder: Path) -> None:
        self.kubectl, self.namespace = kubectl, namespace
        self._layout, self._log = layout, folder / "operator.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(
        self, *words: str, name: str = "pdcluster", leads: bool = False, kubeconfig: str = ""
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        flags = [
            *("--namespace", self.namespace, "--own-namespace", self.namespace, "--name", name),
            "--image=pdcluster:1",
            "--probe-host=127.0.0.1",
            f"--probe-port={self.port}",
            "--log-format=console",
            *([] if leads else ["--no-leader-election"]),
            *words,
        ]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pdcluster_operator", *flags],
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "KUBECONFIG": kubeconfig or str(self._layout.kubeconfig),
                    # A killed one leaves the files that the client library makes of its keys.
                    "TMPDIR": str(self._log.parent),
                },
            )

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(20)
        self.process = None
        return code

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(20)
        self.process = None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def apply(self, *, cluster: str = "qwen", **spec: object) -> None:
        document = resource(**spec)
        document["metadata"] = {"name": cluster}
        self.kubectl.apply(document, namespace=self.namespace)

    def get(self, *words: str) -> Any:
        return self.kubectl.get(*words, "-n", self.namespace)

    def play_kubelet(self) -> None:
        """Make every pod run and be ready, and let those go that are to go."""
        for number, pod in enumerate(self.get("pods")["items"]):
            name = pod["metadata"]["name"]
            if pod["metadata"].get("deletionTimestamp"):
                words = ("delete", "pod", name, "-n", self.namespace, "--force", "--grace-period=0")
                self.kubectl(*words, "--wait=false")
            elif pod["status"].get("phase") != "Running":
                ip = f"10.9.{number // 250}.{number % 250 + 1}"
                container = {
                    "name": pod["spec"]["containers"][0]["name"],
                    "containerID": f"containerd://{name}",
                    "image": "engine:1",
                    "imageID": "",
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": "2026-11-29T12:00:00Z"}},
                }
                status = {
                    **READY,
                    "podIP": ip,
                    "podIPs": [{"ip": ip}],
                    "containerStatuses": [container],
                }
                words = ("patch", "pod", name, "-n", self.namespace, "--subresource=status")
                self.kubectl(*words, "--type=merge", "-p", json.dumps({"status": status}))

    def condition(self, kind: str) -> tuple[str, str]:
        status = self.get("pdc", "qwen")["status"]
        found = {each["type"]: each for each in status["conditions"]}
        if kind not in found:
            return "", ""  # Nobody has looked at it yet.
        return found[kind]["status"], found[kind]["reason"]

    def wait(self, what: str, holds: Callable[[], Any], *, within_s: float = 90.0) -> Any:
        def look() -> Any:
            self.play_kubelet()
            return holds()

        return eventually(what, look, within_s=within_s)

    def wait_ready(self) -> None:
        def holds() -> bool:
            found = self.get("pdc", "qwen")
            is_current = (
                found["status"].get("observedGeneration") == found["metadata"]["generation"]
            )
            return is_current and self.condition("Ready") == ("True", "Serving")

        self.wait("Ready", holds)

    def kinds(self) -> list[str]:
        kinds = "deploy,svc,cm,sa,role,rolebinding,pdb,netpol,pdp,controllerrevision"
        found = self.get(kinds, "-l", "pdcluster.io/cluster=qwen")["items"]
        return sorted(f"{each['kind']}/{each['metadata']['name']}" for each in found)
