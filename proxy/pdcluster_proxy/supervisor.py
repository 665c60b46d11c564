"""Keeps one companion and N workers running, and stops them in order.

Shell. Theory of operation. Sockets are bound by the supervisor and handed to the processes, so
that one that dies leaves its queue of connections to its successor. A process that dies is started
again, at once at first, later with growing delays. Stopping takes three steps: readiness answers
503 while everything is still served, then the workers stop accepting and finish, then the companion
goes. A second request to stop ends everything at once.

The companion hears by SIGUSR1 that the proxy drains. Processes begin with that signal blocked, so
that it waits for a companion that has no handler yet instead of killing it.

Deliberately not here: what the processes do, and where the configuration comes from.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket
    from collections.abc import Coroutine, Sequence

    from pdcluster_proxy.settings import Settings

__all__ = ["DRAIN_SIGNAL", "ProcessPlan", "Supervisor", "restart_delay_s"]

_LOG = logging.getLogger(__name__)

DRAIN_SIGNAL: Final = signal.SIGUSR1
"""Tells the companion that the proxy drains; blocked until a process lets it in."""

EXIT_STOPPED: Final = 0
EXIT_FAULT: Final = 1
EXIT_CONFIGURATION: Final = 2
"""A process that ends with it would do so again: a person must change something."""

_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 5.0
_STEADY_S: Final = 10.0
"""A process that ran this long is no longer failing to start."""

_KILL_AFTER_S: Final = 3.0
"""How long past its grace a process may take to end."""


def restart_delay_s(failures: int) -> float:
    """Seconds before a process is started again.

    Args:
        failures: Short lives in a row, this one included.
    """
    return min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** max(0, min(failures, 16) - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """One process to keep running.

    Attributes:
        name: For logs.
        module: Its composition root.
        socket: The bound socket it serves.
        index: Which worker it is; 0 for the companion.
    """

    name: str
    module: str
    socket: socket.socket
    index: int


class Supervisor:
    """The processes of one proxy.

    Args:
        companion: The companion's plan.
        workers: The workers' plans.
        config_json: The configuration, for the processes' standard input.
        link: Name of the companion's socket.
        settings: What the supervisor itself was told.
        drain_s: How long readiness answers 503 before the workers stop accepting.
        grace_s: How long running exchanges may take to finish after that.
    """

    def __init__(
        self,
        *,
        companion: ProcessPlan,
        workers: Sequence[ProcessPlan],
        config_json: bytes,
        link: str,
        settings: Settings,
        drain_s: float,
        grace_s: float,
    ) -> None:
        self._companion = companion
        self._workers = tuple(workers)
        self._config_json = config_json
        self._link = link
        self._settings = settings
        self._drain_s = drain_s
        self._grace_s = grace_s
        # This is all the mutable state.
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._is_stopping = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._exit_code = EXIT_STOPPED

    def stop(self) -> None:
        """Stop in order; the second call stops at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> int:
        """Keep the processes running until told to stop; returns the exit code."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {DRAIN_SIGNAL})
        try:
            return await self._run()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    async def _run(self) -> int:
        keepers = [
            asyncio.create_task(self._keep(plan)) for plan in (self._companion, *self._workers)
        ]
        try:
            await self._stop.wait()
            await self._stop_in_order()
        finally:
            self._kill_all()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            for process in tuple(self._running.values()):
                await process.wait()
        return EXIT_FAULT if self._hurry.is_set() else self._exit_code

    # Starting.

    async def _keep(self, plan: ProcessPlan) -> None:
        """Run one process, again and again."""
        failures = 0
        while True:
            began = time.monotonic()
            code = await self._live(plan)
            if self._stops():
                return
            if code == EXIT_CONFIGURATION:
                _LOG.error("process.misconfigured", extra={"which": plan.name, "exit_code": code})
                self._exit_code = EXIT_CONFIGURATION
                self._drain_s = 0.0
                self._stop.set()
                return
            failures = 1 if time.monotonic() - began > _STEADY_S else failures + 1
            delay_s = restart_delay_s(failures)
            _LOG.error(
                "process.died",
                extra={"which": plan.name, "exit_code": code, "restart_in_s": delay_s},
            )
            await asyncio.sleep(delay_s)
            if self._stops():
                return

    async def _live(self, plan: ProcessPlan) -> int | None:
        """Start a process and wait for its end; returns its exit code, None where it never was."""
        try:
            process = await self._start(plan)
        except OSError:
            # No descriptors, no memory: it is tried again like one that died.
            _LOG.exception("process.start.failed", extra={"which": plan.name})
            return None
        code = await process.wait()
        del self._running[plan.name]
        return code

    async def _start(self, plan: ProcessPlan) -> asyncio.subprocess.Process:
        settings = self._settings
        descriptor = plan.socket.fileno()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", plan.module),
            *("--parent", str(os.getpid()), "--link", self._link, "--socket", str(descriptor)),
            *("--index", str(plan.index), "--workers", str(len(self._workers))),
            *("--log-format", settings.log_format, "--log-level", settings.log_level),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(descriptor,),
        )
        self._running[plan.name] = process
        if plan is self._companion and self._stop.is_set():
            self._signal(plan.name, DRAIN_SIGNAL)  # Its predecessor has taken the news with it.
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # It died: its exit code tells.
            process.stdin.write(self._config_json)
            process.stdin.close()
            await process.stdin.wait_closed()
        _LOG.info("process.started", extra={"which": plan.name, "pid": process.pid})
        return process

    # Stopping.

    async def _stop_in_order(self) -> None:
        _LOG.info("drain.started", extra={"drain_s": self._drain_s, "grace_s": self._grace_s})
        self._signal(self._companion.name, DRAIN_SIGNAL)
        await self._unless_hurried(asyncio.sleep(self._drain_s), self._drain_s)
        self._is_stopping = True
        for plan in self._workers:
            plan.socket.close()
            self._signal(plan.name, signal.SIGTERM)
        await self._ended([plan.name for plan in self._workers], self._grace_s + _KILL_AFTER_S)
        self._companion.socket.close()
        self._signal(self._companion.name, signal.SIGTERM)
        await self._ended([self._companion.name], _KILL_AFTER_S)
        _LOG.info("drain.complete")

    async def _ended(self, names: Sequence[str], timeout_s: float) -> None:
        """Wait for processes to end; kill those that do not."""
        processes = [self._running[name] for name in names if name in self._running]
        waiting = asyncio.gather(*(process.wait() for process in processes))
        await self._unless_hurried(waiting, timeout_s)
        for name in names:
            if self._signal(name, signal.SIGKILL):
                _LOG.error("process.killed", extra={"which": name})

    async def _unless_hurried(
        self, awaited: asyncio.Future[list[int]] | Coroutine[None, None, None], timeout_s: float
    ) -> None:
        """Await something for a time, or until a second request to stop."""
        waits = [asyncio.ensure_future(awaited), asyncio.create_task(self._hurry.wait())]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    def _signal(self, name: str, number: signal.Signals) -> bool:
        process = self._running.get(name)
        if process is None or process.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        return True

    def _stops(self) -> bool:
        return self._is_stopping

    def _kill_all(self) -> None:
        self._is_stopping = True
        for name in tuple(self._running):
            self._signal(name, signal.SIGKILL)
