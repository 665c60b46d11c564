"""Processes under guards: launch, ask to stop, kill, and clean up after a guard.

Shell. Knows nothing of phases and plans.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdcluster_cli.guard import (
    ENVIRONMENT_VARIABLE,
    KILL_SIGNAL,
    MARK_VARIABLE,
    guard_argv,
    read_record,
)
from pdcluster_cli.process_tree import marked, remove_shared_files

__all__ = ["RPC_VARIABLE", "Launcher", "Running", "scratch_of", "sweep"]

RPC_VARIABLE = "VLLM_RPC_BASE_PATH"
"""Variable that names the folder of an engine's Unix sockets, one ``<uuid>`` each.

Source:
    vLLM 0.32.0, ``utils/network_utils.get_open_zmq_ipc_path``; else they lie in the temporary
    folder and a killed engine leaves them there.
"""
_SOCKET_PATH_MAX = 107
"""Longest path of a Unix socket, in bytes (unix(7), ``sun_path``)."""
_SOCKET_NAME = 37
"""``/`` and a UUID."""

_TAIL_BYTES = 16 * 1024
_SWEEP_TIMEOUT_S = 5.0
_SWEEP_PERIOD_S = 0.01


def scratch_of(mark: str) -> Path:
    """Return the folder for a tree's sockets: outside the run folder, whose path may be too long.

    Args:
        mark: The tree's mark, so that the folder is found again from its record.
    """
    folder = Path(tempfile.gettempdir()) / f"pdc-{mark}"
    fits = len(os.fsencode(folder)) + _SOCKET_NAME <= _SOCKET_PATH_MAX
    return folder if fits else Path("/tmp") / folder.name  # noqa: S108 - short; the name is random


def sweep(record: Path, *, session: int) -> None:
    """Do what a killed guard would have done: end its tree, remove its files, folder and record.

    Args:
        record: The guard's record; its name is the tree's mark.
        session: The guard's process id.
    """
    deadline = time.monotonic() + _SWEEP_TIMEOUT_S
    mark = f"{MARK_VARIABLE}={record.stem}"
    ours: set[int] = set()
    while (left := ours | marked(session, mark)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            # An orphan is our child; any other is reaped by its parent, or becomes ours next.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        # A dead one has no environment any more, by which it could be found again.
        ours = {pid for pid in left if Path("/proc", str(pid)).exists()}
        time.sleep(_SWEEP_PERIOD_S)
    remove_shared_files(read_record(record))
    shutil.rmtree(scratch_of(record.stem), ignore_errors=True)
    record.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One process under its guard.

    Attributes:
        guard: The guard's process.
        record: Lists the tree's files in shared memory; named after the tree's mark.
        log: What the program writes.
        log_start: Size of the log when it was launched.
    """

    guard: asyncio.subprocess.Process
    record: Path
    log: Path
    log_start: int

    @property
    def pid(self) -> int:
        """The guard's process id."""
        return self.guard.pid

    def has_spoken(self) -> bool:
        """Whether the program has written anything."""
        try:
            return self.log.stat().st_size > self.log_start
        except OSError:  # Somebody has removed it; that says nothing of the program.
            return False

    def tail(self, num_lines: int) -> tuple[str, ...]:
        """Return the last lines the program has written since it was launched."""
        try:
            size = self.log.stat().st_size
            with self.log.open("rb") as log:
                log.seek(max(self.log_start, size - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return ()
        return tuple(text.splitlines()[-num_lines:])

    def terminate(self) -> None:
        """Ask the program to stop; its guard bounds the time it takes."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End the program and its tree at once."""
        self._send(KILL_SIGNAL)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.guard.send_signal(number)

    async def ended(self) -> int:
        """Wait for the end; return the program's exit code, 128 + n for signal n."""
        code = await self.guard.wait()
        if code < 0:
            # The guard itself was killed: do what it would have done.
            await asyncio.to_thread(sweep, self.record, session=self.pid)
            code = 128 - code
        return code


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """Launches programs of one run.

    Attributes:
        run_dir: Folder of the run; logs lie in ``logs`` below it.
        environ: Environment every program inherits.
    """

    run_dir: Path
    environ: Mapping[str, str]

    def log_of(self, name: str) -> Path:
        """Return the log file of a program."""
        return self.run_dir / "logs" / f"{name}.log"

    async def launch(
        self,
        name: str,
        argv: tuple[str, ...],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        grace_s: float,
        has_sockets: bool = False,
    ) -> Running:
        """Start a program under a guard of its own, in a session of its own.

        Call it from the main thread: the guard is told when the thread that started it ends.

        Args:
            name: Names the log.
            argv: The program.
            env: Its environment beside what it inherits.
            cwd: Its working folder.
            grace_s: Seconds it gets after it was asked to stop.
            has_sockets: It makes Unix sockets where :data:`RPC_VARIABLE` says.
        """
        log = self.log_of(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        mark = secrets.token_hex(8)
        record = self.run_dir / "guards" / f"{mark}.txt"
        record.parent.mkdir(parents=True, exist_ok=True)
        # Also where nothing is ever written into it: it tells a later run of this tree.
        record.touch()
        scratch = None
        if has_sockets and RPC_VARIABLE not in env:
            scratch = scratch_of(mark)
            scratch.mkdir(mode=0o700)
            env = {**env, RPC_VARIABLE: str(scratch)}
        try:
            return await self._spawn(
                argv, log=log, record=record, env=env, cwd=cwd, grace_s=grace_s, scratch=scratch
            )
        except OSError:
            # No guard will clean up after what was never launched.
            record.unlink(missing_ok=True)
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)
            raise

    async def _spawn(
        self,
        argv: tuple[str, ...],
        *,
        log: Path,
        record: Path,
        env: Mapping[str, str],
        cwd: str | None,
        grace_s: float,
        scratch: Path | None,
    ) -> Running:
        with log.open("ab") as output:
            # Before the launch: the program shares this file's position.
            log_start = output.tell()
            guard = await asyncio.create_subprocess_exec(
                *guard_argv(
                    argv,
                    mark=record.stem,
                    record=record,
                    grace_s=grace_s,
                    parent=os.getpid(),
                    scratch=scratch,
                ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                # The program's own variables are not for the guard's interpreter (PYTHONPATH!).
                env={**self.environ, ENVIRONMENT_VARIABLE: json.dumps(dict(env))},
                # The terminal's Ctrl-C is for us alone: we drain in order.
                start_new_session=True,
            )
            return Running(guard=guard, record=record, log=log, log_start=log_start)
