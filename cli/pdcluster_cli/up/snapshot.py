"""All programs of one run of ``pdcluster up``, at one moment.

Pure. A frozen snapshot; :func:`observed` makes the next one from what happened, :mod:`planning`
decides what to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from pdcluster_api.proxy_config import EndpointsFile, Role
from pdcluster_cli.up.lifecycle import STEADY_S, Event, Phase, backoff_s, next_phase
from pdcluster_operator.program.engine import endpoint_of
from pdcluster_operator.program.programs import EngineProgram, Probe, ProxyProgram

__all__ = [
    "Ending",
    "Kind",
    "Member",
    "Program",
    "Snapshot",
    "Stop",
    "endpoints_of",
    "has_replaced_proxy",
    "host_of",
    "is_ready",
    "kind_of",
    "observed",
    "probed",
    "probed_host",
]

Program: TypeAlias = EngineProgram | ProxyProgram


class Kind(StrEnum):
    """What a member is."""

    PREFILL = "prefill"
    DECODE = "decode"
    PROXY = "proxy"


class Stop(StrEnum):
    """How far a member was asked to stop."""

    NOT = "not"
    ASKED = "asked"
    """It was sent TERM."""
    FORCED = "forced"
    """Its tree is being killed."""


class Ending(StrEnum):
    """Whether the whole cluster is to end."""

    NOT = "not"
    DRAINING = "draining"
    """Everything finishes what it has."""
    AT_ONCE = "at-once"
    """Everything is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One program of the run.

    Attributes:
        name: Unique among all members that live at the same time.
        kind: What it is.
        identity: What its program is apart from its place; members of equal identity replace one
            another.
        program: The program.
        wanted: It belongs to what the file asks for; else it is on its way out.
        phase: Where it is in its life.
        since: When it entered that phase, monotonic seconds.
        launched_at: When its last process was started.
        launches: Processes started for it so far.
        failures: Unplanned ends in a row.
        launch_at: When to launch it (again); None while it lives or has left.
        was_ready: It has been ready at least once.
        missed: Failed probes in a row since it was last well.
        stop: How far it was asked to stop.
        exit_code: How its last process ended.
        pid: Its guard's process id while it lives.
    """

    name: str
    kind: Kind
    identity: str
    program: Program
    wanted: bool = True
    phase: Phase = Phase.EXITED
    since: float
    launched_at: float = 0.0
    launches: int = 0
    failures: int = 0
    launch_at: float | None = None
    was_ready: bool = False
    missed: int = 0
    stop: Stop = Stop.NOT
    exit_code: int | None = None
    pid: int | None = None

    @property
    def is_alive(self) -> bool:
        """Whether a process exists for it."""
        return self.phase is not Phase.EXITED

    @property
    def has_failed_to_start(self) -> bool:
        """Whether it ended, was launched before, and has never been ready."""
        return not self.is_alive and self.launches > 0 and not self.was_ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All members, and whether the whole is to end.

    Attributes:
        members: In the order in which they were added.
        ending: Whether the whole is to end.
        settle_s: How long a draining engine waits for the proxy to learn of it.
    """

    members: tuple[Member, ...] = ()
    ending: Ending = Ending.NOT
    settle_s: float

    def member(self, name: str) -> Member | None:
        """Return the member of that name."""
        return next((member for member in self.members if member.name == name), None)

    def with_member(self, changed: Member) -> Snapshot:
        """Return the snapshot with one member in place of the one of its name."""
        return replace(
            self,
            members=tuple(
                changed if member.name == changed.name else member for member in self.members
            ),
        )


def observed(member: Member, event: Event, *, now: float, exit_code: int | None = None) -> Member:
    """Return the member after an event.

    Args:
        member: The member before it.
        event: What happened.
        now: Monotonic seconds.
        exit_code: With ``ENDED``: how its process ended.

    Raises:
        ImpossibleEventError: The event cannot happen in the member's phase.
    """
    phase = next_phase(member.phase, event)
    since = member.since if phase is member.phase else now
    changed = replace(member, phase=phase, since=since)
    if event is Event.LAUNCHED:
        return replace(
            changed, launches=member.launches + 1, launched_at=now, launch_at=None, missed=0
        )
    if event is Event.ANSWERED:
        return replace(changed, was_ready=member.was_ready or phase is Phase.READY, missed=0)
    if event is not Event.ENDED:
        return changed
    recovered = member.phase is Phase.READY and now - member.since >= STEADY_S
    failures = 1 if recovered else member.failures + 1
    again = member.wanted and member.phase is not Phase.DRAINING
    return replace(
        changed,
        exit_code=exit_code,
        failures=failures,
        launch_at=now + backoff_s(failures) if again else None,
        stop=Stop.NOT,
        pid=None,
    )


def probed(member: Member, *, well: bool, now: float) -> Member:
    """Return a living member after its probe."""
    if well:
        return observed(member, Event.ANSWERED, now=now)
    return replace(member, missed=member.missed + 1)


def is_ready(snapshot: Snapshot) -> bool:
    """Whether everything that is wanted serves."""
    wanted = [member for member in snapshot.members if member.wanted]
    return bool(wanted) and all(
        member.phase is Phase.READY and member.stop is Stop.NOT for member in wanted
    )


def has_replaced_proxy(snapshot: Snapshot) -> bool:
    """Whether a proxy is left whose successor is wanted."""
    return any(
        member.kind is Kind.PROXY and not member.wanted and member.is_alive
        for member in snapshot.members
    )


def endpoints_of(snapshot: Snapshot) -> EndpointsFile:
    """Return what the proxy should know: engines that serve, and those that drain.

    An engine that still loads, is being killed or has ended is left out: the proxy could only fail
    on it.
    """
    return EndpointsFile(
        endpoints=tuple(
            endpoint_of(member.program, name=member.name, draining=member.phase is Phase.DRAINING)
            for member in snapshot.members
            if isinstance(member.program, EngineProgram)
            and member.was_ready
            and member.stop is not Stop.FORCED
            and member.phase in {Phase.READY, Phase.DRAINING}
        )
    )


def host_of(program: Program) -> str:
    """Return the address a program listens on."""
    if isinstance(program, EngineProgram):
        assert isinstance(program.host, str), "a pod's address is not known here"
        return program.host
    return program.config.listen.host


def probed_host(program: Program, probe: Probe) -> str:
    """Return the address at which a program's probe is to be asked."""
    if isinstance(program, ProxyProgram) and probe.port == program.config.admin.port:
        return program.config.admin.host
    return host_of(program)


def kind_of(role: Role) -> Kind:
    """Return what an engine of a role is."""
    return Kind.PREFILL if role is Role.PREFILL else Kind.DECODE
