from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdcluster_cli.process_tree import (
    descendants,
    marked,
    remove_shared_files,
    shared_files,
)

Until = Callable[..., None]
SLEEP = "import time; time.sleep(600)"
NESTED = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"
OPEN = (
    "import sys, time; file = open(sys.argv[1], 'wb'); print('open', flush=True); time.sleep(600)"
)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(
        program: str, *words: str, session: bool = False, **env: str
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *words],
            stdout=subprocess.PIPE,
            start_new_session=session,
            env={**os.environ, **env},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        for pid in descendants(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def test_descendants_reach_all_the_way_down(
    start: Callable[..., subprocess.Popen[bytes]], until: Until
) -> None:
    process = start(NESTED)
    until(lambda: len(descendants(process.pid)) == 1)
    assert process.pid in descendants(os.getpid())
    assert process.pid not in descendants(process.pid)
    assert descendants(process.pid) < descendants(os.getpid())


def test_a_zombie_is_no_descendant(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start(SLEEP)
    process.kill()
    # Ended, and not yet waited for.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process.pid not in descendants(os.getpid())


def test_a_process_that_does_not_exist_has_no_descendants() -> None:
    assert descendants(2**22 + 1) == set()


def test_a_tree_is_known_by_its_session_or_its_mark(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    leader = start(SLEEP, session=True)
    elsewhere = start(SLEEP, session=True, MY_MARK="x1")
    assert marked(leader.pid, "MY_MARK=nobody") == {leader.pid}
    assert marked(leader.pid, "MY_MARK=x1") == {leader.pid, elsewhere.pid}
    # The whole variable counts, not a part of it.
    assert marked(2**22 + 1, "MY_MARK=x") == set()


def test_this_process_is_never_part_of_a_tree_to_be_killed() -> None:
    assert os.getpid() not in marked(os.getsid(0), "NO_SUCH=mark")


def test_a_file_that_is_held_open_is_seen_and_stays(
    start: Callable[..., subprocess.Popen[bytes]], shared_name: str
) -> None:
    process = start(OPEN, shared_name)
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    assert shared_files([process.pid]) == {shared_name}
    assert remove_shared_files([shared_name]) == {shared_name}
    assert Path(shared_name).exists()
    process.kill()
    process.wait(20)
    assert remove_shared_files([shared_name]) == set()
    assert not Path(shared_name).exists()


def test_files_that_are_gone_already_are_no_trouble() -> None:
    assert remove_shared_files(["/dev/shm/pdcluster-no-such-file"]) == set()
    assert remove_shared_files([]) == set()


def test_a_process_without_shared_memory_has_no_files() -> None:
    assert shared_files([2**22 + 1]) == set()
