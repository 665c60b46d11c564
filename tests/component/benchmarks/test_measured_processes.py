"""The benchmark's processes: pinned, measured, and gone afterwards."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest
from benchmarks.processes import busy_s, cpu_s, descendants, started, wait_until

SLEEP = "import time; time.sleep(600)"
FAMILY = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SLEEP!r}])\n"
START_S = 60


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_program_runs_on_its_core_and_is_gone_after_the_block(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    with started(python(SLEEP), core=core, log=tmp_path / "log") as process:

        def is_python() -> bool:  # And no longer the program that pins it.
            return descendants(process.pid).get(process.pid, "").startswith(sys.executable)

        wait_until("the start", within_s=START_S, probe=is_python)
        assert psutil.Process(process.pid).cpu_affinity() == [core]
    assert not psutil.pid_exists(process.pid)


def test_children_are_found_and_do_not_outlive_the_block(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    with started(python(FAMILY), core=core, log=tmp_path / "log") as process:
        wait_until("a child", within_s=START_S, probe=lambda: len(descendants(process.pid)) == 2)
        family = [psutil.Process(pid) for pid in descendants(process.pid)]
    _, alive = psutil.wait_procs(family, timeout=START_S)
    assert alive == []


def test_cpu_counts_time_on_a_core_and_not_time_asleep() -> None:
    before = cpu_s(os.getpid())
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    assert cpu_s(os.getpid()) - before >= 0.19


def test_a_process_that_does_not_exist_has_no_descendants() -> None:
    assert descendants(2**22 + 1) == {}


def test_waiting_has_an_end_that_names_the_condition() -> None:
    with pytest.raises(TimeoutError, match="the impossible did not happen"):
        wait_until("the impossible", within_s=0.0, probe=lambda: False)


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    core = min(os.sched_getaffinity(0))
    with started(python("print('hello', flush=True)"), core=core, log=log):
        wait_until("the output", within_s=START_S, probe=lambda: log.read_text() == "hello\n")


def test_a_core_is_busy_while_a_program_spins_on_it(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    before = busy_s(core)
    with started(python("while True: pass"), core=core, log=tmp_path / "log") as process:
        wait_until("work", within_s=START_S, probe=lambda: cpu_s(process.pid) > 0.3)
    assert busy_s(core) - before >= 0.2


def test_a_core_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not know core 9999"):
        busy_s(9999)
