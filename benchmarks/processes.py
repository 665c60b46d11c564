"""Processes of a benchmark: started pinned, measured from /proc, stopped for sure.

CPU is time on a core of all threads (``schedstat``, nanoseconds), kernel work included.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["busy_s", "cpu_s", "descendants", "started", "wait_until"]


@contextlib.contextmanager
def started(
    argv: Sequence[str], *, core: int, log: Path, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program on one core until the block ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *argv],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def descendants(pid: int) -> Mapping[int, str]:
    """The process and all below it: command lines by process id."""
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        try:
            command = Path(f"/proc/{current}/cmdline").read_bytes()
            tasks = list(Path(f"/proc/{current}/task").iterdir())
            for task in tasks:
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # It has ended meanwhile.
            continue
        found[current] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def cpu_s(pid: int) -> float:
    """Seconds that one process has been on a core."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def busy_s(core: int) -> float:
    """Seconds that one core has been busy since the machine's start, whoever used it."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
            total = user + nice + system + irq + softirq + steal
            return total / os.sysconf("SC_CLK_TCK")
    raise ValueError(f"/proc/stat does not know core {core}.")


def wait_until(condition: str, *, within_s: float, probe: Callable[[], bool]) -> None:
    """Poll ``probe`` until it is true.

    Raises:
        TimeoutError: It was not within ``within_s``; names the condition.
    """
    deadline = time.monotonic() + within_s
    while not probe():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{condition} did not happen within {within_s:g} s.")
        time.sleep(0.1)
