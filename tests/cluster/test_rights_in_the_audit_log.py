"""What the chart grants is what its programs use: told by the API server's audit log.

The operator runs as a process, with the flags of the chart's Deployment and a token of the chart's
account; so does the chart's test. The test plays the kubelet.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tools.kubernetes.cluster.layout import Layout

from pdcluster_operator import rights
from tests.support.chart import kubeconfig_of, render
from tests.support.kubernetes import Kubectl, KubectlError, eventually
from tests.support.node import CHART, Helm
from tests.support.operator_rig import NODE, OperatorRig
from tests.support.real_kubernetes import started_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SYSTEM = "pdcluster-system"
SLOW_S = 180.0
"""Whatever else the machine has to do."""


@pytest.fixture(scope="module")
def plane(programs: Path) -> Iterator[Layout]:
    """A control plane, a node that nobody runs, and the chart."""
    with started_cluster(programs, "pdcluster-tests-rights", is_full=False) as cluster:
        layout = cluster.layout
        yield layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One line of the audit log.

    Attributes:
        grant: What it needed.
        created: Whether it made the object, which asks for `create` too.
        code: The answer.
        path: For people.
    """

    grant: rights.Grant
    created: bool
    code: int
    path: str


def requests_of(layout: Layout, user: str, since: int) -> list[Request]:
    """Requests for resources that a user has made."""
    found = []
    with layout.audit_log.open() as log:
        log.seek(since)
        for line in log:
            if not line.endswith("\n"):
                continue
            event = json.loads(line)
            reference = event.get("objectRef")
            if event["user"]["username"] != user or reference is None:
                continue
            resource = reference["resource"]
            if reference.get("subresource"):
                resource += f"/{reference['subresource']}"
            code = event.get("responseStatus", {}).get("code", 0)
            found.append(
                Request(
                    grant=(reference.get("apiGroup", ""), resource, event["verb"]),
                    created=event["verb"] == "patch" and code == 201,
                    code=code,
                    path=f"{event['verb']} {event['requestURI']} -> {code}",
                )
            )
    return found


def used(requests: list[Request]) -> set[rights.Grant]:
    grants = {each.grant for each in requests}
    return grants | {(*each.grant[:2], "create") for each in requests if each.created}


class ChartedRig(OperatorRig):
    """The operator with the flags of the chart's Deployment and the rights of its account."""

    def __init__(
        self,
        kubectl: Kubectl,
        namespace: str,
        layout: Layout,
        folder: Path,
        *,
        release_in: str,
        watched: tuple[str, ...],
    ) -> None:
        super().__init__(kubectl, namespace, layout, folder)
        self.release_in = release_in
        self.watched = watched
        self.role = "role" if watched else "clusterrole"
        self.user = f"system:serviceaccount:{release_in}:pdcluster"
        token = kubectl("create", "token", "pdcluster", "-n", release_in).strip()
        self._config = kubeconfig_of(layout, folder, token)
        self.since = layout.audit_log.stat().st_size

    def start_as_charted(self) -> None:
        found = self.kubectl.get("deployment", "pdcluster", "-n", self.release_in)
        (container,) = found["spec"]["template"]["spec"]["containers"]
        words = [*container["args"], "--probe-host=127.0.0.1", "--probe-port=0"]
        env = {
            "KUBECONFIG": str(self._config),
            "POD_NAMESPACE": self.release_in,
            "POD_NAME": "pdcluster-1",
            "HOME": str(self._config.parent),
        }
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *container["command"][1:], *words],
                stdout=log,
                stderr=log,
                env=env,
            )

    def requests(self) -> list[Request]:
        return requests_of(self._layout, self.user, self.since)

    def merge(self, spec: object) -> None:
        words = ("patch", "pdc", "qwen", "-n", self.namespace, "--type=merge")
        self.kubectl(*words, "-p", json.dumps({"spec": spec}))


def hang(rig: ChartedRig, pod: Mapping[str, Any], reason: str) -> None:
    """Have a kubelet that can't get a pod's container made; without a reason it can."""
    waiting = {
        "name": pod["spec"]["containers"][0]["name"],
        "image": "e:1",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": {"reason": reason}},
    }
    body = {"status": {"containerStatuses": [waiting] if reason else None}}
    words = ("patch", "pod", pod["metadata"]["name"], "-n", rig.namespace, "--subresource=status")
    rig.kubectl(*words, "--type=merge", "-p", json.dumps(body))


