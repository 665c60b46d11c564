"""`kubectl-pdcluster`, run as kubectl runs it, where there is no Kubernetes to speak of."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from pdcluster_cli.exit_codes import ExitCode
from pdcluster_cli.kubectl.exit_help import PLUGIN_MEANINGS

PAGE = (Path(__file__).parents[3] / "docs/kubernetes/kubectl.md").read_text(encoding="utf-8")
Ended = subprocess.CompletedProcess[str]
Run = Callable[..., Ended]


@pytest.fixture
def plugin(tmp_path: Path) -> Run:
    """Return a function that runs the command with a home of its own."""

    def run(*words: str, **env: str) -> Ended:
        return subprocess.run(
            [sys.executable, "-P", "-m", "pdcluster_cli.kubectl.main", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": "120", **env},
        )

    return run


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a kubeconfig for a server."""

    def write(server: str, **context: str) -> str:
        path = tmp_path / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "mine",
                    "clusters": [{"name": "c", "cluster": {"server": server}}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                    "contexts": [
                        {"name": "mine", "context": {"cluster": "c", "user": "u", **context}}
                    ],
                }
            )
        )
        return str(path)

    return write


def failed(ended: Ended, code: int) -> str:
    """One line that says what is wrong, and nothing else."""
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("Error: ")
    return lines[0]


def test_the_version_is_the_distributions(plugin: Run) -> None:
    ended = plugin("version")
    assert (ended.returncode, ended.stdout) == (0, f"pdcluster {version('pdcluster')}\n")


def test_help_speaks_of_kubectl_and_of_exit_codes(plugin: Run) -> None:
    for words in (("--help",), ("status", "--help"), ("logs", "-h")):
        ended = plugin(*words)
        assert ended.returncode == 0
        assert "Usage: kubectl pdcluster" in ended.stdout
        said = " ".join(ended.stdout.split())
        assert "3 the API server does not answer" in said
        assert "`up`" not in said, "another command's"
        assert f"; {ExitCode.TIMED_OUT.value} " not in said
        # The page has the same table.
        for code, meaning in PLUGIN_MEANINGS.items():
            assert f"{code.value} {meaning}" in said
            assert f"| {code.value} | {meaning} |\n" in PAGE
    table = PAGE.partition("| Exit code | |")[2].strip().splitlines()[1:]
    assert len(table) == len(PLUGIN_MEANINGS)


def test_without_a_kubeconfig_it_says_where_one_is_looked_for(plugin: Run, tmp_path: Path) -> None:
    said = failed(plugin("status", "qwen"), 2)
    assert f"there is no kubeconfig ({tmp_path}/.kube/config)" in said
    said = failed(plugin("logs", "qwen", KUBECONFIG="/nowhere:/nor-here"), 2)
    assert "(/nowhere, /nor-here)" in said


def test_a_kubeconfig_that_is_none_is_named(plugin: Run, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_text("just text")
    said = failed(plugin("status", "qwen", "--kubeconfig", str(path)), 2)
    assert f"the kubeconfig {path} can't be used: " in said


def test_a_context_that_is_not_there_is_named(plugin: Run, kubeconfig: Callable[..., str]) -> None:
    path = kubeconfig("http://127.0.0.1:1")
    said = failed(plugin("status", "qwen", "--kubeconfig", path, "--context", "other"), 2)
    assert "other" in said


def test_a_server_that_is_not_there_is_named(plugin: Run, kubeconfig: Callable[..., str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Bound and not listening: whoever connects is refused.
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for words in (("status", "qwen"), ("logs", "qwen", "-f")):
            said = failed(plugin(*words, KUBECONFIG=kubeconfig(url)), 3)
            assert f"the API server {url} does not answer" in said


def test_a_name_that_does_not_resolve_is_told(plugin: Run, kubeconfig: Callable[..., str]) -> None:
    said = failed(plugin("status", "qwen", KUBECONFIG=kubeconfig("https://api.invalid:6443")), 3)
    assert "api.invalid" in said


class Odd(BaseHTTPRequestHandler):
    """What answers is no API server."""

    seen: list[tuple[str, str]]

    def do_GET(self) -> None:
        type(self).seen.append((self.path, self.headers.get("Authorization", "")))
        body = b"<html>Welcome</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def odd_server() -> Iterator[str]:
    Odd.seen = []
    with HTTPServer(("127.0.0.1", 0), Odd) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_what_is_no_api_server_is_told(
    plugin: Run, kubeconfig: Callable[..., str], odd_server: str
) -> None:
    ended = plugin("status", "qwen", KUBECONFIG=kubeconfig(odd_server, namespace="of-context"))
    assert "what answers is no API server" in failed(ended, 3)
    assert Odd.seen == [
        (
            "/apis/pdcluster.io/v1alpha1/namespaces/of-context/pdclusters/qwen",
            "Bearer t",
        )
    ]


def test_the_named_namespace_wins_over_the_context_s(
    plugin: Run, kubeconfig: Callable[..., str], odd_server: str
) -> None:
    path = kubeconfig(odd_server, namespace="of-context")
    plugin("status", "qwen", "-n", "named", KUBECONFIG=path)
    plugin("status", "qwen", KUBECONFIG=kubeconfig(odd_server))
    assert [path.split("/")[5] for path, _ in Odd.seen] == ["named", "default"]


def test_a_certificate_that_nobody_knows_is_told(
    plugin: Run, kubeconfig: Callable[..., str], odd_server: str
) -> None:
    # An HTTP server does not speak TLS at all: the nearest to a broken one.
    said = failed(
        plugin("status", "qwen", KUBECONFIG=kubeconfig(odd_server.replace("http:", "https:"))), 3
    )
    assert "127.0.0.1" in said


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("status",), "Missing argument"),
        (("logs", "qwen", "--role", "router"), "router"),
        (("logs", "qwen", "--tail", "-2"), "'--tail'"),
        (("logs", "qwen", "-f", "-p"), "can't be followed"),
        (("nothing",), "nothing"),
    ],
)
def test_wrong_words_are_told(plugin: Run, words: tuple[str, ...], word: str) -> None:
    ended = plugin(*words)
    assert ended.returncode == 2
    assert word in ended.stderr
    assert "Traceback" not in ended.stderr


def test_in_a_pod_without_a_token_it_says_what_is_missing(plugin: Run) -> None:
    ended = plugin(
        "status", "qwen", KUBERNETES_SERVICE_HOST="127.0.0.1", KUBERNETES_SERVICE_PORT="1"
    )
    assert "of this pod can't be used" in failed(ended, 2)


def test_an_interrupt_ends_it_without_a_word(plugin: Run, tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "m",
            "clusters": [
                {
                    "name": "c",
                    "cluster": {"server": f"http://127.0.0.1:{silent.getsockname()[1]}"},
                }
            ],
            "users": [],
            "contexts": [{"name": "m", "context": {"cluster": "c", "user": ""}}],
        }
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pdcluster_cli.kubectl.main", "logs", "qwen", "-f"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(path)},
        )
        silent.settimeout(30)
        connection, _ = silent.accept()
        with connection:
            process.terminate()
            out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "")
