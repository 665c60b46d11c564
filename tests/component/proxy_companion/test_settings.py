"""What the processes are told, and how a mistake is named."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdcluster_lease.errors import ConfigurationError
from pdcluster_proxy.logs import LogFormat, configure
from pdcluster_proxy.settings import load_config, parse_settings

CONFIG: dict[str, object] = {
    "cluster": "demo",
    "model": "m",
    "listen": {"host": "127.0.0.1", "port": 8000},
    "admin": {"host": "127.0.0.1", "port": 8001},
    "lease": {"durationSeconds": 30, "maxHoldSeconds": 60},
    "timeouts": {"requestSeconds": 60, "firstByteSeconds": 30, "idleSeconds": 30},
    "admission": {"maxInFlight": 10, "maxQueue": 1, "queueTimeoutSeconds": 1},
    "endpointsFile": "endpoints.json",
    "graceSeconds": 5,
}


def test_a_configuration_is_json_or_yaml(tmp_path: Path) -> None:
    as_json, as_yaml = tmp_path / "a.json", tmp_path / "a.yaml"
    as_json.write_text(json.dumps(CONFIG))
    as_yaml.write_text(json.dumps(CONFIG).replace('"cluster": "demo"', "cluster: demo"))
    assert load_config(as_json) == load_config(as_yaml)
    assert load_config(as_json).listen.port == 8000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b"[]", "the document: "),
        (b"{", "is not valid JSON"),
        (b"[" * 100_000, "is nested too deep"),
        (b"\xff\xff", "is not UTF-8"),
        (json.dumps({**CONFIG, "model": 3}).encode(), "model: input should be a valid string"),
        (json.dumps({**CONFIG, "colour": "red"}).encode(), "(given: 'red'); remove it."),
        (json.dumps({**CONFIG, "listen": {"host": "a", "port": 0}}).encode(), "listen.port: "),
        (
            json.dumps({k: v for k, v in CONFIG.items() if k != "lease"}).encode(),
            "lease: field required; add it.",
        ),
    ],
)
def test_a_bad_configuration_names_field_value_and_remedy(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "proxy.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_missing_configuration_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "none.yaml")


def test_several_mistakes_are_told_together(tmp_path: Path) -> None:
    path = tmp_path / "proxy.json"
    path.write_text(json.dumps({**CONFIG, "model": 3, "workers": -1}))
    with pytest.raises(ConfigurationError) as caught:
        load_config(path)
    assert "model: " in str(caught.value)
    assert "workers: " in str(caught.value)


def test_the_command_line_wins_over_the_environment() -> None:
    environ = {"PDCLUSTER_LOG_FORMAT": "console", "PDCLUSTER_LOG_LEVEL": "DEBUG"}
    from_environ = parse_settings(["--config", "f"], environ)
    assert (from_environ.log_format, from_environ.log_level) == (LogFormat.CONSOLE, "DEBUG")
    given = parse_settings(
        ["--config", "f", "--log-format", "json", "--log-level", "error"], environ
    )
    assert (given.log_format, given.log_level) == (LogFormat.JSON, "ERROR")
    assert parse_settings(["--config", "f"], {}).log_format is LogFormat.JSON


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_json_line_holds_the_event_and_its_fields(
    restored_logging: object, capfd: pytest.CaptureFixture[str]
) -> None:
    configure(log_format=LogFormat.JSON, level="INFO", process="worker-0")
    logging.getLogger("x").info("thing.started", extra={"port": 8000})
    logging.getLogger("x").debug("thing.detail")
    (line,) = capfd.readouterr().err.splitlines()
    record = json.loads(line)
    assert (record["event"], record["level"], record["port"], record["process_name"]) == (
        "thing.started",
        "INFO",
        8000,
        "worker-0",
    )


def test_a_console_line_is_for_people(
    restored_logging: object, capfd: pytest.CaptureFixture[str]
) -> None:
    configure(log_format=LogFormat.CONSOLE, level="INFO", process="companion")
    logging.getLogger("x").warning("thing.lost", extra={"endpoint": "p-0"})
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("WARNING companion thing.lost endpoint=p-0")


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdcluster_proxy.main", *argv],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_program_exits_with_2_and_no_traceback_on_a_bad_configuration(tmp_path: Path) -> None:
    done = run("--config", str(tmp_path / "none.yaml"))
    assert done.returncode == 2
    assert "pdcluster-proxy: " in done.stderr
    assert "Traceback" not in done.stderr


def test_the_program_exits_with_2_where_its_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        # As a second proxy of the same user would have it: shared by SO_REUSEPORT.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = tmp_path / "proxy.json"
        path.write_text(json.dumps({**CONFIG, "listen": {"host": "127.0.0.1", "port": port}}))
        done = run("--config", str(path))
    assert done.returncode == 2
    assert f"listen: cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_does_not_outlive_a_parent_that_is_gone() -> None:
    code = "from pdcluster_proxy.lifeline import die_with_parent; die_with_parent(1 << 22)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode != 0
    assert "The supervisor ended before" in done.stderr
