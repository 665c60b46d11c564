from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import psutil
import pytest

from pdcluster_cli.guard import read_record
from pdcluster_cli.process_tree import adopt_orphans
from pdcluster_cli.up.processes import RPC_VARIABLE, Launcher, Running, scratch_of
from pdcluster_cli.up.run_folders import make_run_dir

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(run_dir=tmp_path, environ={**os.environ, "INHERITED": "yes"})


async def launch(
    launcher: Launcher, program: str, *, cwd: str | None = None, grace_s: float = 5.0, **env: str
) -> Running:
    return await launcher.launch(
        "engine", (sys.executable, "-c", program), env=env, cwd=cwd, grace_s=grace_s
    )


async def test_a_program_inherits_the_environment_and_gets_its_own(launcher: Launcher) -> None:
    running = await launch(
        launcher, "import os; print(os.environ['INHERITED'], os.environ['OWN'])", OWN="1"
    )
    assert await running.ended() == 0
    assert running.tail(5) == ("yes 1",)


async def test_a_program_runs_in_its_folder(launcher: Launcher, tmp_path: Path) -> None:
    running = await launch(launcher, "import os; print(os.getcwd())", cwd=str(tmp_path))
    assert await running.ended() == 0
    assert running.tail(1) == (str(tmp_path),)


async def test_modules_in_the_programs_folder_are_not_for_the_guard(
    launcher: Launcher, tmp_path: Path
) -> None:
    (tmp_path / "argparse.py").write_text("raise SystemExit('wrong module')", encoding="utf-8")
    running = await launch(launcher, "print('fine')", cwd=str(tmp_path))
    assert await running.ended() == 0


