"""The life of one program under ``pdcluster up``, as a table.

Pure. A program is *starting* until it says anything, *loading* until it answers its probe, *ready*
while it serves, *draining* once it was told to leave, *exited* when it has ended. One that exited
while it is still wanted is launched again, later each time it fails in a row; that is decided in
:mod:`planning`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Final

from pdcluster_lease.errors import PDClusterError

__all__ = [
    "STEADY_S",
    "TRANSITIONS",
    "Event",
    "Impossible",
    "ImpossibleEventError",
    "Phase",
    "backoff_s",
    "next_phase",
]

_BACKOFF_FIRST_S: Final = 1.0
_BACKOFF_MAX_S: Final = 60.0
_BACKOFF_DOUBLINGS_MAX: Final = 10
STEADY_S: Final = 60.0
"""A program that was ready for this long has recovered: its next failure counts as the first."""


class Phase(StrEnum):
    """Where a program is in its life."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    EXITED = "exited"


class Event(StrEnum):
    """What happens to a program."""

    LAUNCHED = "launched"
    """A process was started for it."""
    SPOKE = "spoke"
    """It wrote to its log."""
    ANSWERED = "answered"
    """Its probe succeeded."""
    TOLD_TO_LEAVE = "told-to-leave"
    """It gets no new work from now on."""
    ENDED = "ended"
    """Its process has ended."""


class ImpossibleEventError(PDClusterError):
    """An event that cannot happen in this phase: a bug of ours."""

    reason: ClassVar[str] = "ImpossibleEvent"


class Impossible(StrEnum):
    """Why a pair cannot happen."""

    LIVES_ALREADY = "a living program is not launched again"
    IS_DEAD = "a dead program neither speaks nor answers nor ends"


TRANSITIONS: Final[Mapping[tuple[Phase, Event], Phase | Impossible]] = {
    (Phase.STARTING, Event.LAUNCHED): Impossible.LIVES_ALREADY,
    (Phase.STARTING, Event.SPOKE): Phase.LOADING,
    (Phase.STARTING, Event.ANSWERED): Phase.READY,
    (Phase.STARTING, Event.TOLD_TO_LEAVE): Phase.DRAINING,
    (Phase.STARTING, Event.ENDED): Phase.EXITED,
    (Phase.LOADING, Event.LAUNCHED): Impossible.LIVES_ALREADY,
    (Phase.LOADING, Event.SPOKE): Phase.LOADING,
    (Phase.LOADING, Event.ANSWERED): Phase.READY,
    (Phase.LOADING, Event.TOLD_TO_LEAVE): Phase.DRAINING,
    (Phase.LOADING, Event.ENDED): Phase.EXITED,
    (Phase.READY, Event.LAUNCHED): Impossible.LIVES_ALREADY,
    (Phase.READY, Event.SPOKE): Phase.READY,
    (Phase.READY, Event.ANSWERED): Phase.READY,
    (Phase.READY, Event.TOLD_TO_LEAVE): Phase.DRAINING,
    (Phase.READY, Event.ENDED): Phase.EXITED,
    (Phase.DRAINING, Event.LAUNCHED): Impossible.LIVES_ALREADY,
    (Phase.DRAINING, Event.SPOKE): Phase.DRAINING,
    (Phase.DRAINING, Event.ANSWERED): Phase.DRAINING,
    (Phase.DRAINING, Event.TOLD_TO_LEAVE): Phase.DRAINING,
    (Phase.DRAINING, Event.ENDED): Phase.EXITED,
    (Phase.EXITED, Event.LAUNCHED): Phase.STARTING,
    (Phase.EXITED, Event.SPOKE): Impossible.IS_DEAD,
    (Phase.EXITED, Event.ANSWERED): Impossible.IS_DEAD,
    (Phase.EXITED, Event.TOLD_TO_LEAVE): Phase.EXITED,
    (Phase.EXITED, Event.ENDED): Impossible.IS_DEAD,
}
"""Every pair: the phase it leads to, or why it cannot happen."""


def next_phase(phase: Phase, event: Event) -> Phase:
    """Return the phase after an event.

    Raises:
        ImpossibleEventError: The event cannot happen in this phase.
    """
    target = TRANSITIONS[phase, event]
    if isinstance(target, Impossible):
        raise ImpossibleEventError(f"{event} while {phase}: {target}")
    return target


def backoff_s(failures: int) -> float:
    """Return how long to wait before the next launch.

    Args:
        failures: Failures in a row, 1 for the first.
    """
    doublings = min(max(0, failures - 1), _BACKOFF_DOUBLINGS_MAX)
    return min(_BACKOFF_FIRST_S * 2.0**doublings, _BACKOFF_MAX_S)
