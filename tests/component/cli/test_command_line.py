"""The command, run as people run it: what it prints, and what it exits with."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.support.resources import ENGINE, resource, text_of

Ended = subprocess.CompletedProcess[str]
Run = Callable[..., Ended]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def pdcluster(tmp_path: Path) -> Run:
    """Return a function that runs the command with a home of its own."""

    def run(*words: str, **env: str) -> Ended:
        return subprocess.run(
            [sys.executable, "-P", "-m", "pdcluster_cli.main", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": "120", **env},
        )

    return run


@pytest.fixture
def file(tmp_path: Path) -> Callable[[object], str]:
    def write(content: object) -> str:
        path = tmp_path / "my.yaml"
        text = content if isinstance(content, str) else text_of(content)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_the_version_is_the_distributions(pdcluster: Run) -> None:
    ended = pdcluster("version")
    assert (ended.returncode, ended.stdout) == (0, f"pdcluster {version('pdcluster')}\n")


def test_help_names_the_verbs_and_the_exit_codes(pdcluster: Run) -> None:
    ended = pdcluster("--help")
    assert ended.returncode == 0
    for verb in ("version", "render", "explain-lease", "up"):
        assert verb in ended.stdout
    assert "4 it took longer than it may" in " ".join(ended.stdout.split())


@pytest.mark.parametrize("verb", ["render", "explain-lease", "up"])
def test_each_verbs_help_names_the_exit_codes(pdcluster: Run, verb: str) -> None:
    assert "2 a word, the file or the machine" in " ".join(pdcluster(verb, "--help").stdout.split())


def test_render_and_explain_print_text_and_json(
    pdcluster: Run, file: Callable[[object], str]
) -> None:
    path = file(resource())
    assert "vllm serve Qwen/Qwen3-8B" in pdcluster("render", "-f", path).stdout
    rendered = json.loads(pdcluster("render", "-f", path, "-o", "json").stdout)
    assert rendered["engines"]["decode"]["replicas"] == 2
    assert pdcluster("explain-lease", "-f", path).stdout.startswith("keeper: absent\n")
    explained = json.loads(pdcluster("explain-lease", "-f", path, "--output", "json").stdout)
    assert explained["keeper"] == "absent"


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("*/pdcluster.yaml")), ids=lambda p: p.parent.name
)
def test_every_example_can_be_rendered_and_explained(pdcluster: Run, example: Path) -> None:
    for verb in ("render", "explain-lease"):
        ended = pdcluster(verb, "-f", str(example))
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "BROKEN" not in ended.stdout
    engines = json.loads(pdcluster("render", "-f", str(example), "-o", "json").stdout)["engines"]
    assert set(engines) == {"prefill", "decode"}


BAD_FILES: dict[str, tuple[Any, str]] = {
    "empty": ("", "is empty"),
    "not YAML": ("a: [", "is not YAML"),
    "another kind": ({"apiVersion": "v1", "kind": "Pod", "metadata": {}}, "only Pod"),
    "unknown field": (resource(prefil={}), "spec.prefil: unknown field; did you mean prefill?"),
    "wrong type": (resource(prefill={"replicas": "two"}), "must be a whole number"),
    "lease too short": (resource(kvTransfer={"kvLeaseDurationSeconds": 3}), "must be at least 6"),
    "no time for a hand-off": (
        resource(kvTransfer={"kvLeaseDurationSeconds": 7}),
        "Set it to 9 or more, or set spec.proxy.handOffDeadlineSeconds",
    ),
    "not yet supported": (resource(kvTransfer={"bidirectional": True}), "not yet supported"),
    "an owned flag": (
        resource({"model": {"name": "m"}, "engine": ENGINE | {"args": ["--port=1"]}}),
        "use spec.engine.port",
    ),
}


@pytest.mark.parametrize(("content", "told"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_rejected_with_a_clear_error(
    pdcluster: Run, file: Callable[[object], str], content: object, told: str
) -> None:
    ended = pdcluster("render", "-f", file(content))
    assert ended.returncode == 2
    assert ended.stderr.startswith("Error: ")
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout


@pytest.mark.parametrize("verb", ["explain-lease", "up"])
@pytest.mark.parametrize("bad", ["unknown field", "no time for a hand-off"])
def test_every_verb_rejects_a_bad_file(
    pdcluster: Run, file: Callable[[object], str], verb: str, bad: str
) -> None:
    content, told = BAD_FILES[bad]
    ended = pdcluster(verb, "-f", file(content))
    assert ended.returncode == 2
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout


def test_a_missing_file_is_rejected(pdcluster: Run) -> None:
    ended = pdcluster("up", "-f", "/no/such/file.yaml")
    assert (ended.returncode, ended.stderr) == (
        2,
        "Error: /no/such/file.yaml does not exist; name another file with -f\n",
    )


@pytest.mark.parametrize(
    "words",
    [
        ("render",),
        ("nonsense",),
        ("up", "--engine", "tgi"),
        ("up", "--port", "0"),
        ("up", "--port", "many"),
        ("render", "-f", "x", "-o", "xml"),
    ],
)
def test_wrong_words_are_wrong_use(pdcluster: Run, words: tuple[str, ...]) -> None:
    ended = pdcluster(*words)
    assert ended.returncode == 2
    assert "Usage" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_a_taken_port_is_rejected_before_anything_starts(
    pdcluster: Run, tmp_path: Path, flag: str
) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        port = str(listening.getsockname()[1])
        ended = pdcluster("up", flag, port)
    assert ended.returncode == 2
    assert f"{flag}: {port}: another program listens there at 127.0.0.1" in ended.stderr
    assert not (tmp_path / ".local").exists()


def test_every_taken_port_is_told_at_once_with_its_field(
    pdcluster: Run, file: Callable[[object], str], free_port: int
) -> None:
    with socket.socket() as clients, socket.socket() as everywhere:
        clients.bind(("127.0.0.1", free_port))
        clients.listen(1)
        everywhere.bind(("0.0.0.0", free_port + 1))
        everywhere.listen(1)
        path = file(resource(engine=ENGINE | {"port": free_port + 1}))
        words = (f"--port={free_port}", f"--admin-port={free_port + 1}")
        ended = pdcluster("up", "-f", path, *words)
    assert ended.returncode == 2
    first, *told = ended.stderr.splitlines()
    assert first == "Error: several ports cannot be used:"
    assert [line.split(":")[0].strip() for line in told] == [
        "--port",
        "--admin-port",
        "spec.engine.port",
    ]
    assert all("choose another for" in line for line in told)


def test_one_port_for_two_purposes_is_rejected(pdcluster: Run, free_port: int) -> None:
    ended = pdcluster("up", f"--port={free_port}", f"--admin-port={free_port}")
    assert ended.returncode == 2
    assert f"--admin-port: {free_port}: --port has it already" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_before_anything_runs_has_its_documented_code(
    tmp_path: Path, number: signal.Signals
) -> None:
    fifo = tmp_path / "my.yaml"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "pdcluster_cli.main", "up", "-f", str(fifo)],
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    # Opening succeeds when the command reads its file, which it does before it starts anything.
    with fifo.open("w"):
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, "Interrupted; nothing was started.\n")


def test_vllm_that_is_not_there_names_the_remedy(pdcluster: Run) -> None:
    ended = pdcluster("up", "--engine", "vllm")
    assert ended.returncode == 2
    assert "Run `make vllm-env`" in ended.stderr


def test_nothing_heavy_is_imported_for_the_version() -> None:
    """The command must start fast; what a verb needs is imported by the verb."""
    code = (
        "import sys; import pdcluster_cli.main; "
        "print([n for n in ('pydantic', 'yaml', 'httpx', 'asyncio', 'rich.live', 'watchfiles') "
        "if n in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout == "[]\n"


def test_the_packaged_example_is_the_first_example() -> None:
    packaged = ROOT / "cli" / "pdcluster_cli" / "example.yaml"
    example = ROOT / "examples" / "01-minimal" / "pdcluster.yaml"
    assert packaged.read_bytes() == example.read_bytes()
    assert packaged.is_file()
