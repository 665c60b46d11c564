"""A PDCluster on a control plane: an operator acts for it, the test plays the kubelet."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.kubernetes.cluster.layout import Layout

from tests.support.kubernetes import Kubectl, eventually
from tests.support.kubernetes_world import resource

__all__ = ["Operated", "operated"]

_NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "fake"}}
_NODE_STATUS = {
    "capacity": {"cpu": "64", "memory": "256Gi", "pods": "200"},
    "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "200"},
    "conditions": [{"type": "Ready", "status": "True"}],
}
_RUNNING = {
    "phase": "Running",
    "conditions": [
        {"type": kind, "status": "True"}
        for kind in ("Ready", "ContainersReady", "Initialized", "PodScheduled")
    ],
}


class Operated:
    """One namespace with an operator.

    Args:
        kubectl: kubectl as the administrator.
        namespace: The namespace.
    """

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl = kubectl
        self.namespace = namespace

    def apply(self, **spec: object) -> None:
        """Apply the PDCluster qwen."""
        document = resource(**spec)
        document["metadata"] = {"name": "qwen"}
        self.kubectl.apply(document, namespace=self.namespace)

    def wait_ready(self) -> None:
        """Let its pods run until it is Ready."""

        def holds() -> bool:
            self._play_kubelet()
            status = self.kubectl.get("pdc", "qwen", "-n", self.namespace)["status"]
            found = {each["type"]: each["status"] for each in status["conditions"]}
            return found.get("Ready") == "True"

        eventually("Ready", holds, within_s=90)

    def _play_kubelet(self) -> None:
        """Make every pod run and be ready."""
        for number, pod in enumerate(self.kubectl.get("pods", "-n", self.namespace)["items"]):
            if pod["status"].get("phase") == "Running":
                continue
            name, ip = pod["metadata"]["name"], f"10.9.1.{number + 1}"
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
                **_RUNNING,
                "podIP": ip,
                "podIPs": [{"ip": ip}],
                "containerStatuses": [container],
            }
            words = ("patch", "pod", name, "-n", self.namespace, "--subresource=status")
            self.kubectl(*words, "--type=merge", "-p", json.dumps({"status": status}))


@contextmanager
def operated(kubectl: Kubectl, namespace: str, layout: Layout, folder: Path) -> Iterator[Operated]:
    """Run an operator over one namespace.

    Args:
        kubectl: kubectl as the administrator.
        namespace: The namespace.
        layout: The control plane.
        folder: Where the operator's log goes.
    """
    if kubectl.find("node", "fake") is None:
        kubectl("create", "-f", "-", stdin=_NODE)
        body = json.dumps({"status": _NODE_STATUS})
        kubectl("patch", "node", "fake", "--subresource=status", "--type=merge", "-p", body)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--namespace", namespace, "--own-namespace", namespace, "--image=pdcluster:1"]
    words += ["--no-leader-election", "--probe-host=127.0.0.1", f"--probe-port={port}"]
    with (folder / "operator.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pdcluster_operator", *words],
            stdout=log,
            stderr=log,
            env={**os.environ, "KUBECONFIG": str(layout.kubeconfig)},
        )
    try:
        yield Operated(kubectl, namespace)
    finally:
        process.kill()
        process.wait(20)