def live_a_life(rig: ChartedRig) -> None:
    """Everything that happens to a PDCluster in time."""
    rig.apply()

    # A pod whose containers can't be made: only its Events would say why.
    pods = eventually("engines are there", lambda: rig.get("pods")["items"], within_s=SLOW_S)
    hang(rig, pods[0], "ContainerCreating")
    eventually(
        "Events are read", lambda: ("", "events", "list") in used(rig.requests()), within_s=SLOW_S
    )
    hang(rig, pods[0], "")
    rig.wait_ready()
    rig.kubectl("scale", "pdpool/qwen-decode", "--replicas=3", "-n", rig.namespace)
    rig.wait("3 decode engines", lambda: rig.get("pdc", "qwen")["status"]["summary"] == "2P3D")
    rig.merge({"decode": {"replicas": 1}})
    rig.wait("1 decode engine", lambda: rig.get("pdc", "qwen")["status"]["summary"] == "2P1D")
    # Another revision: old Deployments and their renderings go.
    rig.merge({"kvTransfer": {"kvLeaseDurationSeconds": 60}})
    rig.wait_ready()
    rig.merge({"networkPolicy": {"enabled": False}})
    rig.wait("no policies", lambda: not rig.get("netpol")["items"])
    for kind, name in (("svc", "qwen"), ("pdb", "qwen-proxy"), ("sa", "qwen-engine")):
        rig.kubectl("delete", kind, name, "-n", rig.namespace)
        rig.wait(f"{name} is back", lambda k=kind, n=name: rig.get(k, n))
    # Somebody thinks that this makes another replica lead.
    rig.kubectl("delete", "lease", "pdcluster", "-n", rig.release_in)
    eventually(
        "it is made again",
        lambda: rig.kubectl.find("lease", "pdcluster", "-n", rig.release_in),
        within_s=SLOW_S,
    )
    rig.wait_ready()
    rig.kubectl("delete", "pdc", "qwen", "-n", rig.namespace)
    rig.wait("nothing is left", lambda: not rig.kinds() and not rig.get("pods")["items"])


@pytest.fixture(params=["all namespaces", "one namespace"])
def rig(request: pytest.FixtureRequest, plane: Layout, tmp_path: Path) -> Iterator[ChartedRig]:
    kubectl = Kubectl(plane.bin / "kubectl", plane.kubeconfig)
    helm = Helm(plane.bin / "helm4", plane.kubeconfig, tmp_path)
    if kubectl.find("node", "fake") is None:
        kubectl("create", "-f", "-", stdin=NODE)
        body = json.dumps({"status": NODE["status"]})
        kubectl("patch", "node", "fake", "--subresource=status", "--type=merge", "-p", body)
    watches_all = request.param == "all namespaces"
    namespace = f"serving-{secrets.token_hex(4)}"
    kubectl("create", "namespace", namespace)
    words = ["install", "pdcluster", str(CHART), "-n", SYSTEM, "--create-namespace"]
    words += ["--set", "replicas=0", "--take-ownership"]
    watched = () if watches_all else ("--set", f"watchNamespaces={{{namespace}}}")
    helm(*words, *watched)
    made = ChartedRig(kubectl, namespace, plane, tmp_path, release_in=SYSTEM, watched=watched)
    made.start_as_charted()
    yield made
    if made.process is not None:
        made.kill()
    helm("uninstall", "pdcluster", "-n", SYSTEM)


def test_the_operator_uses_every_right_it_has_and_misses_none(rig: ChartedRig) -> None:
    live_a_life(rig)
    assert rig.stop() == 0
    requests = rig.requests()
    assert len(requests) > 100
    assert [each.path for each in requests if each.code == 403] == []
    granted = set(rights.grants(*rights.OPERATOR, *rights.LEADER))
    seen = used(requests)
    assert seen - granted == set()
    assert granted - seen == rights.UNSEEN.keys()


def test_a_right_that_is_missing_would_show(rig: ChartedRig) -> None:
    """The negative control: the log tells of a refusal, and of a right that nobody uses."""
    role = rig.kubectl.get(rig.role, f"{SYSTEM}-pdcluster", "-n", rig.namespace)
    for rule in role["rules"]:
        if rule["resources"] == ["poddisruptionbudgets"]:
            rule["verbs"].remove("create")
    rig.kubectl("replace", "-f", "-", "-n", rig.namespace, stdin=role)
    rig.apply()
    eventually(
        "a refusal",
        lambda: [
            each.path
            for each in rig.requests()
            if each.code == 403 and "poddisruptionbudgets" in each.path
        ],
        within_s=SLOW_S,
    )
    assert ("policy", "poddisruptionbudgets", "create") not in used(rig.requests())
    # The user is told, not the log alone; with the right given back nothing has to be edited.
    forbidden = ("False", "ApplyForbidden")
    rig.wait("a condition", lambda: rig.condition("ConfigValid") == forbidden, within_s=SLOW_S)
    (told,) = (
        each["message"]
        for each in rig.get("pdc", "qwen")["status"]["conditions"]
        if each["type"] == "ConfigValid"
    )
    assert 'cannot create resource "poddisruptionbudgets"' in told
    assert "Give the operator its rights" in told
    for rule in role["rules"]:
        if rule["resources"] == ["poddisruptionbudgets"]:
            rule["verbs"].append("create")
    role["metadata"].pop("resourceVersion")
    rig.kubectl("replace", "-f", "-", "-n", rig.namespace, stdin=role)
    rig.wait_ready()
    rig.kubectl("delete", "pdc", "qwen", "-n", rig.namespace)


