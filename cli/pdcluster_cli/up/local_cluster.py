"""Runs a resource's engines and proxy as processes of this machine. Usable as a library.

Shell: observes (processes, probes, logs), asks :mod:`planning` what to do, and does it; it decides
nothing itself. ::

    async with LocalCluster(cluster, site=site, launcher=launcher, address=address) as local:
        await local.wait_ready()
        ...  # local.url answers

Leaving the block drains and stops everything. Use it from the main thread: the kernel ends the
programs when the thread that started them ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self, assert_never

from pdcluster_api.proxy_config import EndpointsFile
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_cli.errors import CliError, StartError
from pdcluster_cli.files import write_whole
from pdcluster_cli.process_tree import adopt_orphans
from pdcluster_cli.up.edits import Edit, edit_between
from pdcluster_cli.up.failures import restart_message, start_error
from pdcluster_cli.up.lifecycle import Event, Phase
from pdcluster_cli.up.listening import Listener, Silent
from pdcluster_cli.up.planning import (
    Action,
    Drain,
    Forget,
    Kill,
    KillReason,
    Launch,
    Terminate,
    plan,
)
from pdcluster_cli.up.probing import is_well, probing_client
from pdcluster_cli.up.processes import Launcher, Running
from pdcluster_cli.up.snapshot import (
    Ending,
    Member,
    Snapshot,
    Stop,
    endpoints_of,
    has_replaced_proxy,
    is_ready,
    observed,
    probed,
    probed_host,
)
from pdcluster_cli.up.view import admin_url_of, url_of
from pdcluster_cli.up.wishes import Site, Wish, retargeted, wish_for
from pdcluster_operator.program.programs import EngineProgram, ProxyProgram

__all__ = ["LocalCluster"]

_TICK_S: Final = 0.2
"""Longest time between two looks at the clock: back-off, settle time and budgets end in between."""

_START_PROBE_PERIOD_S: Final = 0.2
"""Seconds between two probes of a program that is still to become ready: a person is waiting."""

_HANDOVER_S: Final = 10.0
"""Longest wait for a replaced proxy to be gone.

