"""The chart's test as a process, against a stand-in for the API server and for the cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

PATH = "/apis/pdcluster.io/v1alpha1/namespaces/sys/pdclusters"
EVENT = b'data: {"choices": [{"delta": {"content": "Yes."}}]}\n\n'


class World:
    """One namespace, and a cluster in it that becomes what a test wants."""

    def __init__(self) -> None:
        self.cluster: dict[str, Any] | None = None
        self.conditions = [{"type": "Ready", "status": "True", "reason": "Serving"}]
        self.answer = EVENT + b"data: [DONE]\n\n"
        self.requests: list[tuple[str, str]] = []
        self.deletions: list[Any] = []
        self.num_looks_to_leave = 0
        self.asked: Any = None
        self.fails_next: list[int | None] = []
        self.confirms = True


class Handler(BaseHTTPRequestHandler):
    world: World

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _send(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def do_GET(self) -> None:
        world = self.world
        world.requests.append(("GET", self.path))
        if self.headers["Authorization"] != "Bearer secret":
            self._send(403, {"message": "pdclusters is forbidden"})
        elif world.fails_next and (status := world.fails_next.pop(0)) is not None:
            self._send(status, {"message": "try later"})
        elif world.cluster is None:
            self._send(404, {"message": "not found"})
        elif world.deletions and world.num_looks_to_leave == 0:
            world.cluster = None
            self._send(404, {"message": "not found"})
        else:
            world.num_looks_to_leave -= bool(world.deletions)
            self._send(200, world.cluster)

    def do_POST(self) -> None:
        world = self.world
        world.requests.append(("POST", self.path))
        if self.path == "/v1/chat/completions":
            world.asked = self._body()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(world.answer)
            return
        world.cluster = self._body()
        world.deletions.clear()
        world.cluster["metadata"]["generation"] = 1
        host, port = self.server.server_address[:2]
        world.cluster["status"] = {
            "observedGeneration": 1,
            "conditions": world.conditions,
            "url": f"http://{host!s}:{port}",
        }
        if world.confirms:
            self._send(201, world.cluster)
        else:
            self._send(504, {"message": "timed out"})

    def do_DELETE(self) -> None:
        self.world.requests.append(("DELETE", self.path))
        self.world.deletions.append(self._body())
        self._send(200, {})


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def server(world: World) -> Iterator[str]:
    handler = type("Bound", (Handler,), {"world": world})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def start(server: str, folder: Path, *words: str, token: str = "secret") -> subprocess.Popen[str]:
    (folder / "token").write_text(f"{token}\n")
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "pdcluster_cli.smoke", "--namespace=sys", "--name=pdc-test"),
            *("--image=sim:1", f"--server={server}", f"--token-file={folder / 'token'}"),
            *(f"--ca-file={certificates()}", *words),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def certificates() -> str:
    """A file of certificates that can be loaded; nothing here is encrypted."""
    import certifi  # noqa: PLC0415 - here alone

    return certifi.where()


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_well_installed_cluster_is_made_asked_and_deleted(
    world: World, server: str, tmp_path: Path
) -> None:
    world.num_looks_to_leave = 1
    code, out, err = end(start(server, tmp_path))
    assert (code, err) == (0, "")
    assert "Streamed 1 events to [DONE]: 'Yes.'" in out
    assert "nothing is left" in out
    assert world.asked["stream"] is True
    assert [{"propagationPolicy": "Foreground"}] == world.deletions
    assert world.cluster is None


def test_a_cut_answer_fails_and_the_cluster_is_deleted_all_the_same(
    world: World, server: str, tmp_path: Path
) -> None:
    world.answer = EVENT
    code, out, err = end(start(server, tmp_path))
    assert code == 1
    assert "without [DONE]" in err
    assert "Failed:" in out
    assert world.cluster is None


def test_a_rejected_cluster_fails_at_once(world: World, server: str, tmp_path: Path) -> None:
    world.conditions = [
        {"type": "ConfigValid", "status": "False", "reason": "NameTaken", "message": "Rename it."}
    ]
    code, _, err = end(start(server, tmp_path))
    assert code == 1
    assert "NameTaken" in err
    assert "Rename it." in err
    assert world.cluster is None


def test_a_cluster_that_never_gets_ready_times_out(
    world: World, server: str, tmp_path: Path
) -> None:
    world.conditions = [{"type": "Ready", "status": "Unknown", "reason": "WaitingForOperator"}]
    code, out, err = end(start(server, tmp_path, "--timeout-seconds=1"))
    assert code == 4
    assert "WaitingForOperator" in out
    assert "is not ready" in err
    assert world.cluster is None


def test_what_an_earlier_test_left_is_deleted_first(
    world: World, server: str, tmp_path: Path
) -> None:
    assert end(start(server, tmp_path))[0] == 0
    mark = {"app.kubernetes.io/component": "test", "app.kubernetes.io/managed-by": "pdcluster"}
    world.cluster = {"metadata": {"name": "pdc-test", "labels": mark}}
    world.deletions.clear()
    world.requests.clear()
    code, out, _ = end(start(server, tmp_path))
    assert code == 0
    assert "an earlier test left" in out
    verbs = [verb for verb, path in world.requests if path.startswith(PATH)]
    assert verbs.index("DELETE") < verbs.index("POST")


def test_somebodys_cluster_of_the_name_is_left_alone(
    world: World, server: str, tmp_path: Path
) -> None:
    theirs = {"metadata": {"name": "pdc-test"}}
    world.cluster = dict(theirs)
    code, _, err = end(start(server, tmp_path))
    assert code == 2
    assert "no test has made it" in err
    assert world.cluster == theirs
    assert {verb for verb, _ in world.requests} == {"GET"}


def test_missing_rights_are_told_in_the_servers_words(server: str, tmp_path: Path) -> None:
    code, _, err = end(start(server, tmp_path, token="wrong"))
    assert code == 3
    assert "403 pdclusters is forbidden" in err


def test_one_that_is_told_to_end_deletes_its_cluster(
    world: World, server: str, tmp_path: Path
) -> None:
    world.conditions = [{"type": "Ready", "status": "False", "reason": "Starting"}]
    process = start(server, tmp_path)
    until = time.monotonic() + 30
    while world.cluster is None and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 128 + signal.SIGTERM
    assert world.cluster is None


@pytest.mark.parametrize("status", [500, 503])
def test_a_poll_that_fails_is_tried_again(
    world: World, server: str, tmp_path: Path, status: int
) -> None:
    world.fails_next = [None, status, status]
    code, out, err = end(start(server, tmp_path))
    assert (code, err) == (0, "")
    assert out.count("asking again") == 2
    assert world.cluster is None


def test_a_cluster_whose_making_was_not_confirmed_is_deleted_too(
    world: World, server: str, tmp_path: Path
) -> None:
    world.confirms = False
    code, _, err = end(start(server, tmp_path))
    assert code != 0
    assert err.startswith("Error: ")
    assert world.cluster is None
    assert world.deletions
