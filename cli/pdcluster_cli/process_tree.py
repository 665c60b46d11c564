"""Processes below one process, and the files in shared memory that are theirs.

Shell: reads ``/proc`` and sends signals. Linux only. The standard library alone, because every
guard imports it and there is one guard per program.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "SHARED_MEMORY",
    "adopt_orphans",
    "descendants",
    "die_with_parent",
    "kill_all",
    "marked",
    "remove_shared_files",
    "shared_files",
]

SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - where POSIX shared memory lives, not a temporary file

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SESSION_FIELD = 3
_PARENT_FIELD = 1
_KILL_TIMEOUT_S = 10.0


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def die_with_parent(number: signal.Signals, parent: int) -> None:
    """Have the kernel send ``number`` to this process when its parent dies.

    Args:
        number: The signal.
        parent: Process id the parent has; where it has died already, the signal is sent now.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def adopt_orphans(*, adopt: bool = True) -> None:
    """Become (or stop being) the parent of every orphan below this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def _stat(pid: int) -> tuple[str, ...]:
    """Return the fields of ``/proc/PID/stat`` from the state on; empty where the process is gone.

    Source:
        proc_pid_stat(5): the name is in parentheses and may hold any character.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(text.rpartition(")")[2].split())


def _processes() -> Iterable[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208 - names only


def descendants(root: int) -> set[int]:
    """Return the ids of all processes below ``root``, zombies left out."""
    children: dict[int, list[int]] = {}
    for pid in _processes():
        fields = _stat(pid)
        if fields and fields[0] not in {"Z", "X"}:
            children.setdefault(int(fields[_PARENT_FIELD]), []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in found:
                found.add(pid)
                waiting.append(pid)
    return found


def marked(session: int, mark: str) -> set[int]:
    """Return the processes of a guard's tree when the guard itself is gone, zombies included.

    Args:
        session: The guard's process id, which is its session's too; processes stay in it.
        mark: ``NAME=VALUE`` in the environment of the tree, for those that left the session. A
            program that rewrites its title may destroy it, hence both.
    """
    wanted = mark.encode()
    found: set[int] = set()
    for pid in _processes():
        fields = _stat(pid)
        if not fields or pid == os.getpid():
            continue
        if int(fields[_SESSION_FIELD]) == session:
            found.add(pid)
            continue
        with contextlib.suppress(OSError):
            if wanted in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def kill_all(root: int) -> None:
    """Kill everything below ``root`` and reap it; ``root`` must be this process.

    Orphans become children of this process (see :func:`adopt_orphans`), so that going on until no
    child is left gets all of them.
    """
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        for pid in descendants(root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def shared_files(pids: Iterable[int]) -> set[str]:
    """Return the files in shared memory that the given processes map or hold open."""
    found: set[str] = set()
    for pid in pids:
        found |= _mapped(pid)
        found |= _held_open(pid)
    return found


def _mapped(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        text = (_PROC / str(pid) / "maps").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            _, separator, name = line.partition(SHARED_MEMORY)
            if separator and not name.endswith(" (deleted)"):
                found.add(SHARED_MEMORY + name)
    return found


def _held_open(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(_PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)  # noqa: PTH115 - a pseudo file's target
                if target.startswith(SHARED_MEMORY) and not target.endswith(" (deleted)"):
                    found.add(target)
    return found


def remove_shared_files(names: Iterable[str]) -> set[str]:
    """Remove those of the files that no living process uses any more.

    An engine also maps files of its peers, so a tree that ends must not take what others need.

    Returns:
        The files that are still in use.
    """
    waiting = {name for name in names if os.path.exists(name)}  # noqa: PTH110 - names, not paths
    if not waiting:
        return set()
    used = waiting & shared_files(pid for pid in _processes() if pid != os.getpid())
    for name in waiting - used:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108 - names, not paths
    return used
