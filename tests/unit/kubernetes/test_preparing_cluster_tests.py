"""What `make test` says where a real Kubernetes cannot run, and whose exit code it gives."""

from __future__ import annotations

import sys

import pytest
from tools import prepare_cluster_tests as preparing

ENDS_WITH_7 = [sys.executable, "-c", "raise SystemExit(7)"]


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["prepare", *words])
    return preparing.main()


@pytest.fixture
def without_go(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(preparing.os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_elsewhere_what_is_missing_is_said_and_the_other_tests_run(
    monkeypatch: pytest.MonkeyPatch, without_go: None, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert call(monkeypatch, "--while", *ENDS_WITH_7) == 7
    assert (
        "Tests on a real Kubernetes cannot run: the program 'go' is missing."
        in capfd.readouterr()[0]
    )
    assert call(monkeypatch) == 0


def test_in_ci_it_is_a_failure_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, without_go: None, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", "true")
    assert call(monkeypatch, "--while", *ENDS_WITH_7) == 1
    assert "Install Go 1.26 or later" in capfd.readouterr()[0]


def test_without_root_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preparing.os, "geteuid", lambda: 1000)
    monkeypatch.delenv("CI", raising=False)
    assert call(monkeypatch) == 0
    assert "they need root" in capfd.readouterr()[0]


def test_the_commands_failure_is_what_counts_and_ends_the_building(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    builds = [sys.executable, "-c", "import time; print('began', flush=True); time.sleep(600)"]
    monkeypatch.setattr(preparing, "BUILDERS", builds)
    waits = [sys.executable, "-c", "import time; time.sleep(0.5); raise SystemExit(7)"]
    assert preparing.build_beside(waits) == 7
    assert "began" in capfd.readouterr()[0]


def test_a_build_that_fails_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    builds = [sys.executable, "-c", "print('no space left'); raise SystemExit(1)"]
    monkeypatch.setattr(preparing, "BUILDERS", builds)
    assert preparing.build_beside([sys.executable, "-c", "import time; time.sleep(0.5)"]) == 1
    assert "no space left" in capfd.readouterr()[0]