async def test_the_programs_python_path_is_not_the_guards(
    launcher: Launcher, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("print('customized')", encoding="utf-8")
    running = await launch(launcher, "print('program')", PYTHONPATH=str(site))
    assert await running.ended() == 0
    assert running.tail(9) == ("customized", "program")


async def test_the_tail_begins_at_the_last_launch(launcher: Launcher) -> None:
    first = await launch(launcher, "print('first')")
    assert await first.ended() == 0
    assert first.has_spoken()
    second = await launch(launcher, "pass")
    assert await second.ended() == 0
    assert not second.has_spoken()
    assert second.tail(5) == ()
    third = await launch(launcher, "print('a\\nb\\nc\\nd')")
    assert await third.ended() == 0
    assert third.tail(2) == ("c", "d")
    assert launcher.log_of("engine").read_text(encoding="utf-8") == "first\na\nb\nc\nd\n"


async def test_bytes_that_are_no_text_do_not_spoil_the_tail(launcher: Launcher) -> None:
    running = await launch(launcher, "import sys; sys.stdout.buffer.write(b'\\xff\\xfe x\\n')")
    assert await running.ended() == 0
    assert running.tail(1)[0].endswith(" x")


async def test_signals_to_one_that_has_ended_are_no_trouble(launcher: Launcher) -> None:
    running = await launch(launcher, "pass")
    assert await running.ended() == 0
    running.terminate()
    running.kill()


async def test_what_cannot_be_launched_leaves_nothing(launcher: Launcher) -> None:
    launcher.log_of("engine").mkdir(parents=True)
    before = set(scratch_of("x").parent.glob("pdc-*"))
    with pytest.raises(IsADirectoryError):
        await launcher.launch("engine", ("true",), env={}, cwd=None, grace_s=1.0, has_sockets=True)
    assert set(scratch_of("x").parent.glob("pdc-*")) == before
    assert list((launcher.run_dir / "guards").iterdir()) == []


async def test_a_program_that_is_killed_ends_at_once(launcher: Launcher) -> None:
    program = "import time; print('begun', flush=True); time.sleep(600)"
    running = await launch(launcher, program, grace_s=600)
    async with asyncio.timeout(20):
        while not running.has_spoken():  # noqa: ASYNC110 - another process speaks
            await asyncio.sleep(0.02)
        running.kill()
        assert await running.ended() == 137


async def test_one_that_is_killed_before_its_guard_is_up_leaves_nothing(
    launcher: Launcher,
) -> None:
    running = await launch(launcher, "import time; time.sleep(600)", grace_s=600)
    running.kill()
    async with asyncio.timeout(20):
        assert await running.ended() > 128


async def test_so_does_one_whose_hang_ups_are_ignored_as_under_nohup(launcher: Launcher) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = await launch(launcher, "import time; time.sleep(600)", grace_s=600)
    finally:
        signal.signal(signal.SIGHUP, before)
    running.kill()
    async with asyncio.timeout(20):
        assert await running.ended() > 128


ENGINE = """
import os, socket, subprocess, sys, time, uuid
from multiprocessing import shared_memory
folder, note = os.environ["VLLM_RPC_BASE_PATH"], sys.argv[1]
block = shared_memory.SharedMemory(create=True, size=1 << 20)
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"{folder}/{uuid.uuid4()}")
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleeper, start_new_session=True)
with open(note + ".new", "w") as file:
    print(block.name, folder, child.pid, file=file)
os.rename(note + ".new", note)
time.sleep(600)
"""
"""Leaves what a real engine leaves when it is killed: shared memory, a socket, a process."""


async def engine_on(run_dir: Path) -> tuple[Running, Path, Path, psutil.Process]:
    """Launch ``ENGINE``; return it, its file in shared memory, its folder, its process."""
    launcher = Launcher(run_dir=run_dir, environ=os.environ)
    note = run_dir / "note.txt"
    running = await launcher.launch(
        "engine",
        (sys.executable, "-c", ENGINE, str(note)),
        env={},
        cwd=None,
        grace_s=5.0,
        has_sockets=True,
    )
    async with asyncio.timeout(20):
        while not note.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
        name, folder, pid = note.read_text().split()
        block = Path("/dev/shm", name)
        while str(block) not in read_record(running.record):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
    sockets = Path(folder)
    assert len(list(sockets.iterdir())) == 1  # noqa: ASYNC240 - a small folder
    return running, block, sockets, psutil.Process(int(pid))


def exist(*paths: Path) -> list[Path]:
    return [path for path in paths if path.exists()]


async def test_nothing_of_an_engine_is_left_when_its_guard_is_killed(tmp_path: Path) -> None:
    adopt_orphans()
    try:
        running, block, sockets, process = await engine_on(tmp_path)
        running.guard.kill()
        assert await running.ended() == 137
        assert exist(block, sockets, running.record) == []
        assert not process.is_running()
    finally:
        adopt_orphans(adopt=False)


async def test_nothing_of_an_engine_is_left_when_its_whole_tree_is_killed(tmp_path: Path) -> None:
    running, block, sockets, process = await engine_on(tmp_path)
    for one in psutil.Process(running.pid).children(recursive=True):
        one.kill()
    assert await running.ended() == 137
    assert exist(block, sockets, running.record) == []
    assert not process.is_running()


async def test_what_is_left_when_all_is_killed_at_once_goes_with_the_next_run(
    tmp_path: Path,
) -> None:
    gone = subprocess.Popen(["true"])  # noqa: ASYNC220 - ends at once; gives a pid that is gone
    gone.wait()
    killed = tmp_path / "runs" / f"20260101-000000-qwen-{gone.pid}"
    (killed / "logs").mkdir(parents=True)
    running, block, sockets, process = await engine_on(killed)
    guard = psutil.Process(running.pid)
    tree = [one for one in guard.children(recursive=True) if one.pid != process.pid]
    guard.suspend()
    for one in (*tree, guard):
        one.kill()
    await running.guard.wait()
    assert exist(block, sockets, running.record) == [block, sockets, running.record]
    await asyncio.to_thread(make_run_dir, tmp_path, "qwen")
    assert exist(block, sockets, running.record) == []
    assert psutil.wait_procs([process], timeout=20)[1] == []
    assert exist(killed / "logs") == [killed / "logs"]


async def test_an_engine_keeps_the_folder_for_sockets_that_it_was_given(
    launcher: Launcher, tmp_path: Path
) -> None:
    running = await launcher.launch(
        "engine",
        (sys.executable, "-c", f"import os; print(os.environ[{RPC_VARIABLE!r}])"),
        env={RPC_VARIABLE: str(tmp_path)},
        cwd=None,
        grace_s=5.0,
        has_sockets=True,
    )
    assert await running.ended() == 0
    assert running.tail(1) == (str(tmp_path),)
    assert tmp_path.exists()  # noqa: ASYNC240 - a look


@pytest.mark.parametrize("temporary", ["/tmp", "/var/tmp", "/" + "x" * 48, "/" + "x" * 200])
def test_a_path_of_a_socket_always_fits(temporary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", temporary)
    folder = scratch_of(secrets.token_hex(8))
    assert len(f"{folder}/{uuid.uuid4()}") <= 107
    assert str(folder.parent) == (temporary if len(temporary) < 50 else "/tmp")


async def test_after_a_killed_guard_its_tree_is_gone_when_its_end_is_told(
    launcher: Launcher, tmp_path: Path
) -> None:
    pids = tmp_path / "pids.txt"
    program = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}\\n')\n"
        "time.sleep(600)"
    )
    adopt_orphans()
    try:
        running = await launch(launcher, program)
        async with asyncio.timeout(20):
            while not (pids.exists() and pids.read_text().endswith("\n")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        running.guard.kill()
        assert await running.ended() == 137
        for pid in pids.read_text().split():
            assert not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240, PTH110 - a look at /proc
    finally:
        adopt_orphans(adopt=False)
