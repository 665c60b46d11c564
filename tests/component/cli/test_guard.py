"""The guard, run as the supervisor runs it, with real processes below it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pdcluster_cli.guard import (
    ENVIRONMENT_VARIABLE,
    KILL_SIGNAL,
    MARK_VARIABLE,
    guard_argv,
    read_record,
)

Until = Callable[..., None]
Start = Callable[..., subprocess.Popen[bytes]]

pytestmark = pytest.mark.usefixtures("nothing_left")

# A tree like an engine's: a child that ignores TERM, and its child in a session of its own.
TREE = """
import subprocess, sys, time
stubborn = '''
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleeper, start_new_session=True)
time.sleep(600)
'''
subprocess.Popen([sys.executable, "-c", stubborn])
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys, time
from pathlib import Path
from pdcluster_cli.guard import guard_argv
program, record = (sys.executable, "-c", sys.argv[1]), Path(sys.argv[2])
argv = guard_argv(program, mark="m", record=record, grace_s=60, parent=os.getpid())
subprocess.Popen(argv, start_new_session=True)
time.sleep(600)
"""
SLEEP = "import time; time.sleep(600)"
SHARED = """
import mmap, os, sys, time
with open(sys.argv[1], "wb+") as file:
    file.truncate(4096)
    mapping = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
time.sleep(600)
"""


# As vLLM makes them: named by the system, with a tracker process beside the program.
BLOCK = """
import sys, time
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=1 << 20)
print(block.name, file=open(sys.argv[1], "w"), flush=True)
time.sleep(600)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    guards: list[subprocess.Popen[bytes]] = []

    def start(program: str, *words: str, grace_s: float = 10.0) -> subprocess.Popen[bytes]:
        argv = guard_argv(
            (sys.executable, "-c", program, *words),
            mark="test-mark",
            record=tmp_path / "record.txt",
            grace_s=grace_s,
            parent=os.getpid(),
        )
        with (tmp_path / "log.txt").open("ab") as log:
            guard = subprocess.Popen(
                argv,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, ENVIRONMENT_VARIABLE: json.dumps({"OWN": "1"})},
            )
        guards.append(guard)
        return guard

    yield start
    for guard in guards:
        if guard.poll() is None:
            guard.send_signal(KILL_SIGNAL)
            guard.wait(20)


def below(guard: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(guard.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(one.is_running() and one.status() != "zombie" for one in processes)


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV),
    ],
)
def test_a_guard_exits_as_its_program_did(start: Start, program: str, code: int) -> None:
    assert start(program).wait(20) == code


def test_term_is_passed_on_and_waited_for(start: Start, tmp_path: Path, until: Until) -> None:
    guard = start(
        "import signal, sys, time\n"
        "signal.signal(15, lambda *_: (print('drained'), sys.exit(5)))\n"
        "print('begun', flush=True)\n"
        "time.sleep(600)"
    )
    until(lambda: "begun" in (tmp_path / "log.txt").read_text())
    guard.terminate()
    assert guard.wait(20) == 5
    assert "drained" in (tmp_path / "log.txt").read_text()


def test_what_ignores_term_is_killed_after_its_grace(
    start: Start, tmp_path: Path, until: Until
) -> None:
    guard = start(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); "
        "time.sleep(600)",
        grace_s=0.3,
    )
    until(lambda: "deaf" in (tmp_path / "log.txt").read_text())
    guard.terminate()
    assert guard.wait(20) == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(lambda guard, _tree: guard.terminate(), id="TERM"),
        pytest.param(lambda guard, _tree: guard.send_signal(KILL_SIGNAL), id="kill signal"),
        pytest.param(lambda guard, _tree: guard.send_signal(signal.SIGHUP), id="HUP"),
        pytest.param(lambda _guard, tree: tree[0].kill(), id="program killed"),
    ],
)
def test_the_whole_tree_ends_with_the_program(
    start: Start, until: Until, how: Callable[[subprocess.Popen[bytes], list[psutil.Process]], None]
) -> None:
    guard = start(TREE)
    until(lambda: len(below(guard)) == 3)
    tree = below(guard)
    how(guard, tree)
    guard.wait(20)
    assert all_gone(tree)


def test_the_program_dies_with_a_guard_that_is_killed(start: Start, until: Until) -> None:
    guard = start(SLEEP)
    until(lambda: len(below(guard)) == 1)
    tree = below(guard)
    guard.kill()
    guard.wait(20)
    until(lambda: all_gone(tree))


