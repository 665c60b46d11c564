"""What a real API server will not have: told with its words, and healed without an edit."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tools.kubernetes.cluster.layout import Layout

from tests.support.kubernetes import Kubectl, KubectlError, eventually
from tests.support.operator_rig import OperatorRig

pytestmark = pytest.mark.cluster

STEADY_S = 10.0


def message(rig: OperatorRig, kind: str) -> str:
    (found,) = (
        each["message"]
        for each in rig.get("pdc", "qwen")["status"]["conditions"]
        if each["type"] == kind
    )
    assert isinstance(found, str)
    return found


def warnings(rig: OperatorRig) -> set[str]:
    """Reasons of the operator's own warnings."""
    events = rig.get("events", "--field-selector", "involvedObject.kind=PDCluster")["items"]
    return {each["reason"] for each in events if each["type"] == "Warning"}


def set_quota(rig: OperatorRig, **hard: str) -> None:
    """Set a quota, and wait until it counts."""
    document = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": hard},
    }
    rig.kubectl.apply(document, namespace=rig.namespace)
    eventually("the quota counts", lambda: rig.get("quota", "small")["status"].get("hard") == hard)


def label_namespace(rig: OperatorRig, level: str) -> None:
    words = ("label", "namespace", rig.namespace, "--overwrite")
    rig.kubectl(*words, f"pod-security.kubernetes.io/enforce={level}")


def test_a_quota_on_pods_is_told_and_all_comes_once_it_is_raised(rig: OperatorRig) -> None:
    set_quota(rig, pods="0")
    rig.apply()
    for kind in ("PrefillReady", "DecodeReady", "ProxyReady", "Ready"):
        rig.wait(kind, lambda kind=kind: rig.condition(kind) == ("False", "PodsRejected"))
    told = message(rig, "DecodeReady")
    assert "Pods can't be made: exceeded quota: small, requested: pods=1" in told
    assert "Raise that quota" in told
    assert "PodsRejected" in warnings(rig)
    assert rig.condition("ConfigValid") == ("True", "Valid")
    assert rig.get("pods")["items"] == []
    set_quota(rig, pods="20")
    # What the page on troubleshooting says against Kubernetes' own patience.
    words = ("annotate", "replicaset", "-l", "pdcluster.io/cluster=qwen", "-n", rig.namespace)
    rig.kubectl(*words, "--overwrite", "example.com/again=1")
    rig.wait_ready()


def test_pods_that_admission_rejects_are_told_role_by_role(rig: OperatorRig) -> None:
    urgent = f"urgent-{secrets.token_hex(4)}"
    label_namespace(rig, "restricted")
    rig.apply(
        prefill={"podTemplate": {"spec": {"hostNetwork": True}}},
        decode={"podTemplate": {"spec": {"priorityClassName": urgent}}},
    )
    for kind in ("PrefillReady", "DecodeReady"):
        rig.wait(kind, lambda kind=kind: rig.condition(kind) == ("False", "PodsRejected"))
    told = message(rig, "PrefillReady")
    assert 'violates PodSecurity "restricted:latest": host namespaces' in told
    assert "pod-security.kubernetes.io/enforce" in told
    told = message(rig, "DecodeReady")
    assert f"no PriorityClass with name {urgent} was found" in told
    assert "priorityClassName in podTemplate" in told
    label_namespace(rig, "privileged")
    rig.kubectl("create", "priorityclass", urgent, "--value=1")
    try:
        rig.wait_ready()
    finally:
        rig.kubectl("delete", "priorityclass", urgent)


def test_an_object_over_quota_is_told_and_all_else_goes_on(
    rig: OperatorRig, control_plane: Layout
) -> None:
    set_quota(rig, services="1")
    rig.apply()
    rig.wait("ConfigValid", lambda: rig.condition("ConfigValid") == ("False", "ApplyForbidden"))
    told = message(rig, "ConfigValid")
    assert told.startswith("Service qwen can't be applied: exceeded quota: small, requested: ")
    assert "Raise that quota" in told
    assert rig.condition("Stalled") == ("True", "ApplyForbidden")
    assert "ApplyForbidden" in warnings(rig)
    for kind in ("PrefillReady", "DecodeReady"):
        rig.wait(kind, lambda kind=kind: rig.condition(kind)[0] == "True")
    assert rig.condition("Ready") == ("False", "ApplyForbidden")

    # The same is tried again, ever more seldom; nothing is written.
    rig.wait("proxies", lambda: rig.condition("ProxyReady")[0] == "True")
    time.sleep(2.0)
    start = control_plane.audit_log.stat().st_size
    time.sleep(STEADY_S)
    with control_plane.audit_log.open() as log:
        log.seek(start)
        lines = [json.loads(line) for line in log if line.endswith("\n")]
    codes = [
        line["responseStatus"]["code"]
        for line in lines
        if line["verb"] in {"create", "update", "patch", "delete"}
        and f"/namespaces/{rig.namespace}/" in line["requestURI"]
        and "pdcluster" in line["userAgent"].lower() + line["requestURI"]
    ]
    assert set(codes) <= {403}
    assert len(codes) <= 4

    set_quota(rig, services="5")
    rig.wait_ready()
    assert rig.condition("Stalled")[0] == "False"


