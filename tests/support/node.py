"""A Kubernetes node for tests, with our images and the chart in it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml
from tools.kubernetes.cluster.host import Cluster
from tools.kubernetes.cluster.layout import Layout

from tests.support.kubernetes import Kubectl, KubectlError

__all__ = [
    "CHART",
    "CHART_VALUES",
    "SYSTEM",
    "Helm",
    "Node",
    "Streams",
    "answers",
    "ask",
    "figure",
    "fixture_of",
    "stream_many",
]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "pdcluster"
SYSTEM = "pdcluster-system"
CHART_VALUES = (
    "image.repository=docker.io/local/pdcluster",
    "image.tag=dev",
    "image.pullPolicy=Never",
    "simulatorImage.repository=docker.io/local/pdcluster-sim",
    "simulatorImage.tag=dev",
    "replicas=1",
)
_SAMPLE = re.compile(r"^([a-z_:]+)(?:\{[^}]*\})? ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Helm:
    """One Helm program against one cluster.

    Attributes:
        program: The program.
        kubeconfig: Whose cluster.
        scratch: Folder for its own files.
    """

    program: Path
    kubeconfig: Path
    scratch: Path

    def __call__(self, *words: str, timeout_s: float = 180.0) -> str:
        """Run a verb; give what it prints."""
        environ = {
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": os.environ["PATH"],
            "HOME": str(self.scratch),
            **{f"HELM_{kind}_HOME": str(self.scratch) for kind in ("CACHE", "CONFIG", "DATA")},
        }
        ended = subprocess.run(
            [str(self.program), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env=environ,
        )
        if ended.returncode:
            raise KubectlError(f"{' '.join(words)}: {ended.stderr.strip()}\n{ended.stdout[-2000:]}")
        return ended.stdout


@dataclass(frozen=True, slots=True)
class Node:
    """The node.

    Attributes:
        cluster: To hold components down.
        layout: Its addresses and paths.
        kubectl: As the administrator.
        helm: Helm 4.
    """

    cluster: Cluster
    layout: Layout
    kubectl: Kubectl
    helm: Helm


def fixture_of(example: str, **changes: Any) -> dict[str, Any]:
    """Read an example's resource; ``changes`` are merged into its spec."""
    path = ROOT / "examples" / example / "pdcluster.yaml"
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    _merge(document["spec"], changes)
    return document


def _merge(into: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def ask(
    url: str, prompt: str, *, max_tokens: int = 8, model: str = "sim", n: int = 1
) -> dict[str, Any]:
    """Send one completion; give the whole answer."""
    body: dict[str, object] = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "n": n}
    body["temperature"] = 0 if n == 1 else 1
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120.0, trust_env=False)
    assert answer.status_code == httpx.codes.OK, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def answers(url: str) -> bool:
    """Whether a Service answers: kube-proxy learns of it a moment after its pods are ready."""
    try:
        found = httpx.get(f"{url}/v1/models", timeout=5.0, trust_env=False)
    except httpx.HTTPError:
        return False
    return found.status_code == httpx.codes.OK


def figure(kubectl: Kubectl, namespace: str, pod: str, name: str) -> float:
    """Read one of an engine's counters through the API server, which the policy lets pass."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}:8000/proxy/metrics"
    return sum(float(v) for n, v in _SAMPLE.findall(kubectl("get", "--raw", path)) if n == name)


@dataclass(slots=True)
class Streams:
    """Clients that stream without a pause until they are told to stop.

    Attributes:
        url: Where they connect.
        num: How many.
        max_tokens: Of each answer.
        model: What they ask for.
        ended: Streams that ended in ``[DONE]``.
        failures: What came of the others.
    """

    url: str
    num: int
    max_tokens: int = 64
    model: str = "sim"
    ended: int = 0
    failures: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Begin."""
        for number in range(self.num):
            thread = threading.Thread(target=self._run, args=(number,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Let running streams end, and wait for them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120.0)
            assert not thread.is_alive(), "a stream hangs"

    def _run(self, number: int) -> None:
        turn = 0
        with httpx.Client(timeout=60.0, trust_env=False) as client:
            while not self._stop.is_set():
                turn += 1
                failure = self._stream(client, f"Client {number}, turn {turn}: go on. " * 8)
                if failure:
                    self.failures.append(f"{time.strftime('%X')} {failure}")
                else:
                    self.ended += 1

    def _stream(self, client: httpx.Client, prompt: str) -> str:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": self.max_tokens,
            "stream": True,
            "ignore_eos": True,
        }
        try:
            with client.stream("POST", f"{self.url}/v1/completions", json=body) as answer:
                lines = [line for line in answer.iter_lines() if line]
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"
        if answer.status_code != httpx.codes.OK:
            return f"{answer.status_code} {lines[:1]}"
        return "" if lines and lines[-1] == "data: [DONE]" else f"no [DONE]: {lines[-1:]}"


async def stream_once(host: str, body: bytes, *, timeout_s: float) -> str:
    """Stream one completion over a bare socket, cheap enough for hundreds at a time.

    Returns:
        "" where it ended in ``[DONE]``, else what came.
    """
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    tail = b""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, 80)
            writer.write(head.encode() + body)
            while data := await reader.read(65536):
                tail = (tail + data)[-400:]
            writer.close()
    except (OSError, TimeoutError) as error:
        return f"{type(error).__name__}: {error} after {tail!r}"
    return "" if b"data: [DONE]" in tail else f"no [DONE]: {tail!r}"


async def stream_many(host: str, *, num: int, over_s: float, max_tokens: int) -> list[str]:
    """Begin ``num`` streams evenly over a time; give what came of those that did not end well."""

    async def one(number: int) -> str:
        await asyncio.sleep(over_s * number / num)
        body = {
            "model": "sim",
            "prompt": f"Stream {number}: tell me more. " * 6,
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
        }
        return await stream_once(host, json.dumps(body).encode(), timeout_s=over_s + 120.0)

    outcomes = await asyncio.gather(*(one(number) for number in range(num)))
    return [outcome for outcome in outcomes if outcome]
