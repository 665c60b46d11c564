"""Folders of runs: this one's, and what earlier ones have left.

Shell: makes and removes files, and ends processes of runs that were killed together with their
guards.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Final

from pdcluster_cli.up.processes import sweep

__all__ = ["make_run_dir"]

_RUNS_KEPT: Final = 10
"""Folders of earlier runs that are kept for their logs."""
_NO_SESSION: Final = -1
"""Of a killed guard only the mark is known."""


def make_run_dir(state_dir: Path, cluster: str) -> Path:
    """Make this run's folder, clean up after runs that were killed, and remove old folders.

    Args:
        state_dir: Folder of all runs.
        cluster: Name of the resource.
    """
    runs = state_dir / "runs"
    run_dir = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{cluster}-{os.getpid()}"
    run_dir.mkdir(parents=True)
    for index, old in enumerate(sorted(runs.iterdir(), reverse=True)):
        if _is_running(old):
            continue
        for record in old.glob("guards/*.txt"):
            sweep(record, session=_NO_SESSION)
        if index >= _RUNS_KEPT:
            shutil.rmtree(old, ignore_errors=True)
    return run_dir


def _is_running(run_dir: Path) -> bool:
    return Path("/proc", run_dir.name.rpartition("-")[2]).exists()
