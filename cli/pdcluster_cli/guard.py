"""Runs one program and leaves nothing of it behind: ``python -m pdcluster_cli.guard -- argv...``.

Shell. A program's own children may outlive it: vLLM's engine core and workers go on for more than
15 s after their API server was killed. So the guard adopts every orphan below it, and when the
program ends, or the guard's parent does, it kills what is left and removes the tree's files in
shared memory and its folder for sockets (``--scratch``).

Signals to the guard: TERM asks the program to stop and gives it ``--grace`` seconds; USR1 kills the
tree at once, and is what the kernel sends when the parent dies. If the guard itself is killed, the
kernel kills the program, and the parent cleans up the rest (``--record`` tells it which files).

The kernel tells the guard of every new file in shared memory, and the guard looks at once whether
its own tree has it open: once the tree is dead, nobody can tell whose a file was.

It exits as the program did: with its code, or 128 + the signal's number. It restarts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pdcluster_cli.process_tree import (
    SHARED_MEMORY,
    adopt_orphans,
    descendants,
    die_with_parent,
    kill_all,
    remove_shared_files,
    shared_files,
)

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "KILL_SIGNAL",
    "MARK_VARIABLE",
    "guard_argv",
    "main",
    "read_record",
]

ENVIRONMENT_VARIABLE = "PDCLUSTER_GUARD_ENVIRONMENT"
"""Environment variable with the program's own variables as a JSON object; it does not get it."""

MARK_VARIABLE = "PDCLUSTER_GUARD"
"""Environment variable that marks a tree; its value is ``--id``."""

KILL_SIGNAL = signal.SIGUSR1
"""Ends the tree at once. Not HUP: whoever is started by nohup inherits that it is ignored, and then
one that comes before the guard is up would be lost."""

_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGIO, KILL_SIGNAL)
_PERIOD_S = 5.0
"""Seconds between two looks at shared memory where nothing new is heard of."""
_UNNOTIFIED_PERIOD_S = 0.25
"""The same where the kernel does not tell of new files."""
_CANNOT_RUN = 127


def guard_argv(
    argv: tuple[str, ...],
    *,
    mark: str,
    record: Path,
    grace_s: float,
    parent: int,
    scratch: Path | None = None,
) -> tuple[str, ...]:
    """Return the command line that runs ``argv`` under a guard.

    Args:
        argv: The program.
        mark: Value of :data:`MARK_VARIABLE` in the whole tree; unique.
        record: File that lists the tree's files in shared memory.
        grace_s: Seconds the program gets after TERM.
        parent: Process id of the parent, whose death ends the tree.
        scratch: Folder that goes with the tree.
    """
    return (
        sys.executable,
        # Whatever lies in the program's working folder is not for the guard to import.
        "-P",
        "-m",
        "pdcluster_cli.guard",
        f"--id={mark}",
        f"--record={record}",
        f"--grace={grace_s}",
        f"--parent={parent}",
        *(() if scratch is None else (f"--scratch={scratch}",)),
        "--",
        *argv,
    )


def read_record(record: Path) -> set[str]:
    """Return the files a guard's tree had in shared memory when the guard last looked."""
    try:
        return set(record.read_text(encoding="utf-8").split("\n")) - {""}
    except OSError:
        return set()


@dataclass(slots=True)
class _Guard:
    """One running program; this is all the mutable state."""

    program: subprocess.Popen[bytes]
    record: Path | None
    scratch: Path | None
    grace_s: float
    period_s: float
    files: set[str] = field(default_factory=set)
    kill_at: float | None = None

    def wait(self) -> int:
        """Guard until the program has ended; return its code as Popen gives it."""
        while True:
            received = signal.sigtimedwait(_HANDLED, self._patience_s())
            number = received.si_signo if received is not None else None
            if number in {signal.SIGTERM, signal.SIGINT} and self.kill_at is None:
                self.kill_at = time.monotonic() + self.grace_s
                self.program.terminate()
            self._look()
            code = self._reap()
            if code is not None:
                return code
            overdue = self.kill_at is not None and time.monotonic() >= self.kill_at
            if number in {KILL_SIGNAL, signal.SIGHUP} or overdue:
                return -signal.SIGKILL

    def _patience_s(self) -> float:
        if self.kill_at is None:
            return self.period_s
        return min(self.period_s, max(0.0, self.kill_at - time.monotonic()))

    def _look(self) -> None:
        """Note the tree's files: once it is dead, nobody can tell whose they were."""
        seen = self.files | shared_files(descendants(os.getpid()))
        if seen != self.files and self.record is not None:
            # A full disk costs the note for whoever cleans up after a killed guard, no more.
            with contextlib.suppress(OSError):
                draft = self.record.with_suffix(".new")
                draft.write_text("\n".join(sorted(seen)), encoding="utf-8")
                draft.replace(self.record)
        self.files = seen

    def _reap(self) -> int | None:
        """Reap whatever has ended; return the program's code once it is among it."""
        code = None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.program.pid:
                    code = os.waitstatus_to_exitcode(status)
                    # Popen must not wait for it again.
                    self.program.returncode = code
        return code

    def clean_up(self) -> None:
        """Kill what is left of the tree and remove its files."""
        try:
            self._look()
        finally:
            kill_all(os.getpid())
        self.program.returncode = self.program.returncode or 0
        remove_shared_files(self.files)
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
        if self.record is not None:
            self.record.unlink(missing_ok=True)


def _parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pdcluster_cli.guard",
        description="Run one program and leave nothing of it behind.",
    )
    parser.add_argument("--id", default="", help="mark of the tree in its environment")
    parser.add_argument("--record", type=Path, help="file that lists files in shared memory")
    parser.add_argument("--scratch", type=Path, help="folder that is removed with the tree")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds from TERM to KILL")
    parser.add_argument("--parent", type=int, help="process whose death ends the tree")
    parser.add_argument("argv", nargs="+", help="the program, after --")
    return parser.parse_args(words)


def _environment(own: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return the program's environment."""
    environment = dict(own)
    environment |= json.loads(environment.pop(ENVIRONMENT_VARIABLE, "{}"))
    return environment | {MARK_VARIABLE: mark}


def _ask_for_notice() -> bool:
    """Have the kernel send SIGIO for every new file in shared memory; whether it does.

    Source:
        fcntl(2), F_NOTIFY. Unlike inotify it needs no descriptor to be waited for beside signals.
    """
    try:
        # Stays open: notices end with the descriptor.
        folder = os.open(SHARED_MEMORY, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_MULTISHOT)
    except OSError:
        return False
    return True


def main(words: list[str] | None = None) -> int:
    """Run the program and return the code to exit with."""
    options = _parse(words)
    # Taken one by one in _Guard.wait: no handler can run in the middle of anything.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    own_pid = os.getpid()
    die_with_parent(KILL_SIGNAL, options.parent or os.getppid())
    adopt_orphans()
    period_s = _PERIOD_S if _ask_for_notice() else _UNNOTIFIED_PERIOD_S

    def in_child() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        die_with_parent(signal.SIGKILL, own_pid)

    environment = _environment(os.environ, options.id)
    try:
        program = subprocess.Popen(  # noqa: S603 - the program is the user's own
            options.argv,
            env=environment,
            preexec_fn=in_child,  # noqa: PLW1509 - this process has one thread
        )
    except OSError as error:
        print(f"cannot run {options.argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return _CANNOT_RUN
    guard = _Guard(
        program=program,
        record=options.record,
        scratch=options.scratch,
        grace_s=options.grace,
        period_s=period_s,
    )
    try:
        code = guard.wait()
    finally:
        guard.clean_up()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
