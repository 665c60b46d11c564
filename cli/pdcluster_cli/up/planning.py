"""What to do next: from a snapshot to actions.

Pure and level-triggered: it looks at what is, not at what happened, so it may be asked at any
moment and as often as one likes. The rules, in the order of importance:

- Ending: the proxy leaves first (it lets running exchanges finish), then prefill engines (they
  wait for their leases to be read), then decode engines.
- What is wanted and has ended is launched when its back-off is over.
- What is no longer wanted leaves only when all that is wanted serves; prefill engines first, since
  a request that was prefilled on one needs a decode engine of the same revision; each is taken out
  of the proxy's list a moment before it is stopped.
- What takes longer than its start-up budget, or stopped answering, is killed; what is wanted comes
  back by the second rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from pdcluster_cli.up.lifecycle import Phase
from pdcluster_cli.up.snapshot import Ending, Kind, Member, Snapshot, Stop, is_ready

__all__ = ["Action", "Drain", "Forget", "Kill", "KillReason", "Launch", "Terminate", "plan"]


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a process for a member."""

    name: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Take a member out of the proxy's list; it goes on serving what it has."""

    name: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask a member to stop; its guard gives it its grace."""

    name: str


class KillReason(StrEnum):
    """Why a member is killed rather than asked."""

    SILENT = "silent"
    """It has not answered its probe for too long."""
    OVERDUE = "overdue"
    """It was not ready within its start-up budget."""
    NEVER_SERVED = "never-served"
    """It is no longer wanted and holds nothing yet."""
    AT_ONCE = "at-once"
    """The whole is to end at once."""


@dataclass(frozen=True, slots=True)
class Kill:
    """End a member and its tree at once."""

    name: str
    reason: KillReason


@dataclass(frozen=True, slots=True)
class Forget:
    """A member has left; nothing of it remains."""

    name: str


Action: TypeAlias = Launch | Drain | Terminate | Kill | Forget


def plan(snapshot: Snapshot, *, now: float) -> tuple[Action, ...]:
    """Return what to do now, at most one action per member.

    Args:
        snapshot: The snapshot.
        now: Monotonic seconds.
    """
    if snapshot.ending is not Ending.NOT:
        return tuple(_ending(snapshot))
    actions: list[Action] = []
    for member in snapshot.members:
        action = _wanted(member, now) if member.wanted else _unwanted(member, snapshot, now)
        if action is not None:
            actions.append(action)
    return tuple(actions)


def _is_loading(member: Member) -> bool:
    return member.phase in {Phase.STARTING, Phase.LOADING}


def _ending(snapshot: Snapshot) -> Iterator[Action]:
    alive = [member for member in snapshot.members if member.is_alive]
    kinds = {member.kind for member in alive}
    first = next((kind for kind in (Kind.PROXY, Kind.PREFILL, Kind.DECODE) if kind in kinds), None)
    for member in alive:
        if snapshot.ending is Ending.AT_ONCE:
            if member.stop is not Stop.FORCED:
                yield Kill(member.name, KillReason.AT_ONCE)
        elif member.stop is Stop.NOT:
            if _is_loading(member):
                yield Kill(member.name, KillReason.NEVER_SERVED)
            elif member.kind is first:
                yield Terminate(member.name)


def _wanted(member: Member, now: float) -> Action | None:
    if not member.is_alive:
        due = member.launch_at is not None and now >= member.launch_at
        return Launch(member.name) if due else None
    if member.stop is not Stop.NOT:
        return None
    probes = member.program.probes
    if _is_loading(member) and now - member.launched_at >= probes.startup.budget_s:
        return Kill(member.name, KillReason.OVERDUE)
    if member.phase is Phase.READY and member.missed >= probes.liveness.failures:
        return Kill(member.name, KillReason.SILENT)
    return None


def _unwanted(member: Member, snapshot: Snapshot, now: float) -> Action | None:
    if not member.is_alive:
        return Forget(member.name)
    if _is_loading(member) and member.stop is Stop.NOT:
        return Kill(member.name, KillReason.NEVER_SERVED)
    if member.stop is not Stop.NOT or not _may_leave(member, snapshot):
        return None
    if member.kind is Kind.PROXY:
        return Terminate(member.name)
    if member.phase is not Phase.DRAINING:
        return Drain(member.name)
    return Terminate(member.name) if now - member.since >= snapshot.settle_s else None


def _may_leave(member: Member, snapshot: Snapshot) -> bool:
    if not is_ready(snapshot):
        return False
    if member.kind is not Kind.DECODE:
        return True
    # Whatever an old prefill engine has granted can only be read by a decode engine of its kind.
    stays = any(other.wanted and other.identity == member.identity for other in snapshot.members)
    return stays or not any(
        other.kind is Kind.PREFILL and not other.wanted and other.is_alive
        for other in snapshot.members
    )
