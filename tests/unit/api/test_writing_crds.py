"""``python -m pdcluster_api``, run as people run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pdcluster_api.crd import CRD_FILES


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdcluster_api", "--directory", str(folder), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_files_are_written_and_then_found_current(tmp_path: Path) -> None:
    assert run(tmp_path).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == set(CRD_FILES)
    assert run(tmp_path, "--check").returncode == 0
    stale = tmp_path / next(iter(CRD_FILES))
    stale.write_text("kind: Other\n", encoding="utf-8")
    checked = run(tmp_path, "--check")
    assert checked.returncode == 1
    assert "run `make generate`" in checked.stderr
    assert stale.read_text(encoding="utf-8") == "kind: Other\n"
