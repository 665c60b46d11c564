"""The program itself: how it starts, what it rejects, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import psutil
import pytest
from tests.support.engines import EngineKind, EngineSpec, RunningEngine, free_port, sim_kind

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND = sim_kind("--sim-admin")
PLAIN = EngineSpec(name="plain")
PREFILL = EngineSpec(name="prefill", role="prefill", args=("--shutdown-timeout", "20"))
COMPLETION = {"model": "tiny", "prompt": "river " * 40, "max_tokens": 1}


@contextmanager
def running(spec: EngineSpec, logs: Path) -> Iterator[RunningEngine]:
    with KIND.start(spec, logs=logs) as (engine,):
        yield engine


def rejected(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Start what cannot work; it has to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "pdcluster_sim", "serve", "tiny", *argv],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--no-such-flag",), "unrecognized arguments: --no-such-flag"),
        (("--port", "x"), "argument --port"),
        (("--num-gpu-blocks-override", "4"), "Lower it, or raise --num-gpu-blocks-override"),
        (("--sim-fault-script", "/no/such/file"), "--sim-fault-script /no/such/file"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1:8000"),
    ],
)
def test_what_cannot_work_ends_with_status_2_and_one_line_of_remedy(
    argv: tuple[str, ...], words: str
) -> None:
    ended = rejected(*argv)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = rejected("--host", "127.0.0.1", "--port", str(port))
    assert ended.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr


@pytest.mark.nixl
def test_a_taken_side_channel_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = rejected(
            *EngineSpec(name="p", role="prefill").argv(
                host="127.0.0.1", port=free_port("127.0.0.1")
            ),
            VLLM_NIXL_SIDE_CHANNEL_HOST="127.0.0.1",
            VLLM_NIXL_SIDE_CHANNEL_PORT=str(taken.getsockname()[1]),
        )
    assert ended.returncode == 2
    assert "the side channel cannot listen" in ended.stderr


def test_without_nixl_an_engine_with_connector_says_what_to_install(tmp_path: Path) -> None:
    # Modules of these names that cannot be imported stand before the installed ones.
    for name in ("nixl", "nixl_cu12", "nixl_cu13"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')\n")
    ended = rejected(
        *EngineSpec(name="p", role="prefill").argv(host="127.0.0.1", port=free_port("127.0.0.1")),
        PYTHONPATH=str(tmp_path),
    )
    assert ended.returncode == 2
    assert "Install pdcluster[nixl]" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_engine_stops_with_status_0(tmp_path: Path, number: signal.Signals) -> None:
    with running(PLAIN, tmp_path) as engine:
        engine.process.send_signal(number)
        assert engine.process.wait(timeout=20.0) == 0
        assert "Traceback" not in engine.log.read_text()


@pytest.mark.nixl
def test_a_lease_held_keeps_a_stopping_engine_alive_until_it_ends(tmp_path: Path) -> None:
    with running(PREFILL, tmp_path) as engine:
        body = {**COMPLETION, "kv_transfer_params": {"do_remote_decode": True}}
        asked_at = time.monotonic()
        assert engine.post("/v1/completions", body).json()["kv_transfer_params"] is not None
        engine.process.send_signal(signal.SIGTERM)
        until = asked_at + PREFILL.lease_s
        while engine.post("/v1/completions", COMPLETION).status_code != 503:
            assert time.monotonic() < until, "it drains while the lease is held"
            time.sleep(0.05)
        assert engine.is_healthy()
        assert engine.process.wait(timeout=60.0) == 0
        assert time.monotonic() - asked_at >= PREFILL.lease_s


@pytest.mark.nixl
def test_an_engine_that_dies_ends_with_status_1_and_says_why(tmp_path: Path) -> None:
    with running(EngineSpec(name="d", role="decode"), tmp_path) as engine:
        body = {**COMPLETION, "kv_transfer_params": {"do_remote_prefill": True}}
        assert engine.post("/v1/completions", body).status_code == 500
        assert engine.process.wait(timeout=20.0) == 1
        assert "remote_block_ids" in engine.log.read_text()


@pytest.mark.nixl
def test_an_engine_is_one_small_process_that_leaves_nothing_behind(tmp_path: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    with running(PREFILL, tmp_path) as engine:
        engine.post("/v1/completions", COMPLETION)
        # The handle's own process is the guard that ends the tree with the test run.
        guard, *others = engine.pids()
        assert guard == engine.process.pid
        (alone,) = others
        assert psutil.Process(alone).memory_info().rss < 120 * 1024 * 1024
    left = set(Path("/dev/shm").iterdir()) - before
    assert not [path for path in left if str(alone) in path.name]


@pytest.mark.nixl
def test_nixl_does_not_write_between_the_log_lines(tmp_path: Path) -> None:
    with running(PREFILL, tmp_path) as engine:
        log = engine.log.read_text()
    assert "NIXL INFO" not in log
    levels = ("INFO", "WARNING", "ERROR", "DEBUG")
    assert all(line.startswith(levels) for line in log.splitlines() if line)


def test_a_fault_script_is_followed(tmp_path: Path) -> None:
    script = tmp_path / "faults.json"
    script.write_text(json.dumps([{"kind": "status", "status": 429}]))
    spec = EngineSpec(name="faulty", args=("--sim-fault-script", str(script)))
    with running(spec, tmp_path) as engine:
        assert engine.post("/v1/completions", COMPLETION).status_code == 429
        assert engine.post("/v1/completions", COMPLETION).status_code == 200


def test_a_key_is_asked_for_on_v1_routes_alone(tmp_path: Path) -> None:
    with running(EngineSpec(name="locked", args=("--api-key", "secret")), tmp_path) as engine:
        assert engine.post("/v1/completions", COMPLETION).status_code == 401
        assert engine.client.get(f"{engine.url}/metrics").status_code == 200
        headers = {"Authorization": "Bearer secret"}
        answer = httpx.post(f"{engine.url}/v1/completions", json=COMPLETION, headers=headers)
        assert answer.status_code == 200


def test_the_admin_endpoint_can_end_the_process(tmp_path: Path) -> None:
    with running(PLAIN, tmp_path) as engine:
        with pytest.raises(httpx.HTTPError):
            engine.post("/sim/end", {"what": "process"})
        # The guard passes a death by signal on as a shell would.
        assert engine.process.wait(timeout=20.0) == 128 + signal.SIGKILL


@pytest.mark.nixl
def test_the_admin_endpoint_can_end_the_side_channel_alone(tmp_path: Path) -> None:
    p, d = EngineSpec(name="p", role="prefill"), EngineSpec(name="d", role="decode")
    with KIND.start(p, d, logs=tmp_path) as (prefill, decode):
        prefill.post("/sim/end", {"what": "side-channel"})
        body = {**COMPLETION, "kv_transfer_params": {"do_remote_decode": True}}
        params = prefill.post("/v1/completions", body).json()["kv_transfer_params"]
        assert prefill.is_healthy()
        answer = decode.post("/v1/completions", {**COMPLETION, "kv_transfer_params": params})
        assert answer.status_code == 500
        assert answer.elapsed.total_seconds() >= 5.0


def test_what_is_asked_every_second_is_not_logged(tmp_path: Path) -> None:
    with running(PLAIN, tmp_path) as engine:
        engine.metrics()
        engine.client.get(f"{engine.url}/metrics?name=x")
        engine.client.get(f"{engine.url}/v1/models")
        engine.post("/v1/completions", COMPLETION)
    log = engine.log.read_text()
    logged = [line for line in log.splitlines() if "HTTP/1.1" in line]
    assert [line.split('"')[1] for line in logged] == [
        "GET /v1/models HTTP/1.1",
        "POST /v1/completions HTTP/1.1",
    ]


def test_a_real_engines_sockets_lie_in_a_short_folder_that_goes_with_it(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['VLLM_RPC_BASE_PATH'], flush=True); sys.stdin.read()"
    kind = EngineKind(
        name="stand-in",
        command=(sys.executable, "-c", code),
        env={},
        cwd=None,
        startup_s=60.0,
        makes_sockets=True,
    )
    engine = kind.launch(PLAIN, logs=tmp_path)
    assert engine.sockets is not None
    # vLLM names a socket by a UUID; the kernel takes paths of 107 bytes.
    assert len(f"{engine.sockets}/{uuid.uuid4()}") <= 107
    assert engine.sockets.stat().st_mode & 0o777 == 0o700
    (engine.sockets / "left").touch()
    engine.process.wait(timeout=60.0)
    assert str(engine.sockets) in engine.log.read_text()
    engine.stop()
    assert not engine.sockets.exists()
