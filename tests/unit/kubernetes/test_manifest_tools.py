"""The environment of the manifests' linters is whole or not there, and made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import manifest_tools
from tools.manifest_tools import ManifestToolsError, build

FAKE_UV = """#!/bin/sh
echo "$@" >> {log}
case $1 in
  venv) for folder; do :; done; mkdir -p "$folder/bin"; ln -s /bin/sh "$folder/bin/python" ;;
  pip) {pip} ;;
esac
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def fake_uv(monkeypatch: pytest.MonkeyPatch, log: Path, pip: str) -> None:
    program = log.with_name("uv")
    program.write_text(FAKE_UV.format(log=log, pip=pip))
    program.chmod(0o755)
    monkeypatch.setattr(manifest_tools, "uv_program", lambda _cache: program)


def test_it_is_built_once(monkeypatch: pytest.MonkeyPatch, log: Path, tmp_path: Path) -> None:
    fake_uv(monkeypatch, log, "true")
    folder = build(tmp_path / "cache")
    assert build(tmp_path / "cache") == folder
    made, installed = log.read_text().splitlines()
    assert made.startswith("venv ")
    for flag in ("--require-hashes", "--no-deps", "--no-build"):
        assert flag in installed.split()


def test_a_failure_is_told_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, log: Path, tmp_path: Path
) -> None:
    fake_uv(monkeypatch, log, "echo no network >&2; exit 2")
    with pytest.raises(ManifestToolsError, match=r"(?s)exit code 2.*no network"):
        build(tmp_path / "cache")
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [".manifest-tools.lock"]


def test_one_whose_interpreter_is_gone_is_built_anew(
    monkeypatch: pytest.MonkeyPatch, log: Path, tmp_path: Path
) -> None:
    fake_uv(monkeypatch, log, "true")
    python = build(tmp_path / "cache") / "bin" / "python"
    python.unlink()
    python.symlink_to("/none/python")
    assert (build(tmp_path / "cache") / "bin" / "python").exists()


def test_another_lock_is_another_environment(
    monkeypatch: pytest.MonkeyPatch, log: Path, tmp_path: Path
) -> None:
    fake_uv(monkeypatch, log, "true")
    first = build(tmp_path / "cache")
    lock = tmp_path / "other.txt"
    lock.write_text("checkov==3\n")
    monkeypatch.setattr(manifest_tools, "LOCK", lock)
    assert build(tmp_path / "cache") != first