# The chart's own test.


class Answering(BaseHTTPRequestHandler):
    """What a PDCluster's Service would answer."""

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'data: {"choices": [{"delta": {"content": "Yes."}}]}\n\ndata: [DONE]\n\n')


@pytest.fixture
def answering() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def finish(process: subprocess.Popen[str], meanwhile: Callable[[], None]) -> tuple[int, str]:
    """Wait for a process; give its exit code and what it said."""
    until = time.monotonic() + 120.0
    while process.poll() is None and time.monotonic() < until:
        meanwhile()
        time.sleep(0.1)
    said, _ = process.communicate(timeout=5.0)
    return process.returncode, said


def test_the_charts_test_uses_every_right_it_has(
    rig: ChartedRig, plane: Layout, tmp_path: Path, answering: str
) -> None:
    # It exists only while `helm test` runs, so it is applied by hand.
    helm = Helm(plane.bin / "helm4", plane.kubeconfig, tmp_path)
    hooks = [
        each
        for each in render(helm, *rig.watched, namespace=SYSTEM)
        if "helm.sh/hook" in each["metadata"].get("annotations", {})
    ]
    (pod,) = (each for each in hooks if each["kind"] == "Pod")
    for each in hooks:
        if each is not pod:
            rig.kubectl.apply(each, namespace=each["metadata"]["namespace"])
    name = pod["spec"]["serviceAccountName"]
    (container,) = pod["spec"]["containers"]
    (tmp_path / "token").write_text(rig.kubectl("create", "token", name, "-n", SYSTEM))
    namespace = next(w.partition("=")[2] for w in container["args"] if w.startswith("--namespace="))
    # The test looks after the namespace that the operator's rig does not.
    kubelet = OperatorRig(rig.kubectl, namespace, plane, tmp_path)
    process = subprocess.Popen(
        [
            *(sys.executable, *container["command"][1:], *container["args"]),
            *(f"--server={plane.api_url}", f"--ca-file={plane.pki / 'ca.crt'}"),
            *(f"--token-file={tmp_path / 'token'}", f"--url={answering}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    code, said = finish(process, kubelet.play_kubelet)
    assert code == 0, said
    assert "nothing is left" in said
    requests = requests_of(plane, f"system:serviceaccount:{SYSTEM}:{name}", rig.since)
    assert [each.path for each in requests if each.code == 403] == []
    assert used(requests) == set(rights.grants(*rights.TEST))
    for each in hooks:
        if each is not pod:
            kind, where = each["kind"].lower(), each["metadata"]["namespace"]
            rig.kubectl("delete", kind, each["metadata"]["name"], "-n", where)


def test_the_right_that_no_request_shows_is_needed_where_a_platform_asks(
    rig: ChartedRig,
) -> None:
    """The admission plugin OwnerReferencesPermissionEnforcement is on in the test cluster."""
    rig.kill()
    rig.apply()
    cluster = rig.get("pdc", "qwen")
    child = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "child",
            "ownerReferences": [
                {
                    "apiVersion": cluster["apiVersion"],
                    "kind": "PDCluster",
                    "name": "qwen",
                    "uid": cluster["metadata"]["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
    }
    words = ("create", "-f", "-", "-n", rig.namespace, f"--as={rig.user}")
    rig.kubectl(*words, stdin=child)
    role = rig.kubectl.get(rig.role, f"{SYSTEM}-pdcluster", "-n", rig.namespace)
    role["rules"] = [r for r in role["rules"] if r["resources"] != ["pdclusters/finalizers"]]
    rig.kubectl("replace", "-f", "-", "-n", rig.namespace, stdin=role)
    child["metadata"]["name"] = "another"  # type: ignore[index]

    def is_refused() -> bool:
        try:
            rig.kubectl(*words, stdin=child)
        except KubectlError as error:
            return "cannot set blockOwnerDeletion" in str(error)
        rig.kubectl("delete", "cm", "another", "-n", rig.namespace)
        return False

    eventually("a refusal", is_refused)
    rig.kubectl("delete", "pdc", "qwen", "-n", rig.namespace)