def test_the_tree_ends_with_the_guards_parent(tmp_path: Path, until: Until) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, TREE, str(tmp_path / "record.txt")])
    until(lambda: len(psutil.Process(parent.pid).children(recursive=True)) == 4)
    tree = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.wait(20)
    until(lambda: all_gone(tree))


def test_files_in_shared_memory_go_with_the_tree(
    start: Start, tmp_path: Path, until: Until, shared_name: str
) -> None:
    guard = start(SHARED, shared_name)
    until(lambda: read_record(tmp_path / "record.txt") == {shared_name})
    assert Path(shared_name).exists()
    guard.terminate()
    guard.wait(20)
    assert not Path(shared_name).exists()
    assert not (tmp_path / "record.txt").exists()


def shared_path(tmp_path: Path, until: Until) -> Path:
    """Return the file of a running ``BLOCK`` once the guard has noted it."""
    note = tmp_path / "name.txt"
    until(lambda: note.exists() and note.read_text().endswith("\n"))
    path = Path("/dev/shm") / note.read_text().strip()
    assert path.stat().st_size == 1 << 20
    # Well before the guard's next look by itself: the kernel has told it.
    until(lambda: str(path) in read_record(tmp_path / "record.txt"), within_s=3.0)
    return path


def test_shared_memory_of_a_tree_that_is_killed_as_a_whole_is_removed(
    start: Start, tmp_path: Path, until: Until
) -> None:
    guard = start(BLOCK, str(tmp_path / "name.txt"))
    path = shared_path(tmp_path, until)
    # The tracker of the program's shared memory too, which would remove it.
    for process in below(guard):
        process.kill()
    assert guard.wait(20) == 128 + signal.SIGKILL
    assert not path.exists()


def test_shared_memory_goes_with_the_guards_parent(tmp_path: Path, until: Until) -> None:
    program = BLOCK.replace("sys.argv[1]", repr(str(tmp_path / "name.txt")))
    parent = subprocess.Popen([sys.executable, "-c", PARENT, program, str(tmp_path / "record.txt")])
    path = shared_path(tmp_path, until)
    parent.kill()
    parent.wait(20)
    until(lambda: not path.exists())


def test_a_guards_scratch_folder_goes_with_the_tree(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    program = f"import socket; socket.socket(socket.AF_UNIX).bind({str(scratch / 'x')!r})"
    argv = guard_argv(
        (sys.executable, "-c", program),
        mark="m",
        record=tmp_path / "record.txt",
        grace_s=1,
        parent=os.getpid(),
        scratch=scratch,
    )
    assert subprocess.run(argv, timeout=20, check=False).returncode == 0
    assert not scratch.exists()


def test_a_file_that_another_process_still_maps_stays(
    start: Start, tmp_path: Path, until: Until, shared_name: str
) -> None:
    other = subprocess.Popen([sys.executable, "-c", SHARED, shared_name], stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"mapped\n"
    guard = start(SHARED.replace('"wb+"', '"rb+"'), shared_name)
    until(lambda: read_record(tmp_path / "record.txt") == {shared_name})
    guard.terminate()
    guard.wait(20)
    still_there = Path(shared_name).exists()
    other.kill()
    other.communicate()
    Path(shared_name).unlink()
    assert still_there


def test_the_program_gets_its_own_environment_and_the_mark(start: Start, tmp_path: Path) -> None:
    guard = start(
        "import os; print([os.environ.get(n) for n in "
        f"('OWN', '{MARK_VARIABLE}', '{ENVIRONMENT_VARIABLE}')])"
    )
    assert guard.wait(20) == 0
    assert (tmp_path / "log.txt").read_text() == "['1', 'test-mark', None]\n"


def test_a_program_that_is_not_there_says_so(tmp_path: Path) -> None:
    argv = guard_argv(
        ("/no/such/program",),
        mark="m",
        record=tmp_path / "record.txt",
        grace_s=1,
        parent=os.getpid(),
    )
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 127
    assert ended.stderr == "cannot run /no/such/program: No such file or directory\n"


def test_a_guard_whose_parent_is_gone_already_runs_nothing_for_long(tmp_path: Path) -> None:
    argv = guard_argv(
        (sys.executable, "-c", SLEEP),
        mark="m",
        record=tmp_path / "record.txt",
        grace_s=60,
        parent=1,
    )
    assert subprocess.run(argv, timeout=20, check=False).returncode == 128 + signal.SIGKILL


def test_a_record_that_was_never_written_names_nothing(tmp_path: Path) -> None:
    assert read_record(tmp_path / "none.txt") == set()
