"""A cluster as a user runs it: ``pdcluster up`` as a process, watched from outside.

Shell. It says what a test has to know (engines' metrics and process trees, the exchange log, the
files that ``up`` hands the proxy), and can put a second proxy of its own in front of the engines.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.support.engines import GUARD, Metrics, free_port
from tests.support.running_up import RunningUp

READY_WITHIN_S = {"sim": 120.0, "vllm": 600.0}
"""Only tells slow from never."""
STOP_S = 60.0
POLL_S = 0.02


def resource(
    *,
    name: str = "acceptance",
    lease_s: int = 30,
    prefill: int = 1,
    decode: int = 1,
    prefill_args: tuple[str, ...] = (),
    decode_args: tuple[str, ...] = (),
    proxy: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """A PDCluster of the tiny model, the same for both kinds of engine."""
    return {
        "apiVersion": "pdcluster.io/v1alpha1",
        "kind": "PDCluster",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "tiny", "servedName": "tiny"},
            "engine": {
                "image": "unused",
                "args": [
                    "--dtype=float32",
                    "--max-model-len=4096",
                    "--block-size=32",
                    "--enforce-eager",
                ],
            },
            "prefill": {"replicas": prefill, "args": list(prefill_args)},
            "decode": {"replicas": decode, "args": list(decode_args)},
            "kvTransfer": {"bufferDevice": "cpu", "kvLeaseDurationSeconds": lease_s},
            "proxy": dict(proxy or {}),
        },
    }


def wait_until(condition: Callable[[], bool], *, within_s: float, what: str) -> float:
    """Poll until ``condition`` holds; returns the seconds it took.

    Raises:
        AssertionError: It did not hold in time.
    """
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within_s, f"not within {within_s} s: {what}"
        time.sleep(POLL_S)
    return time.monotonic() - started


@dataclass
class Engine:
    """One engine of the cluster."""

    name: str
    url: str

    def metrics(self) -> Metrics:
        """Scrape it."""
        return Metrics.parse(httpx.get(f"{self.url}/metrics", timeout=60.0).text)

    @property
    def usage(self) -> float:
        """Share of its KV blocks in use, leased ones included."""
        return self.metrics()["kv_cache_usage_perc"]

    @property
    def is_idle(self) -> bool:
        """Nothing runs, waits or is pinned."""
        seen = self.metrics()
        return not (
            seen["num_requests_running"]
            or seen["num_requests_waiting"]
            or seen["kv_cache_usage_perc"]
        )

    def pids(self) -> list[int]:
        """Every process that serves its address, children included."""
        host, port = self.url.removeprefix("http://").split(":")
        found: list[int] = []
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            words = {word.partition("=")[2] or word for word in line}
            if host in words and port in words and "pdcluster_cli.guard" not in line:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found += [process.pid, *(c.pid for c in process.children(recursive=True))]
        return sorted(set(found))

    def kill9(self) -> None:
        """Kill all its processes at once."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Proxy:
    """A proxy's client and admin side."""

    def __init__(self, url: str, admin_url: str, log: Path) -> None:
        self.url = url
        self.admin_url = admin_url
        self.log = log

    def records(self) -> list[dict[str, Any]]:
        """The exchange log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if '"exchange.complete"' in line]

    def counter(self, name: str, **labels: str) -> float:
        """One counter of its metrics, summed over all label sets that match; 0.0 if none does."""
        text = httpx.get(f"{self.admin_url}/metrics").text
        total = 0.0
        for line in text.splitlines():
            if line.startswith(f"pdcluster_proxy_{name}") and not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                bare = series.partition("{")[0]
                wanted = all(f'{key}="{text}"' in series for key, text in labels.items())
                if bare == f"pdcluster_proxy_{name}" and wanted:
                    total += float(value)
        return total

    def assert_nothing_is_open(self) -> None:
        """No exchange, leg or held lease is left, once the last report is in."""
        wait_until(
            lambda: (
                self.counter("in_flight") == 0
                and self.counter("queued") == 0
                and self.counter("legs_in_flight") == 0
                and self.counter("leases_held") == 0
            ),
            within_s=30.0,
            what="nothing in flight at the proxy",
        )

    def complete(self, prompt: str, *, max_tokens: int = 16, **fields: object) -> dict[str, Any]:
        """Complete a prompt, not streamed, and demand that it works."""
        answer = self.post(prompt, max_tokens=max_tokens, **fields)
        assert answer.status_code == 200, answer.text
        parsed = answer.json()
        assert isinstance(parsed, dict)
        return parsed

    def post(
        self, prompt: str, *, max_tokens: int = 16, timeout_s: float = 120.0, **fields: object
    ) -> httpx.Response:
        """Complete a prompt on a connection of its own."""
        body = completion(prompt, max_tokens=max_tokens, **fields)
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=timeout_s)

    def stream_tokens(self, prompt: str, *, max_tokens: int = 16) -> list[int]:
        """Complete a prompt as a stream; demands its terminator; returns its token ids."""
        body = completion(prompt, max_tokens=max_tokens, stream=True)
        tokens: list[int] = []
        is_done = False
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=120.0) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    is_done = True
                elif line.startswith("data: "):
                    tokens += json.loads(line[6:])["choices"][0].get("token_ids") or []
        assert is_done, "a stream ends with its terminator"
        return tokens


def completion(prompt: str, *, max_tokens: int, **fields: object) -> dict[str, object]:
    """A greedy completion that runs to its cap and tells its token ids."""
    body: dict[str, object] = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    return body | fields


@dataclass
class UpCluster:
    """A running ``pdcluster up``."""

    proxy: Proxy
    run_dir: Path

    @property
    def engines(self) -> dict[str, Engine]:
        """Its engines by name, as the proxy is told of them."""
        listed = json.loads((self.run_dir / "endpoints.json").read_text())["endpoints"]
        return {each["name"]: Engine(each["name"], each["url"]) for each in listed}

    def only(self, role: str) -> Engine:
        """The one engine of a role."""
        (name,) = (name for name in self.engines if name.startswith(role))
        return self.engines[name]

    @contextlib.contextmanager
    def second_proxy(
        self,
        folder: Path,
        *,
        config: Mapping[str, Any] | None = None,
        endpoint: Callable[[dict[str, Any]], dict[str, Any]] = lambda each: each,
    ) -> Iterator[Proxy]:
        """Run another proxy before the same engines, with parts of its files changed.

        Args:
            folder: Where its files and log go.
            config: Changes of ``up``'s ProxyConfig; dictionaries are merged.
            endpoint: Changes of each endpoint.
        """
        folder.mkdir()
        listed = json.loads((self.run_dir / "endpoints.json").read_text())["endpoints"]
        endpoints = folder / "endpoints.json"
        endpoints.write_text(json.dumps({"endpoints": [endpoint(each) for each in listed]}))
        given = json.loads(next(self.run_dir.glob("proxy*.json")).read_text())
        port, admin = free_port("127.0.0.1"), free_port("127.0.0.1")
        changes: dict[str, Any] = {
            "listen": {"host": "127.0.0.1", "port": port},
            "admin": {"host": "127.0.0.1", "port": admin},
            "workers": 1,
            "endpointsFile": str(endpoints),
            "drainSeconds": 0.0,
            **(config or {}),
        }
        for name, value in changes.items():
            given[name] = {**given[name], **value} if isinstance(value, dict) else value
        file, log = folder / "proxy.json", folder / "proxy.log"
        file.write_text(json.dumps(given))
        argv = [*GUARD, sys.executable, "-m", "pdcluster_proxy.main", "--config", str(file)]
        with log.open("wb") as out:
            process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
        proxy = Proxy(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}", log)
        try:
            wait_until(lambda: is_ready(proxy), within_s=60.0, what=f"{log} says it is ready")
            yield proxy
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            finally:
                process.kill()


def is_ready(proxy: Proxy) -> bool:
    """Ask its admin port."""
    try:
        return httpx.get(f"{proxy.admin_url}/readyz", timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False


@contextlib.contextmanager
def up_cluster(
    kind: str, folder: Path, spec: Mapping[str, Any], *, env: Mapping[str, str] | None = None
) -> Iterator[UpCluster]:
    """Run ``pdcluster up --engine KIND`` on a resource until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pdcluster.yaml"
    file.write_text(yaml.safe_dump(dict(spec)))
    port, admin = free_port("127.0.0.1"), free_port("127.0.0.1")
    with RunningUp(
        folder,
        *("--engine", kind, "-f", str(file)),
        port=port,
        admin_port=admin,
        # Real engines are found below the user's own home.
        env={"HOME": os.environ.get("HOME", "/"), **(env or {})},
        # Ends the whole with the test run, whatever becomes of that.
        under=GUARD,
    ) as running:
        running.wait_for("Ready after", within_s=READY_WITHIN_S[kind])
        proxy = Proxy(
            f"http://127.0.0.1:{port}",
            f"http://127.0.0.1:{admin}",
            running.run_dir / "logs" / "proxy.log",
        )
        try:
            yield UpCluster(proxy, running.run_dir)
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.stop()
