"""From ``kubectl apply`` to nothing left: simulated engines in pods, NIXL between them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import httpx
import pytest

from tests.support.kubernetes import eventually
from tests.support.node import Node, Streams, answers, ask, figure, fixture_of

pytestmark = pytest.mark.cluster

NAME = "simulated"
BLOCK_TOKENS = 16


@pytest.fixture
def applied(installed: Node, namespace: str) -> str:
    """The second example, ready; gives where its clients connect."""
    installed.kubectl.apply(fixture_of("02-simulated"), namespace=namespace)
    wait_ready(installed, namespace)
    url = url_of(installed, namespace)
    eventually("the Service's first answer", lambda: answers(url), within_s=30)
    return url


def wait_ready(node: Node, namespace: str, *, seconds: int = 120) -> None:
    words = ("wait", "--for=condition=Ready", f"pdcluster/{NAME}", f"--timeout={seconds}s")
    node.kubectl(*words, "-n", namespace, timeout_s=seconds + 10)


def url_of(node: Node, namespace: str) -> str:
    service = node.kubectl.get("service", NAME, "-n", namespace)
    return f"http://{service['spec']['clusterIP']}"


def pods_of(node: Node, namespace: str, component: str = "engine") -> list[dict[str, Any]]:
    """Pods that are not on their way out."""
    selector = f"pdcluster.io/cluster={NAME},app.kubernetes.io/component={component}"
    found = node.kubectl.get("pods", "-n", namespace, "-l", selector)["items"]
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def role(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"]["pdcluster.io/role"])


def total(node: Node, namespace: str, wanted_role: str, name: str) -> float:
    return sum(
        figure(node.kubectl, namespace, pod["metadata"]["name"], name)
        for pod in pods_of(node, namespace)
        if role(pod) == wanted_role
    )


def moved(node: Node, namespace: str) -> float:
    return total(node, namespace, "decode", "vllm:nixl_bytes_transferred_sum")


def records(node: Node, namespace: str) -> list[dict[str, Any]]:
    """The exchange log of all proxies."""
    lines: list[dict[str, Any]] = []
    for pod in pods_of(node, namespace, "proxy"):
        text = node.kubectl("logs", pod["metadata"]["name"], "-n", namespace)
        lines += [json.loads(line) for line in text.splitlines() if '"exchange.complete"' in line]
    return lines


def test_an_answer_moves_its_blocks_between_pods(
    installed: Node, namespace: str, applied: str
) -> None:
    before = moved(installed, namespace)
    answer = ask(applied, "Why does a lease end? " * 20)
    assert answer["choices"][0]["text"]
    [record] = eventually("its log line", lambda: records(installed, namespace), within_s=10)
    assert record["num_blocks"] > 0
    assert (record["prefill"], record["decode"]) != ("", "")
    after = eventually(
        "moved bytes", lambda: (m := moved(installed, namespace)) > before and m, within_s=10
    )
    # A block's bytes follow from what P holds: both engines are asked, neither is told.
    per_block = (after - before) / record["num_blocks"]
    assert per_block == int(per_block) > 0
    # Another prompt, of another length, moves its own number of blocks, at the same size each.
    ask(applied, "Another prompt, of another length. " * 40)
    eventually("its log line", lambda: len(records(installed, namespace)) == 2, within_s=10)
    blocks = max(each["num_blocks"] for each in records(installed, namespace))
    assert blocks > record["num_blocks"]
    expected = after + blocks * per_block
    eventually("its bytes", lambda: moved(installed, namespace) == expected, within_s=10)
    # The control: two answers to one prompt are D's alone, and nothing moves.
    ask(applied, "Another prompt, which nobody prefills. " * 40, n=2)
    eventually("its log line", lambda: len(records(installed, namespace)) == 3, within_s=10)
    assert moved(installed, namespace) == expected


def test_a_changed_lease_rolls_both_roles_and_no_stream_breaks(
    installed: Node, namespace: str, applied: str
) -> None:
    old = {pod["metadata"]["uid"] for pod in pods_of(installed, namespace)}
    streams = Streams(applied, num=8)
    streams.start()
    try:
        document = fixture_of("02-simulated", kvTransfer={"kvLeaseDurationSeconds": 60})
        installed.kubectl.apply(document, namespace=namespace)
        eventually(
            "four new engines",
            lambda: (
                len(pods := pods_of(installed, namespace)) == 4
                and not old & {pod["metadata"]["uid"] for pod in pods}
            ),
            within_s=180,
        )
        wait_ready(installed, namespace)
    finally:
        streams.stop()
    assert not streams.failures, streams.failures[:5]
    assert streams.ended > 20
    annotations = [pod["metadata"]["annotations"] for pod in pods_of(installed, namespace)]
    assert {each["pdcluster.io/kv-lease-duration-seconds"] for each in annotations} == {"60"}


def test_pools_scale_by_kubectl(installed: Node, namespace: str, applied: str) -> None:
    kubectl = installed.kubectl
    kubectl("scale", f"pdpool/{NAME}-decode", "--replicas=3", "-n", namespace)
    eventually(
        "three decode engines",
        lambda: sum(role(pod) == "decode" for pod in pods_of(installed, namespace)) == 3,
    )
    eventually(
        "2P3D in the status",
        lambda: kubectl.get("pdc", NAME, "-n", namespace)["status"]["summary"] == "2P3D",
        within_s=90,
    )
    wait_ready(installed, namespace)
    assert kubectl.get("pdpool", f"{NAME}-decode", "-n", namespace)["status"]["replicas"] == 3
    assert ask(applied, "Still there?")["choices"]


def test_the_policy_keeps_strangers_from_engines_and_lets_clients_in(
    installed: Node, namespace: str, applied: str
) -> None:
    [engine, *_] = pods_of(installed, namespace)
    address = engine["status"]["podIP"]
    # The host is a stranger to a policy like any other.
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{address}:8000/health", timeout=5.0, trust_env=False)
    for port in (8000, 5600):
        script = f"nc -w 3 {address} {port} </dev/null"
        assert stranger(installed, namespace, script) != 0
    host = applied.removeprefix("http://")
    assert stranger(installed, namespace, f"timeout 3 wget -q -O- http://{host}/v1/models") == 0


def stranger(node: Node, namespace: str, script: str) -> int:
    """Run a line in a pod that belongs to nobody's cluster; gives its exit code."""
    kubectl = node.kubectl
    if kubectl.find("pod", "stranger", "-n", namespace) is None:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "stranger"},
            "spec": {
                "containers": [
                    {
                        "name": "shell",
                        "image": "docker.io/local/busybox:1",
                        "imagePullPolicy": "Never",
                    }
                ]
            },
        }
        kubectl.apply(pod, namespace=namespace)
        kubectl("wait", "--for=condition=Ready", "pod/stranger", "-n", namespace)
    words = ("exec", "stranger", "-n", namespace, "--", "sh", "-c", script)
    environ = {"KUBECONFIG": str(kubectl.kubeconfig), "HOME": "/tmp"}
    program = str(kubectl.program)
    return subprocess.run([program, *words], env=environ, check=False, timeout=60).returncode


