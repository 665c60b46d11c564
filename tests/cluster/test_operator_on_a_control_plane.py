"""The operator against a real API server and its controllers; the test plays the kubelet."""

from __future__ import annotations

import json
import time
import urllib.request

import pytest
from tools.kubernetes.cluster.layout import Layout

from tests.support.kubernetes import eventually
from tests.support.operator_rig import OperatorRig

pytestmark = pytest.mark.cluster


def test_a_cluster_becomes_ready_is_restored_scaled_rolled_and_collected(rig: OperatorRig) -> None:
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


def test_nothing_is_written_when_steady(rig: OperatorRig, control_plane: Layout) -> None:
    rig.apply()
    rig.wait_ready()
    time.sleep(3.0)
    start = control_plane.audit_log.stat().st_size
    time.sleep(60.0)
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


def test_what_is_wrong_becomes_a_condition_and_an_event(rig: OperatorRig) -> None:
    rig.apply(prefill={"nodes": 2})
    rig.wait("a condition", lambda: rig.condition("ConfigValid") == ("False", "NotYetSupported"))
    events = rig.get("events")["items"]
    assert any(event["reason"] == "NotYetSupported" for event in events)
    assert rig.kinds() == []


def test_a_pod_template_that_kubernetes_does_not_know_is_told(rig: OperatorRig) -> None:
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


def test_a_strangers_service_is_not_adopted(rig: OperatorRig) -> None:
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


def test_an_operator_that_was_killed_goes_on_where_it_was(rig: OperatorRig) -> None:
    for number in range(6):
        rig.apply(kvTransfer={"kvLeaseDurationSeconds": 40 + number})
        time.sleep(0.15 * number)
        rig.kill()
        rig.play_kubelet()
        rig.start()
    rig.wait_ready()
    deployments = [name for name in rig.kinds() if name.startswith("Deployment/")]
    assert len(deployments) == 3


def test_a_second_operator_keeps_its_hands_off(rig: OperatorRig) -> None:
    rig.apply()
    rig.wait_ready()
    before = rig.kinds()
    assert rig.stop() == 0
    rig.start(name="another")
    rig.wait("a condition", lambda: rig.condition("ConfigValid") == ("False", "ManagedByAnother"))
    assert rig.kinds() == before


def test_probes_and_metrics_answer(rig: OperatorRig) -> None:
    rig.apply()
    rig.wait_ready()
    with urllib.request.urlopen(f"http://127.0.0.1:{rig.port}/healthz", timeout=5) as answer:
        assert json.load(answer) == {"ok": True}
    with urllib.request.urlopen(f"http://127.0.0.1:{rig.port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    assert "pdcluster_operator_clusters 1.0" in text
