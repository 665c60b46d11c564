"""The images as pods: a random user, a root that can't be written, Pod Security ``restricted``."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tools.image.recipe import image_name

from pdcluster_api.loading import load_cluster
from pdcluster_api.proxy_config import EndpointsFile, Role
from pdcluster_operator.program.engine import endpoint_of, engine_program
from pdcluster_operator.program.programs import EngineProgram, Placement, ProxyPlacement
from pdcluster_operator.program.proxy import PROXY_COMMAND, proxy_program
from tests.support.kubernetes import Kubectl, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
IMAGE, SIM_IMAGE = image_name("pdcluster"), image_name("pdcluster-sim")
RESOURCE = """\
apiVersion: pdcluster.io/v1alpha1
kind: PDCluster
metadata: {name: image}
spec:
  model: {name: tiny}
  engine: {image: none}
  prefill: {replicas: 1}
  decode: {replicas: 1}
"""
QUESTION = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Which way to the lease? " * 30}],
    "max_tokens": 8,
    "temperature": 0,
}


def pod(
    name: str,
    image: str,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    account: str = "",
    files: str = "",
) -> dict[str, Any]:
    """A pod as a strict platform would have it: it picks a user of its own."""
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    if files:
        volumes.append({"name": "files", "configMap": {"name": files}})
        mounts.append({"name": "files", "mountPath": "/etc/pdcluster"})
    own_address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    given = [{"name": key, "value": value} for key, value in (env or {}).items()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": bool(account),
            "serviceAccountName": account or "default",
            "securityContext": {
                "runAsUser": 1_000_000_000 + secrets.randbelow(60_000),
                "runAsGroup": 0,
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumes": volumes,
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": list(command),
                    "env": [own_address, *given],
                    "volumeMounts": mounts,
                    "securityContext": {
                        "readOnlyRootFilesystem": True,
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    name = f"image-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    eventually("default account", lambda: kubectl.find("-n", name, "serviceaccount", "default"))
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def run(kubectl: Kubectl, namespace: str, image: str, command: Sequence[str]) -> str:
    """Run a command to its end; give its output."""
    kubectl.apply(pod("once", image, command), namespace=namespace)

    def end() -> Any:
        phase = kubectl.get("-n", namespace, "pod", "once")["status"].get("phase")
        return phase if phase in {"Succeeded", "Failed"} else None

    phase = eventually("end of the pod", end)
    said = kubectl("-n", namespace, "logs", "once")
    kubectl("-n", namespace, "delete", "pod", "once", "--force", "--grace-period=0")
    assert phase == "Succeeded", said
    return said


def address(kubectl: Kubectl, namespace: str, name: str) -> str:
    def found() -> Any:
        return kubectl.get("-n", namespace, "pod", name)["status"].get("podIP")

    return str(eventually(f"address of {name}", found))


def answers(kubectl: Kubectl, namespace: str, name: str, port: int, path: str) -> httpx.Response:
    """Ask a pod until it says 200; a pod that ended tells why."""
    host = address(kubectl, namespace, name)

    def ask() -> Any:
        status = kubectl.get("-n", namespace, "pod", name)["status"]
        if status["phase"] in {"Succeeded", "Failed"}:
            pytest.fail(kubectl("-n", namespace, "logs", name))
        try:
            with httpx.Client(trust_env=False, timeout=5) as client:
                reply = client.get(f"http://{host}:{port}{path}")
        except httpx.HTTPError:
            return None
        return reply if reply.status_code == httpx.codes.OK else None

    reply: httpx.Response = eventually(f"{name}{path}", ask)
    return reply


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("pdcluster", "version"), "0."),
        (("kubectl-pdcluster", "--help"), "pdcluster"),
        (("pdcluster-proxy", "--help"), "--config"),
        (("python", "-m", "pdcluster_operator", "--help"), "--run-as-user"),
        (
            ("python", "-c", "import getpass, os; print(getpass.getuser(), os.getuid())"),
            "pdcluster 1",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_every_program_starts(
    kubectl: Kubectl, namespace: str, command: Sequence[str], said: str
) -> None:
    assert said in run(kubectl, namespace, IMAGE, command)


def test_nothing_can_be_written_but_the_scratch_folder(kubectl: Kubectl, namespace: str) -> None:
    code = """
