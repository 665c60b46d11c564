"""The operator against a real API server and its controllers; the test plays the kubelet."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kubernetes import Kubectl, eventually
from tests.support.kubernetes_world import resource
from tools.kubernetes.cluster.layout import Layout

pytestmark = pytest.mark.cluster

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


class Rig:
    """One namespace, one operator over it, and a kubelet that is the test."""

    def __init__(self, kubectl: Kubectl, namespace: str, layout: Layout, folder: Path) -> None:
        self.kubectl, self.namespace = kubectl, namespace
        self._layout, self._log = layout, folder / "operator.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self, *, name: str = "pdcluster") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        words = [
            "--namespace",
            self.namespace,
            "--own-namespace",
            self.namespace,
            "--name",
            name,
            "--image=pdcluster:1",
            "--no-leader-election",
            "--probe-host=127.0.0.1",
            f"--probe-port={self.port}",
            "--log-format=console",
        ]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pdcluster_operator", *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "KUBECONFIG": str(self._layout.kubeconfig)},
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

    def apply(self, **spec: object) -> None:
        document = resource(**spec)
        document["metadata"] = {"name": "qwen"}
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
                status = {**READY, "podIP": ip, "podIPs": [{"ip": ip}]}
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


@pytest.fixture
def rig(kubectl: Kubectl, namespace: str, control_plane: Layout, tmp_path: Path) -> Iterator[Rig]:
    if kubectl.find("node", "fake") is None:
        kubectl("create", "-f", "-", stdin=NODE)
        body = json.dumps({"status": NODE["status"]})
        kubectl("patch", "node", "fake", "--subresource=status", "--type=merge", "-p", body)
    made = Rig(kubectl, namespace, control_plane, tmp_path)
    made.start()
    yield made
    if made.process is not None:
        made.kill()


def test_a_cluster_becomes_ready_is_restored_scaled_rolled_and_collected(rig: Rig) -> None:
    rig.apply()
    rig.wait_ready()
    whole = rig.kinds()
    assert "Service/qwen" in whole
    assert "PDPool/qwen-decode" in whole
    status = rig.get("pdc", "qwen")["status"]
    assert status["summary"] == "2P2D"
    assert status["url"] == f"http://qwen.{rig.namespace}.svc"

    # What somebody deletes or changes by hand is put right.
    rig.kubectl("delete", "svc", "qwen", "-n", rig.namespace)
    eventually("the Service is back", lambda: rig.kubectl.find("svc", "qwen", "-n", rig.namespace))
    rig.kubectl(
        "patch",
        "role",
        "qwen-proxy",
        "-n",
        rig.namespace,
        "--type=json",
        "-p",
        '[{"op": "replace", "path": "/rules", "value": []}]',
    )
    eventually("the Role has its rules", lambda: rig.get("role", "qwen-proxy").get("rules"))

    # A scaler and the resource.
    rig.kubectl("scale", "pdpool/qwen-decode", "--replicas=3", "-n", rig.namespace)
    rig.wait("3 decode engines", lambda: rig.get("pdc", "qwen")["status"]["summary"] == "2P3D")
    rig.wait_ready()
    assert rig.get("pdp", "qwen-decode")["status"]["replicas"] == 3

    # A changed lease is another revision.
    before = rig.get("pdc", "qwen")["status"]["revision"]["current"]
    rig.apply(kvTransfer={"kvLeaseDurationSeconds": 60})
    rig.wait_ready()
    after = rig.get("pdc", "qwen")["status"]["revision"]
    assert after["current"] == after["updated"] != before
    labels = {
        pod["metadata"]["labels"].get("pdcluster.io/revision")
        for pod in rig.get("pods", "-l", "app.kubernetes.io/component=engine")["items"]
    }
    assert labels == {after["current"]}

    rig.kubectl("delete", "pdc", "qwen", "-n", rig.namespace)
    rig.wait("nothing is left", lambda: not rig.kinds() and not rig.get("pods")["items"])


def test_nothing_is_written_when_steady(rig: Rig, control_plane: Layout) -> None:
    rig.apply()
    rig.wait_ready()
    time.sleep(3.0)
    start = control_plane.audit_log.stat().st_size
    time.sleep(20.0)
    with control_plane.audit_log.open() as log:
        log.seek(start)
        lines = [json.loads(line) for line in log if line.endswith("\n")]
    written = [
        (line["verb"], line["requestURI"])
        for line in lines
        if line["verb"] in {"create", "update", "patch", "delete"}
        and f"/namespaces/{rig.namespace}/" in line["requestURI"]
    ]
    assert written == []


def test_what_is_wrong_becomes_a_condition_and_an_event(rig: Rig) -> None:
    rig.apply(prefill={"nodes": 2})
    rig.wait("a condition", lambda: rig.condition("ConfigValid") == ("False", "NotYetSupported"))
    events = rig.get("events")["items"]
    assert any(event["reason"] == "NotYetSupported" for event in events)
    assert rig.kinds() == []


def test_a_pod_template_that_kubernetes_does_not_know_is_told(rig: Rig) -> None:
    rig.apply(prefill={"podTemplate": {"spec": {"nodeSelectr": {"a": "b"}}}})
    rig.wait("a condition", lambda: rig.condition("ConfigValid")[1] == "PodTemplateInvalid")
    assert rig.condition("Stalled")[0] == "True"
    rig.apply()
    rig.kubectl(
        "patch",
        "pdc",
        "qwen",
        "-n",
        rig.namespace,
        "--type=json",
        "-p",
        '[{"op": "remove", "path": "/spec/prefill"}]',
    )
    rig.wait_ready()


def test_a_strangers_service_is_not_adopted(rig: Rig) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "qwen"},
        "spec": {"ports": [{"port": 1}], "selector": {"app": "theirs"}},
    }
    rig.kubectl.apply(theirs, namespace=rig.namespace)
    rig.apply()
    rig.wait("a condition", lambda: rig.condition("ConfigValid") == ("False", "NameTaken"))
    assert rig.get("svc", "qwen")["spec"]["selector"] == {"app": "theirs"}
    rig.kubectl("delete", "svc", "qwen", "-n", rig.namespace)
    rig.wait_ready()


def test_an_operator_that_was_killed_goes_on_where_it_was(rig: Rig) -> None:
    for number in range(6):
        rig.apply(kvTransfer={"kvLeaseDurationSeconds": 40 + number})
        time.sleep(0.15 * number)
        rig.kill()
        rig.play_kubelet()
        rig.start()
    rig.wait_ready()
    deployments = [name for name in rig.kinds() if name.startswith("Deployment/")]
    assert len(deployments) == 3


def test_a_second_operator_keeps_its_hands_off(rig: Rig) -> None:
    rig.apply()
    rig.wait_ready()
    before = rig.kinds()
    assert rig.stop() == 0
    rig.start(name="another")
    rig.wait("a condition", lambda: rig.condition("ConfigValid") == ("False", "ManagedByAnother"))
    assert rig.kinds() == before


def test_probes_and_metrics_answer(rig: Rig) -> None:
    rig.apply()
    rig.wait_ready()
    with urllib.request.urlopen(f"http://127.0.0.1:{rig.port}/healthz", timeout=5) as answer:
        assert json.load(answer) == {"ok": True}
    with urllib.request.urlopen(f"http://127.0.0.1:{rig.port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    assert "pdcluster_operator_clusters 1.0" in text