def test_a_deleted_resource_leaves_nothing(installed: Node, namespace: str, applied: str) -> None:
    kubectl = installed.kubectl
    assert ask(applied, "Before the end.")["choices"]
    kubectl("delete", "pdcluster", NAME, "-n", namespace, "--wait=true", timeout_s=120)
    kinds = (
        "deployments,replicasets,pods,services,configmaps,serviceaccounts,roles,rolebindings,"
        "poddisruptionbudgets,networkpolicies,pdclusters,pdpools"
    )

    def left() -> list[str]:
        items = kubectl.get(kinds, "-n", namespace)["items"]
        names = [f"{item['kind']}/{item['metadata']['name']}" for item in items]
        own = {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}
        return [name for name in names if name not in own]

    eventually("an empty namespace", lambda: not left() or None, within_s=120)
    assert left() == []


def test_what_is_deleted_while_it_starts_does_not_stay_for_its_grace(
    installed: Node, namespace: str
) -> None:
    """A TERM that comes before a program has its handler must not be lost; this never has one."""
    kubectl = installed.kubectl
    command = ["sh", "-c", "sleep 600"]
    kubectl.apply(fixture_of("02-simulated", engine={"command": command}), namespace=namespace)
    selector = ("-n", namespace, "-l", "app.kubernetes.io/component=engine")

    def running() -> list[Any]:
        pods = kubectl.get("pods", *selector)["items"]
        statuses = [each for pod in pods for each in pod["status"].get("containerStatuses", ())]
        return pods if statuses and all("running" in each["state"] for each in statuses) else []

    pods = eventually("engines that start", running)
    assert pods[0]["spec"]["terminationGracePeriodSeconds"] > 120
    kubectl("delete", "pdcluster", "--all", "-n", namespace)
    eventually("no pod is left", lambda: not kubectl.get("pods", "-n", namespace)["items"])