It stops accepting at once and ends with its last answer, which may be a long one: after this time
only answers keep it.
"""

_TAIL_LINES: Final = 15
_CANNOT_LAUNCH = 126
"""Exit code of a program that could not even be launched, as a shell gives it."""


@dataclass(slots=True)
class _Process:
    """A living process and the task that probes it."""

    running: Running
    prober: asyncio.Task[None]


class LocalCluster:
    """One resource, running on this machine.

    All mutable state is here: the latest snapshot, the processes by member name, the wish and the
    one before.
    """

    def __init__(
        self,
        cluster: PDCluster,
        *,
        site: Site,
        launcher: Launcher,
        address: Callable[[Iterable[str], Iterable[int]], str],
        listener: Listener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing runs before :meth:`start`.

        Args:
            cluster: The resource.
            site: What this machine gives the programs.
            launcher: Starts processes.
            address: Gives a loopback address, apart from those it is told first, on which the ports
                it is told next are free.
            listener: Is told what happens.
            clock: Monotonic seconds.

        Raises:
            TimingError: The resource's lease settings leave no time for a hand-off.
        """
        self._site = site
        self._launcher = launcher
        self._address = address
        self._listener: Listener = listener if listener is not None else Silent()
        self._clock = clock
        self._wish = wish_for(cluster, site)
        self._served_wish: Wish | None = None
        self._snapshot = Snapshot(settle_s=0.0)
        self._processes: dict[str, _Process] = {}
        self._killed_for: dict[str, KillReason] = {}
        self._published: EndpointsFile | None = None
        self._published_for: Snapshot | None = None
        self._failure: CliError | None = None
        self._write_failure = ""
        self._woken = asyncio.Event()
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._loop: asyncio.Task[None] | None = None
        self._tasks = asyncio.TaskGroup()
        self._client = probing_client()

    # --- the outside ---------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start."""
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Drain and stop; at once where the block failed."""
        await asyncio.shield(self.stop(at_once=error is not None))

    @property
    def snapshot(self) -> Snapshot:
        """What there is at this moment."""
        return self._snapshot

    @property
    def url(self) -> str:
        """Where clients connect."""
        return url_of(self._snapshot)

    @property
    def admin_url(self) -> str:
        """Where the proxy that serves, or is to, has its admin page."""
        return admin_url_of(self._snapshot)

    @property
    def endpoints(self) -> EndpointsFile:
        """What the proxy is told of the engines at this moment."""
        return endpoints_of(self._snapshot)

    def start(self) -> None:
        """Begin to run what the resource asks for; does not wait until it is ready."""
        # Whatever a killed guard leaves becomes our child, so that it can be found and ended.
        adopt_orphans()
        self._retarget(self._wish)
        self._publish()
        self._loop = asyncio.create_task(self._run(), name="local cluster")

    async def wait_ready(self) -> None:
        """Wait until every engine serves, the proxy does, and the proxy sees the engines.

        A proxy that was replaced has stopped accepting by then: it shares its address with its
        successor, and a client that reached it would be answered as before the edit.

        Raises:
            StartError: A program ended before it was ever ready.
            StartTimeoutError: A program was not ready within its start-up budget.
        """
        await self._wait_until(lambda: self._failure is not None or is_ready(self._snapshot))
        while self._failure is None and not await self._proxies_are_ready():  # noqa: ASYNC110 - the state is another process's
            await asyncio.sleep(_START_PROBE_PERIOD_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HANDOVER_S):
                await self._wait_until(
                    lambda: self._failure is not None or not has_replaced_proxy(self._snapshot)
                )
        if self._failure is not None:
            raise self._failure

    async def wait_failed(self) -> CliError:
        """Wait until the run cannot go on; return why."""
        await self._wait_until(lambda: self._failure is not None)
        assert self._failure is not None
        return self._failure

    @property
    def resource(self) -> PDCluster:
        """The resource that was asked for last; it may still be starting."""
        return self._wish.cluster

    def apply(self, cluster: PDCluster) -> Edit:
        """Take over an edited resource; programs it has in common with the old stay.

        Returns:
            What it changes.

        Raises:
            TimingError: Its lease settings leave no time for a hand-off; the old one stays.
            PortTakenError: There is no room for a further engine; the old one stays.
        """
        wish, before, old = wish_for(cluster, self._site), self._wish.cluster, self._snapshot
        self._retarget(wish)
        self._wish = wish
        return edit_between(before, cluster, old, self._snapshot)

    async def stop(self, *, at_once: bool = False) -> None:
        """Drain and stop everything; call again with ``at_once`` to hurry."""
        if self._snapshot.ending is not Ending.AT_ONCE:
            ending = Ending.AT_ONCE if at_once else Ending.DRAINING
            self._update(replace(self._snapshot, ending=ending))
        if self._loop is not None:
            await asyncio.wait((self._loop,))
            self._loop.result()

    # --- the loop ------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            async with self._tasks:
                while self._snapshot.ending is Ending.NOT or self._processes:
                    self._woken.clear()
                    # Before and after: what was seen comes before what is done about it.
                    self._listener.changed(self._snapshot)
                    for action in plan(self._snapshot, now=self._clock()):
                        await self._execute(action)
                    self._look_around()
                    # Not asyncio.wait_for: in Python 3.11 it can swallow a cancellation.
                    waking = asyncio.ensure_future(self._woken.wait())
                    await asyncio.wait((waking,), timeout=_TICK_S)
                    waking.cancel()
                self._look_around()
        finally:
            # Empty unless something of ours has failed.
            for process in self._processes.values():
                process.running.kill()
            for _, waiter in self._waiters:
                waiter.cancel()
            await self._client.aclose()
            adopt_orphans(adopt=False)

    def _look_around(self) -> None:
        """Pass on what has become of the programs."""
        if is_ready(self._snapshot):
            self._served_wish = self._wish
        self._publish()
        self._listener.changed(self._snapshot)
        waiting = []
        for holds, waiter in self._waiters:
            if waiter.done():
                continue
            if holds():
                waiter.set_result(None)
            else:
                waiting.append((holds, waiter))
        self._waiters = waiting

    async def _wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition; where the loop ends first, raise what ended it."""
        assert self._loop is not None, "start() comes first"
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((holds, waiter))
        self._woken.set()
        await asyncio.wait((waiter, self._loop), return_when=asyncio.FIRST_COMPLETED)
        if not holds():
            self._loop.result()

    def _update(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._woken.set()

    def _retarget(self, wish: Wish) -> None:
        spec = wish.cluster.spec
        ports = (spec.engine.port, spec.kv_transfer.side_channel_port, self._site.admin_port)
        self._update(
            retargeted(
                self._snapshot,
                wish,
                now=self._clock(),
                address=lambda taken: self._address(taken, ports),
            )
        )

    def _note(self, name: str, event: Event, *, exit_code: int | None = None) -> Member:
        changed = observed(self._named(name), event, now=self._clock(), exit_code=exit_code)
        self._update(self._snapshot.with_member(changed))
        return changed

    def _named(self, name: str) -> Member:
        member = self._snapshot.member(name)
        assert member is not None, name
        return member

    async def _execute(self, action: Action) -> None:
        match action:
            case Launch(name):
                await self._launch(self._named(name))
            case Drain(name):
                self._note(name, Event.TOLD_TO_LEAVE)
            case Terminate(name):
                member = self._note(name, Event.TOLD_TO_LEAVE)
                self._update(self._snapshot.with_member(replace(member, stop=Stop.ASKED)))
                self._processes[name].running.terminate()
            case Kill(name, reason):
                self._killed_for[name] = reason
                member = replace(self._named(name), stop=Stop.FORCED)
                self._update(self._snapshot.with_member(member))
                self._processes[name].running.kill()
            case Forget(name):
                left = tuple(member for member in self._snapshot.members if member.name != name)
                self._update(replace(self._snapshot, members=left))
            case _:
                assert_never(action)

    def _publish(self) -> None:
        """Tell the proxy which engines there are, where that has changed."""
        if self._snapshot is self._published_for:
            return
        self._published_for = self._snapshot
        endpoints = self.endpoints
        if endpoints != self._published:
            text = endpoints.model_dump_json(by_alias=True, indent=2)
            try:
                write_whole(Path(self._site.endpoints_file), text)
            except OSError as error:
                self._published_for = None
                self._tell_write_failure(f"the proxy can't be told of the engines: {error}")
                return
            self._published = endpoints
            self._write_failure = ""

    def _tell_write_failure(self, reason: str) -> None:
        """Say once what could not be written; the loop tries again, and everything else goes on."""
        if reason != self._write_failure:
            self._write_failure = reason
            self._listener.told(f"{reason}. Everything goes on as it is; it is tried again.")

    # --- one process ---------------------------------------------------------------------------

    async def _launch(self, member: Member) -> None:
        name = member.name
        try:
            running = await self._start_process(name, member.program)
        except OSError as error:
            # A full disk, no process left: as if it had ended at once.
            self._note(name, Event.LAUNCHED)
            ended = self._note(name, Event.ENDED, exit_code=_CANNOT_LAUNCH)
            self._report_failed_launch(ended, error)
            return
        launched = self._note(name, Event.LAUNCHED)
        self._update(self._snapshot.with_member(replace(launched, pid=running.pid)))
        prober = self._tasks.create_task(self._watch_health(name, running), name=f"probe {name}")
        self._processes[name] = _Process(running=running, prober=prober)
        self._tasks.create_task(self._watch_end(name, running), name=f"end of {name}")

    async def _start_process(self, name: str, program: EngineProgram | ProxyProgram) -> Running:
        if isinstance(program, ProxyProgram):
            text = program.config.model_dump_json(by_alias=True, indent=2)
            write_whole(Path(self._site.run_dir) / f"{name}.json", text)
        return await self._launcher.launch(
            name,
            program.argv,
            # What only a pod can know is left out; `render` lists it.
            env={key: value for key, value in program.env if isinstance(value, str)},
            cwd=self._site.source.cwd if isinstance(program, EngineProgram) else None,
            grace_s=program.grace_s,
            has_sockets=isinstance(program, EngineProgram),
        )

    def _report_failed_launch(self, member: Member, error: OSError) -> None:
        message = f"{member.name} cannot be launched: {error}"
        if self._served_wish is None and member.has_failed_to_start:
            self._failure = StartError(f"{message}. Correct that and try again.")
            self._update(replace(self._snapshot, ending=Ending.AT_ONCE))
        elif self._snapshot.ending is Ending.NOT:
            self._listener.told(f"{message}; it is tried again")

    async def _watch_end(self, name: str, running: Running) -> None:
        code = await running.ended()
        self._processes.pop(name).prober.cancel()
        member = self._note(name, Event.ENDED, exit_code=code)
        reason = self._killed_for.pop(name, None)
        if member.wanted and self._snapshot.ending is Ending.NOT:
            self._report_end(member, running, reason)

    def _report_end(self, member: Member, running: Running, reason: KillReason | None) -> None:
        if not member.has_failed_to_start:
            self._listener.told(restart_message(member, reason))
            return
        error = start_error(
            member, reason, last_lines=running.tail(_TAIL_LINES), log=str(running.log)
        )
        if self._served_wish is None:
            self._failure = error
            self._update(replace(self._snapshot, ending=Ending.AT_ONCE))
        elif self._served_wish is not self._wish:
            # An edit that does not work: the old programs have never stopped serving.
            self._listener.told(f"The edit is undone, the old programs go on. {error}")
            self._wish = self._served_wish
            self._retarget(self._wish)
        else:
            self._listener.told(f"{error} It is tried again.")

    async def _watch_health(self, name: str, running: Running) -> None:
        """Probe a process until it ends, when this task is cancelled."""
        while True:
            member = self._named(name)
            if member.phase is Phase.STARTING and running.has_spoken():
                member = self._note(name, Event.SPOKE)
            serves = member.phase in {Phase.READY, Phase.DRAINING}
            probes = member.program.probes
            probe = probes.liveness if serves else probes.startup
            well = await is_well(self._client, probed_host(member.program, probe), probe)
            before = self._named(name)
            member = probed(before, well=well, now=self._clock())
            if member != before:
                self._update(self._snapshot.with_member(member))
            await asyncio.sleep(probe.period_s if serves else _START_PROBE_PERIOD_S)

    async def _proxies_are_ready(self) -> bool:
        proxies = [
            member.program
            for member in self._snapshot.members
            if member.wanted and isinstance(member.program, ProxyProgram)
        ]
        return all(
            [
                await is_well(
                    self._client,
                    probed_host(proxy, proxy.probes.readiness),
                    proxy.probes.readiness,
                )
                for proxy in proxies
            ]
        )
