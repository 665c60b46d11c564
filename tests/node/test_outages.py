"""What goes on while parts of Kubernetes are down: leases and streams don't depend on them."""

from __future__ import annotations

import asyncio
import json
import threading

import httpx
import pytest

from tests.support.kubernetes import KubectlError, eventually
from tests.support.node import Node, answers, ask, fixture_of, stream_many

pytestmark = pytest.mark.cluster

NAME = "simulated"
OUTAGE_S = 60.0
NUM_STREAMS = 500


@pytest.fixture
def applied(installed: Node, namespace: str) -> str:
    """The second example, ready; gives the address of its Service."""
    installed.kubectl.apply(fixture_of("02-simulated"), namespace=namespace)
    wait_ready(installed, namespace)
    found = installed.kubectl.get("service", NAME, "-n", namespace)
    address = str(found["spec"]["clusterIP"])
    eventually("its first answer", lambda: answers(f"http://{address}"), within_s=30)
    return address


def wait_ready(node: Node, namespace: str) -> None:
    words = ("wait", "--for=condition=Ready", f"pdcluster/{NAME}", "--timeout=180s")
    node.kubectl(*words, "-n", namespace, timeout_s=190)


def container_of(node: Node, namespace: str, role: str) -> tuple[str, str]:
    """Name of one engine's pod of a role, and the id of its container."""
    selector = f"pdcluster.io/cluster={NAME},pdcluster.io/role={role}"
    pod = node.kubectl.get("pods", "-n", namespace, "-l", selector)["items"][0]
    [status] = pod["status"]["containerStatuses"]
    return pod["metadata"]["name"], status["containerID"].removeprefix("containerd://")


def is_up(node: Node) -> bool:
    try:
        node.kubectl("get", "--raw", "/readyz", timeout_s=5)
    except (KubectlError, TimeoutError):
        return False
    return True


def test_streams_go_on_while_the_api_server_is_away_and_an_engine_dies(
    installed: Node, namespace: str, applied: str
) -> None:
    _, container = container_of(installed, namespace, "prefill")
    failures: list[str] = []

    def load() -> None:
        run = stream_many(applied, num=NUM_STREAMS, over_s=OUTAGE_S, max_tokens=40)
        failures.extend(asyncio.run(run))

    loading = threading.Thread(target=load, daemon=True)
    installed.cluster.hold("kube-apiserver", is_down=True)
    try:
        eventually("an API server that is away", lambda: not is_up(installed), within_s=20)
        loading.start()
        loading.join(OUTAGE_S / 3)
        kill = ["ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", container]
        assert installed.cluster.exec(kill) == 0
        loading.join(OUTAGE_S * 2 / 3)
        assert not is_up(installed), "it was to be away all the time"
    finally:
        installed.cluster.hold("kube-apiserver", is_down=False)
    loading.join(180.0)
    assert not loading.is_alive()
    assert not failures, (len(failures), failures[:5])
    eventually("the API server", lambda: is_up(installed), within_s=60)
    wait_ready(installed, namespace)
    # The proxies have found their way back, too: what changes now reaches them.
    document = fixture_of("02-simulated", decode={"replicas": 3})
    installed.kubectl.apply(document, namespace=namespace)
    # Kubernetes' own controllers have been seen to need a minute and a half to come back.
    eventually("three decode engines", lambda: num_decodes(installed, namespace) == 3, within_s=300)


def num_decodes(node: Node, namespace: str) -> int:
    """Decode engines that every proxy would choose from."""
    selector = f"pdcluster.io/cluster={NAME},app.kubernetes.io/component=proxy"
    counts = []
    for pod in node.kubectl.get("pods", "-n", namespace, "-l", selector)["items"]:
        url = f"http://{pod['status']['podIP']}:8080/readyz"
        answer = httpx.get(url, timeout=5.0, trust_env=False)
        counts.append(json.loads(answer.text).get("decode", 0))
    return min(counts, default=0)


def test_everything_comes_back_after_the_node_restarted(
    installed: Node, namespace: str, applied: str
) -> None:
    kubectl, cluster = installed.kubectl, installed.cluster
    before = kubectl.get("pods", "-n", namespace)["items"]
    containers = [
        status["containerID"].removeprefix("containerd://")
        for pod in before
        for status in pod["status"]["containerStatuses"]
    ]
    for component in ("kubelet", "kube-proxy"):
        cluster.hold(component, is_down=True)
    for container in containers:
        cluster.exec(["ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", container])
    cluster.hold("containerd", is_down=True)
    with pytest.raises(httpx.HTTPError):
        ask(f"http://{applied}", "Anybody?")
    for component in ("containerd", "kubelet", "kube-proxy"):
        cluster.hold(component, is_down=False)

    def restarted() -> bool:
        pods = kubectl.get("pods", "-n", namespace)["items"]
        return len(pods) == len(before) and all(
            status["ready"] and status["restartCount"] >= 1
            for pod in pods
            for status in pod["status"]["containerStatuses"]
        )

    eventually("every container started again", restarted, within_s=180)
    wait_ready(installed, namespace)
    answer = eventually("an answer", lambda: ask(f"http://{applied}", "Anybody?"), within_s=60)
    assert answer["choices"][0]["text"]
