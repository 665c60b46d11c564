"""``pdcluster up`` with simulated engines over real NIXL and the real proxy."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.resources import resource, text_of
from tests.support.running_up import WAIT_S, RunningUp, gone

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(180)]

WORDS = ("again in", "draining", "exited")
"""What would be untrue of programs that are killed for good."""

MODEL = {"name": "sim/model", "servedName": "sim"}
Up = Callable[..., RunningUp]


@pytest.fixture
def port() -> int:
    """Return the first of four ports that nobody uses on any address."""
    for first in itertools.count(30_000 + os.getpid() % 250 * 8, 4):
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for offset in range(4):
                probe = probes.enter_context(socket.socket())
                probe.bind(("0.0.0.0", first + offset))
            return first
    raise AssertionError("no port is free")


@pytest.fixture(autouse=True)
def shared_memory_is_as_before() -> Iterator[None]:
    """Assert that files of UCX do not pile up in shared memory."""

    def files() -> set[str]:
        return {path.name for path in Path("/dev/shm").glob("ucx*")}

    before = files()
    yield
    assert files() <= before


@pytest.fixture
def file(tmp_path: Path, port: int) -> Callable[..., Path]:
    path = tmp_path / "my.yaml"

    def write(**fields: Any) -> Path:
        given: dict[str, Any] = {
            "model": MODEL,
            "engine": {"image": "sim:1", "port": port + 2},
            "prefill": {"replicas": 1},
            "decode": {"replicas": 1},
            "drain": {"settleSeconds": 1},
        }
        transfer = {"sideChannelPort": port + 3} | fields.pop("kvTransfer", {})
        document = resource(given | fields | {"kvTransfer": transfer})
        path.write_text(text_of(document), encoding="utf-8")
        return path

    return write


@pytest.fixture
def up(tmp_path: Path, port: int) -> Iterator[Up]:
    with contextlib.ExitStack() as running:

        def start(*words: str) -> RunningUp:
            return running.enter_context(RunningUp(tmp_path, *words, port=port))

        yield start


def test_an_answer_comes_through_and_ctrl_c_leaves_nothing(
    up: Up, file: Callable[..., Path]
) -> None:
    running = up("-f", str(file()))
    running.wait_for("Ready after")
    assert "1P + 1D (simulator) and a proxy" in running.text
    assert "Lease keeper: absent" in running.text
    assert f"curl -sSN {running.url}/v1/chat/completions" in running.text
    first = running.ask("sim")
    assert first
    assert running.ask("sim") == first
    tree = running.tree()
    assert running.stop(signal.SIGINT) == 0
    assert gone(tree, within_s=5.0)
    assert "Stopped; nothing is left running." in running.text
    assert "Traceback" not in running.text


def test_an_answer_is_streamed_through_the_curl_line(up: Up, file: Callable[..., Path]) -> None:
    running = up("-f", str(file()))
    running.wait_for("Ready after")
    body = {
        "model": "sim",
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 8,
        "stream": True,
    }
    with httpx.stream(
        "POST", f"{running.url}/v1/chat/completions", json=body, timeout=30, trust_env=False
    ) as answer:
        events = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    contents = [json.loads(event[6:])["choices"] for event in events[:-1]]
    assert sum(1 for choices in contents if choices and choices[0]["delta"].get("content")) == 8


def test_nothing_is_left_when_up_itself_is_killed(up: Up, file: Callable[..., Path]) -> None:
    running = up("-f", str(file()))
    running.wait_for("Ready after")
    tree = running.tree()
    assert len(tree) >= 8
    running.process.kill()
    running.process.wait(WAIT_S)
    assert gone(tree)


def test_nothing_is_left_of_a_killed_guards_engine_and_it_comes_back(
    up: Up, file: Callable[..., Path]
) -> None:
    running = up("-f", str(file()))
    running.wait_for("Ready after")
    engine = running.program("kv_consumer")
    guard = running.guard_of(engine)
    guard.kill()
    assert gone([engine])
    running.wait_for("decode-0     ready", times=2)
    wait_until_answered(running)


def test_nothing_is_left_of_a_killed_proxy_and_it_comes_back(
    up: Up, file: Callable[..., Path]
) -> None:
    running = up("-f", str(file()))
    running.wait_for("Ready after")
    proxy = running.program("pdcluster_proxy.main")
    below = proxy.children(recursive=True)
    assert below
    proxy.kill()
    assert gone([proxy, *below])
    running.wait_for("proxy        ready", times=2)
    wait_until_answered(running)


def wait_until_answered(running: RunningUp) -> str:
    """Ask again and again: the proxy may still see an engine that is gone."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return running.ask("sim", "Are you back?")
        except (AssertionError, httpx.HTTPError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_an_edit_adds_an_engine_and_a_bad_edit_changes_nothing(
    up: Up, file: Callable[..., Path]
) -> None:
    path = file()
    running = up("-f", str(path))
    running.wait_for("Ready after")
    before = {process.pid for process in running.tree()}
    file(decode={"replicas": 2})
    running.wait_for("decode-1     ready")
    applied = "spec.decode.replicas 1 -> 2; programs: 3 kept, 1 started, 0 drained"
    assert f"{path}: {applied}" in running.text
    assert before <= {process.pid for process in running.tree()}
    file(kvTransfer={"kvLeaseDurationSeconds": 4})
    running.wait_for(f"{path} is not applied; the programs go on as they are. Correct it")
    assert "kvLeaseDurationSeconds: 4: must be at least 6" in running.text
    path.write_text("kind: [", encoding="utf-8")
    running.wait_for("is not applied; the programs go on as they are", times=2)
    path.unlink()
    running.wait_for(f"{path} is gone; the programs go on as they are. Write it again")
    assert running.ask("sim")
    assert before <= {process.pid for process in running.tree()}


def test_an_edit_of_the_lease_replaces_both_roles_without_a_failed_request(
    up: Up, file: Callable[..., Path]
) -> None:
    running = up("-f", str(file()))
    running.wait_for("Ready after")
    file(kvTransfer={"kvLeaseDurationSeconds": 60})
    answers = 0
    deadline = time.monotonic() + WAIT_S
    while "decode-0     gone" not in running.text:
        running.ask("sim", f"Question {answers}")
        answers += 1
        assert time.monotonic() < deadline, running.text
    assert answers > 0
    assert running.ask("sim", "And now?")
    text = running.text
    assert text.index("decode-1     ready") < text.index("prefill-0    draining")
    assert text.index("prefill-0    gone") < text.index("decode-0     gone")


def test_an_edit_of_the_models_name_shows_the_new_curl_line(
    up: Up, file: Callable[..., Path]
) -> None:
    running = up("-f", str(file()))
    running.wait_for("Ready after")
    file(model=MODEL | {"servedName": "other"})
    running.wait_for("The model is 'other' now:")
    assert '"model": "other"' in running.text.rpartition("curl")[2]
    assert running.ask("other")


def test_an_engine_that_cannot_start_ends_the_run_with_its_last_words(
    up: Up, file: Callable[..., Path]
) -> None:
    running = up("-f", str(file(engine={"image": "sim:1", "args": ["--no-such-flag"]})))
    assert running.process.wait(WAIT_S) == 1
    assert "cannot start: it ended with code 2. Its last words:" in running.text
    assert "--no-such-flag" in running.text
    assert "correct spec.engine.args" in running.text
    assert "Traceback" not in running.text


def test_a_second_ctrl_c_does_not_wait(up: Up, file: Callable[..., Path]) -> None:
    running = up("-f", str(file()))
    running.wait_for("Ready after")
    tree = running.tree()
    for process in (running.program("kv_producer"), running.program("kv_consumer")):
        # It cannot act on TERM: a drain would take minutes.
        process.suspend()
    running.process.send_signal(signal.SIGINT)
    running.wait_for("Draining: no new requests")
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(WAIT_S) == 0
    _, _, told = running.text.partition("Stopping at once: whatever still runs is killed.")
    assert "prefill-0    killed" in told
    assert not {"again in", "draining", "exited"} & {word for word in WORDS if word in told}
    assert told.endswith("Stopped; nothing is left running.\n")
    assert gone(tree, within_s=5.0)


def test_under_nohup_the_end_of_the_terminal_changes_nothing(
    tmp_path: Path, port: int, file: Callable[..., Path]
) -> None:
    with RunningUp(tmp_path, "-f", str(file()), port=port, under=("nohup",)) as running:
        running.wait_for("Ready after")
        running.process.send_signal(signal.SIGHUP)
        assert running.ask("sim")
        assert running.process.poll() is None
        assert running.stop() == 0


def test_the_end_of_the_terminal_drains(up: Up, file: Callable[..., Path]) -> None:
    running = up("-f", str(file()))
    running.wait_for("Ready after")
    assert running.stop(signal.SIGHUP) == 0
    assert "Draining: no new requests" in running.text


def test_two_runs_live_side_by_side_on_ports_of_their_own(
    up: Up, file: Callable[..., Path], tmp_path: Path
) -> None:
    path = file()
    first = up("-f", str(path))
    first.wait_for("Ready after")
    other = tmp_path / "other"
    other.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    with RunningUp(other, "-f", str(path), port=free) as second:
        second.wait_for("Ready after")
        assert second.ask("sim") == first.ask("sim")
        assert second.stop() == 0
    assert first.ask("sim")


def test_the_packaged_example_runs_two_of_each(up: Up) -> None:
    if _is_taken(8000) or _is_taken(5600):
        pytest.skip("another program uses the example's ports")
    running = up()
    running.wait_for("Ready after")
    assert "2P + 2D (simulator)" in running.text
    assert running.ask("qwen3-8b")
    assert running.stop() == 0


def _is_taken(port: int) -> bool:
    return any(
        connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        for connection in psutil.net_connections("tcp")
        if connection.laddr and connection.laddr.ip in {"0.0.0.0", "::"}
    )
