"""`kubectl pdcluster` against a real API server; the test plays the kubelet.

Pods' logs need a node: here only what is said where they can't be had.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kubectl_plugin import Plugin
from tests.support.kubernetes import Kubectl, eventually
from tests.support.kubernetes_world import resource
from tests.support.operator_rig import OperatorRig

pytestmark = pytest.mark.cluster


@pytest.fixture
def plugin(kubectl: Kubectl, tmp_path: Path) -> Plugin:
    return Plugin(kubectl.program, kubectl.kubeconfig, tmp_path)


def test_the_status_of_a_cluster_that_serves(
    plugin: Plugin, kubectl: Kubectl, namespace: str, rig: OperatorRig
) -> None:
    rig.apply(decode={"replicas": 3}, kvTransfer={"kvLeaseDurationSeconds": 60})
    rig.wait_ready()
    ended = plugin("status", "qwen", "-n", namespace)
    assert ended.returncode == 0, ended.stderr
    rows = {line.split()[0]: line.split() for line in ended.stdout.splitlines() if line.strip()}
    assert rows["PDCluster"] == ["PDCluster", f"{namespace}/qwen"]
    assert rows["URL"] == ["URL", f"http://qwen.{namespace}.svc"]
    assert "60 s: heartbeat 10 s, extension 40 s, hand-off within 34 s" in ended.stdout
    assert rows["prefill"][1] == "2/2"
    assert rows["decode"][1] == "3/3"
    assert rows["proxy"][1] == "2/2"
    assert rows["ConfigValid"][1:3] == ["True", "Valid"]
    live = kubectl.get("pdc", "qwen", "-n", namespace)
    assert rows["decode"][-1] == live["status"]["revision"]["current"]

    told = json.loads(plugin("status", "qwen", "-n", namespace, "-o", "json").stdout)
    assert told["ready"] == "True"
    assert told["conditions"] == [
        {
            "type": each["type"],
            "status": each["status"],
            "reason": each["reason"],
            "message": each["message"],
            "since": each["lastTransitionTime"],
        }
        for each in live["status"]["conditions"]
    ]
    assert any(each["object"] == "PDCluster/qwen" for each in told["events"])


def test_the_status_of_one_that_does_not_serve_exits_with_1_and_says_why(
    plugin: Plugin, kubectl: Kubectl, namespace: str, rig: OperatorRig
) -> None:
    rig.apply(prefill={"nodes": 2})
    eventually(
        "an Event",
        lambda: "NotYetSupported" in plugin("status", "qwen", "-n", namespace).stdout,
    )
    ended = plugin("status", "qwen", "-n", namespace)
    assert ended.returncode == 1
    assert re.search(r"^Ready +False \(NotYetSupported\)$", ended.stdout, re.MULTILINE)
    assert "spec.prefill.nodes" in ended.stdout
    assert "Warning" in ended.stdout


def test_pods_that_may_not_be_made_are_told_as_a_condition_and_with_the_latest_event(
    plugin: Plugin, kubectl: Kubectl, namespace: str, rig: OperatorRig
) -> None:
    kubectl("create", "quota", "none", "--hard=pods=0", "-n", namespace)
    rig.apply()

    def told() -> str:
        text = plugin("status", "qwen", "-n", namespace).stdout
        return text if "FailedCreate" in text and "PodsRejected" in text else ""

    text = eventually("a condition and an Event", told)
    assert re.search(r"^Ready +False \(PodsRejected\)$", text, re.MULTILINE)
    assert "Raise that quota" in text
    assert re.search(r"Warning +ReplicaSet/qwen-\S+ +FailedCreate .*exceeded quota", text)


def test_one_that_no_operator_has_looked_at_says_so(
    plugin: Plugin, kubectl: Kubectl, namespace: str
) -> None:
    document = resource()
    document["metadata"] = {"name": "qwen"}
    kubectl.apply(document, namespace=namespace)
    ended = plugin("status", "qwen", "-n", namespace)
    assert ended.returncode == 1
    assert re.search(r"^Ready +Unknown \(WaitingForOperator\)$", ended.stdout, re.MULTILINE)
    assert "No operator has looked at it yet" in ended.stdout
    ended = plugin("logs", "qwen", "-n", namespace, "--role", "decode")
    assert ended.returncode == 1
    assert "PDCluster qwen (decode) has no pods" in ended.stderr


def failed(ended: subprocess.CompletedProcess[str], code: int) -> str:
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == ""
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("Error: ")]
    assert "Traceback" not in ended.stderr
    return line


def test_one_that_is_not_there_says_where_one_is(
    plugin: Plugin, kubectl: Kubectl, namespace: str
) -> None:
    document = resource()
    document["metadata"] = {"name": "lost-and-found"}
    kubectl.apply(document, namespace=namespace)
    for verb in ("status", "logs"):
        said = failed(plugin(verb, "lost-and-found", "-n", "default"), 2)
        assert (
            f"namespace default has no PDCluster lost-and-found; there is one in {namespace}"
            in (said)
        )
        said = failed(plugin(verb, "no-such-cluster", "-n", namespace), 2)
        assert "it has lost-and-found" in said
        said = failed(plugin(verb, "lost-and-found", "-n", "no-such-namespace"), 2)
        assert "there is no such namespace" in said


def as_user(kubectl: Kubectl, folder: Path, namespace: str, rules: list[dict[str, Any]]) -> Path:
    """A kubeconfig of somebody who may do so much and no more."""
    kubectl("create", "serviceaccount", "someone", "-n", namespace)
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "someone", "namespace": namespace},
        "rules": rules,
    }
    kubectl.apply(role, namespace=namespace)
    words = ("--role=someone", f"--serviceaccount={namespace}:someone", "-n", namespace)
    kubectl("create", "rolebinding", "someone", *words)
    token = kubectl("create", "token", "someone", "-n", namespace).strip()
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    path = folder / "someone"
    path.write_text(yaml.safe_dump(config))
    return path


def test_who_may_read_only_the_resource_sees_what_it_says(
    plugin: Plugin, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    document = resource()
    document["metadata"] = {"name": "qwen"}
    kubectl.apply(document, namespace=namespace)
    rules = [{"apiGroups": ["pdcluster.io"], "resources": ["pdclusters"], "verbs": ["get"]}]
    theirs = Plugin(plugin.kubectl, as_user(kubectl, tmp_path, namespace, rules), tmp_path)
    ended = theirs("status", "qwen", "-n", namespace)
    assert ended.returncode == 1
    assert "Note: Pods could not be read: pods is forbidden" in ended.stdout
    assert "Note: Events could not be read: events is forbidden" in ended.stdout
    said = failed(theirs("logs", "qwen", "-n", namespace), 3)
    assert 'cannot list resource "pods"' in said
    said = failed(theirs("status", "qwen", "-n", "default"), 3)
    assert 'cannot get resource "pdclusters"' in said
    said = failed(theirs("status", "other", "-n", namespace), 2)
    assert "check its name and -n" in said


def test_a_token_that_nobody_knows_is_told(
    plugin: Plugin, kubectl: Kubectl, tmp_path: Path
) -> None:
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    config["users"] = [
        {"name": each["name"], "user": {"token": "invented"}} for each in config["users"]
    ]
    path = tmp_path / "nobody"
    path.write_text(yaml.safe_dump(config))
    said = failed(Plugin(plugin.kubectl, path, tmp_path)("status", "qwen"), 3)
    assert "does not accept your credentials" in said


def test_a_server_that_does_not_know_pdclusters_is_told(plugin: Plugin, kubectl: Kubectl) -> None:
    def serve(*, is_served: bool) -> None:
        # As good as not there, and no object of another test is lost.
        change = [{"op": "replace", "path": "/spec/versions/0/served", "value": is_served}]
        words = ("patch", "crd", "pdclusters.pdcluster.io", "--type=json")
        kubectl(*words, "-p", json.dumps(change))

    serve(is_served=False)
    try:
        eventually("not served", lambda: plugin("status", "qwen").returncode == 3)
        for verb in ("status", "logs"):
            said = failed(plugin(verb, "qwen"), 3)
            assert "does not know PDClusters (pdcluster.io/v1alpha1); install the chart" in said
    finally:
        serve(is_served=True)
        eventually("served again", lambda: kubectl("get", "pdc", "-A"))


def test_logs_that_no_node_can_give_are_told_pod_by_pod(
    plugin: Plugin, kubectl: Kubectl, namespace: str, rig: OperatorRig
) -> None:
    rig.apply()
    rig.wait_ready()
    ended = plugin("logs", "qwen", "-n", namespace, "--role", "decode", "--tail", "3")
    assert ended.returncode == 1
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("[qwen-decode-") for line in lines)
    assert all("its log can't be read: " in line for line in lines)
    ended = plugin("logs", "qwen", "-n", namespace)
    assert len(ended.stderr.splitlines()) == 6, "every pod is tried"


def test_following_waits_and_ends_with_an_interrupt_or_the_cluster(
    plugin: Plugin, kubectl: Kubectl, namespace: str
) -> None:
    document = resource()
    document["metadata"] = {"name": "qwen"}
    kubectl.apply(document, namespace=namespace)
    interrupted = plugin.start("logs", "qwen", "-n", namespace, "-f")
    left = plugin.start("logs", "qwen", "-n", namespace, "-f", "--role", "proxy")
    for process in (interrupted, left):
        assert process.stderr is not None
        assert "has no pods; waiting for them" in process.stderr.readline()
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.communicate(timeout=20) == ("", "")
    assert interrupted.returncode == 130
    began = time.monotonic()
    kubectl("delete", "pdc", "qwen", "-n", namespace)
    _, said = left.communicate(timeout=30)
    assert left.returncode == 0
    assert "PDCluster qwen is gone" in said
    assert time.monotonic() - began < 20