def policy(name: str, namespace: str, reason: str) -> list[dict[str, object]]:
    """A policy that denies new Deployments in one namespace, and its binding."""
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    created = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["deployments"],
    }
    validation = {"expression": "false", "message": "not on a Friday"}
    if reason:
        validation["reason"] = reason
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return [
        {
            **kind,
            "kind": "ValidatingAdmissionPolicy",
            "spec": {
                "matchConstraints": {"resourceRules": [created]},
                "validations": [validation],
            },
        },
        {
            **kind,
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": selector},
            },
        },
    ]


def is_denied(kubectl: Kubectl, namespace: str) -> bool:
    try:
        words = ("create", "deployment", "probe", "--image=x", "--dry-run=server")
        kubectl(*words, "-n", namespace)
    except KubectlError as error:
        return "not on a Friday" in str(error)
    return False


@contextmanager
def denied(kubectl: Kubectl, namespace: str, reason: str) -> Iterator[None]:
    """Deny new Deployments in a namespace."""
    name = f"no-deployments-{secrets.token_hex(4)}"
    kubectl.apply(*policy(name, namespace, reason), namespace=namespace)
    try:
        eventually("the policy counts", lambda: is_denied(kubectl, namespace))
        yield
    finally:
        kubectl("delete", "validatingadmissionpolicybinding", name)
        kubectl("delete", "validatingadmissionpolicy", name)
        eventually("it counts no more", lambda: not is_denied(kubectl, namespace))


@pytest.mark.parametrize(
    ("reason", "expected"), [("Forbidden", "ApplyForbidden"), ("", "ApplyRejected")]
)
def test_a_policy_that_denies_our_objects_is_told_with_its_words(
    rig: OperatorRig, kubectl: Kubectl, reason: str, expected: str
) -> None:
    with denied(kubectl, rig.namespace, reason):
        rig.apply()
        rig.wait("ConfigValid", lambda: rig.condition("ConfigValid") == ("False", expected))
        told = message(rig, "ConfigValid")
        assert told.startswith("Deployment qwen-")
        assert "can't be applied: ValidatingAdmissionPolicy " in told
        assert "denied request: not on a Friday. Change in the PDCluster what" in told
        assert expected in warnings(rig)
        assert "Service/qwen" in rig.kinds()
    if expected == "ApplyRejected":
        # That is tried again after 5 minutes; a new process knows nothing of it and tries at once.
        rig.kill()
        rig.start()
    rig.wait_ready()


def test_a_namespace_that_is_deleted_alarms_nobody(rig: OperatorRig) -> None:
    rig.apply()
    rig.wait_ready()
    before = len(rig.log)
    rig.kubectl("delete", "namespace", rig.namespace, "--wait=false")
    rig.wait(
        "the namespace is gone",
        lambda: rig.kubectl.find("namespace", rig.namespace) is None,
        within_s=60,
    )
    lines = rig.log[before:].splitlines()
    assert [each for each in lines if "WARNING" in each or "ERROR" in each] == []
    assert "Traceback" not in rig.log
    # The fixture takes it away a second time.
    rig.kubectl("create", "namespace", rig.namespace)


def test_a_webhook_that_does_not_answer_is_told(rig: OperatorRig, kubectl: Kubectl) -> None:
    name = f"away-{secrets.token_hex(4)}.example.com"
    webhook = {
        "name": name,
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["services"],
            }
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": rig.namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }
    kubectl.apply(configuration, namespace=rig.namespace)

    def is_asked() -> bool:
        try:
            words = ("create", "service", "clusterip", "probe", "--tcp=1", "--dry-run=server")
            kubectl(*words, "-n", rig.namespace)
        except KubectlError as error:
            return "failed calling webhook" in str(error)
        return False

    try:
        eventually("the server asks it", is_asked)
        rig.apply()
        forbidden = ("False", "ApplyForbidden")
        rig.wait("ConfigValid", lambda: rig.condition("ConfigValid") == forbidden)
        told = message(rig, "ConfigValid")
        assert f'failed calling webhook "{name}"' in told
        assert "Bring that webhook back" in told
    finally:
        kubectl("delete", "validatingwebhookconfiguration", name)
    rig.wait_ready()