import pathlib
for folder in ("/", "/opt/pdcluster/lib", "/var/tmp", "/etc"):
    try:
        pathlib.Path(folder, "x").write_text("x")
    except OSError:
        continue
    raise SystemExit(folder)
pathlib.Path("x").write_text("in the working folder")
print(pathlib.Path("/tmp/x").read_text(), pathlib.Path.home())
"""
    said = run(kubectl, namespace, IMAGE, ("python", "-c", code))
    assert said.strip() == "in the working folder /tmp"


def test_the_operator_takes_its_lease_and_serves_probes(kubectl: Kubectl, namespace: str) -> None:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        kubectl("apply", "--server-side", "-f", str(path))
    kubectl("-n", namespace, "create", "serviceaccount", "operator")
    grant = ("--clusterrole=cluster-admin", f"--serviceaccount={namespace}:operator")
    kubectl("create", "clusterrolebinding", namespace, *grant)
    words = ("python", "-m", "pdcluster_operator", "--image", IMAGE, "--name", "image-test")
    own = ("--own-namespace", namespace, "--namespace", namespace)
    try:
        kubectl.apply(
            pod("operator", IMAGE, (*words, *own), account="operator"), namespace=namespace
        )
        assert answers(kubectl, namespace, "operator", 8081, "/readyz").json() == {"ok": True}
        eventually("Lease", lambda: kubectl.find("-n", namespace, "lease", "image-test"))
        eventually(
            "leader",
            lambda: (
                "pdcluster_operator_leads 1"
                in answers(kubectl, namespace, "operator", 8081, "/metrics").text
            ),
        )
    finally:
        kubectl("delete", "clusterrolebinding", namespace)


def engine_pod(name: str, program: EngineProgram) -> dict[str, Any]:
    env = {key: value for key, value in program.env if isinstance(value, str)}
    return pod(name, SIM_IMAGE, program.argv, env=env)


def test_an_answer_goes_through_prefill_decode_and_the_proxy(
    kubectl: Kubectl, namespace: str
) -> None:
    cluster = load_cluster(RESOURCE, source="test").cluster

    def engine(role: Role, host: str) -> EngineProgram:
        place = Placement(
            host=host, command=("vllm", "serve"), scratch_dir="/tmp/s", models_dir="/tmp/m"
        )
        return engine_program(cluster, role, place)

    endpoints = []
    for role in Role:
        # Its own address is known to the pod only once it runs; $(POD_IP) is filled in there.
        kubectl.apply(engine_pod(role.value, engine(role, "$(POD_IP)")), namespace=namespace)
    for role in Role:
        answers(kubectl, namespace, role.value, cluster.spec.engine.port, "/health")
        host = address(kubectl, namespace, role.value)
        endpoints.append(endpoint_of(engine(role, host)))
    program = proxy_program(
        cluster,
        ProxyPlacement(
            host="0.0.0.0",
            port=8080,
            admin_host="0.0.0.0",
            admin_port=9090,
            command=PROXY_COMMAND,
            config_file="/etc/pdcluster/proxy.json",
            endpoints_file="/etc/pdcluster/endpoints.json",
            drain_s=0,
        ),
    )
    files = {
        "proxy.json": program.config.model_dump_json(by_alias=True, exclude_none=True),
        "endpoints.json": EndpointsFile(endpoints=tuple(endpoints)).model_dump_json(by_alias=True),
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "proxy"}, "data": files}
    kubectl.apply(config, pod("proxy", IMAGE, program.argv, files="proxy"), namespace=namespace)
    answers(kubectl, namespace, "proxy", 9090, "/readyz")
    host = address(kubectl, namespace, "proxy")
    with httpx.Client(trust_env=False, timeout=30) as client:
        reply = client.post(f"http://{host}:8080/v1/chat/completions", json=QUESTION)
        assert reply.status_code == httpx.codes.OK, reply.text
        assert reply.json()["usage"]["completion_tokens"] == QUESTION["max_tokens"]
        decode = address(kubectl, namespace, "decode")
        metrics = client.get(f"http://{decode}:{cluster.spec.engine.port}/metrics").text
    moved = [
        float(line.rsplit(" ", 1)[1])
        for line in metrics.splitlines()
        if line.startswith("vllm:nixl_bytes_transferred_sum")
    ]
    assert sum(moved) > 0, "the decode engine read the prompt's blocks over NIXL"
    assert json.loads(reply.text)["object"] == "chat.completion"
