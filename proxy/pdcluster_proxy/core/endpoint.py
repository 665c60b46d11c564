"""The endpoint machine: when an engine is left out of the pool, and when it returns.

Pure. One table, (state, event) to a transition. The companion runs it for the whole proxy on what
the workers report and on its own checks, so that one worker's bad experience spares the others.

Theory of operation: a new endpoint is UNPROVEN until its first check passes, for nobody has seen it
work and missing knowledge is not health; since it has done nothing wrong, it then serves without
probation. A READY endpoint takes work. One failed connect, or three bad answers in a row, eject it:
EJECTED endpoints get none. A local failure ends as soon as an active check passes, since the check
proves the opposite; bad answers end after a time that doubles from 2.5 s to 10 s. Whoever returns
is on probation: the next failure ejects it again at once. DRAINING endpoints finish what they have
and take nothing new, whatever they were before; GONE ones are dropped from the table. A client's
fault (4xx) is never an event here.

Where no endpoint of a role is READY, the EJECTED ones serve after all (panic, ``picker.py``); so
EJECTED holds nobody that was never seen to work or that is on its way out.

Source: Envoy's outlier detection; ``routing.md`` section 9.4 of the design.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pdcluster_proxy.core.messages import EndpointState

__all__ = [
    "DISCOVERED",
    "TABLE",
    "EndpointEvent",
    "EndpointRow",
    "EndpointStatus",
    "may_eject",
    "step",
]

UPSTREAM_FAILURES_TO_EJECT: Final = 3
"""One bad answer may be the request's fault; a failed connect, in contrast, is proof enough."""
FIRST_EJECTION_S: Final = 2.5
LONGEST_EJECTION_S: Final = 10.0
"""A transient error must not condemn an endpoint: it is tried again within 10 s."""
MAX_EJECTED_SHARE: Final = 0.5
"""Never more than half of a role: beyond it the record is more likely wrong than the engines."""


class EndpointEvent(StrEnum):
    """What can happen to an endpoint."""

    SUCCEEDED = "Succeeded"
    FAILED_LOCALLY = "FailedLocally"
    FAILED_UPSTREAM = "FailedUpstream"
    CHECK_PASSED = "CheckPassed"
    CHECK_FAILED = "CheckFailed"
    DRAIN = "Drain"
    UNDRAIN = "Undrain"
    DELETED = "Deleted"
    TICK = "Tick"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatus:
    """One endpoint's standing.

    Attributes:
        state: Where it is in the machine.
        upstream_failures: Bad answers in a row.
        ejections: Ejections since it last proved itself; sets the length of the next one.
        until: Monotonic instant the present ejection ends at, or None where a check ends it.
        on_probation: It has returned from an ejection and not served since: the next bad answer
            ejects it again.
        undrains_to: While it is DRAINING: the state it goes to should it not have to go after all.
    """

    state: EndpointState = EndpointState.READY
    upstream_failures: int = 0
    ejections: int = 0
    until: float | None = None
    on_probation: bool = False
    undrains_to: EndpointState = EndpointState.READY


DISCOVERED: Final = EndpointStatus(state=EndpointState.UNPROVEN)
"""Where every endpoint begins."""

EndpointRow = Callable[[EndpointStatus, float, bool], EndpointStatus]
"""One row: (status, now, whether an ejection is allowed) to the next status."""


def step(
    status: EndpointStatus, event: EndpointEvent, *, now: float, ejection_allowed: bool = True
) -> EndpointStatus:
    """Apply one event.

    Args:
        status: The endpoint's standing.
        event: What happened.
        now: Monotonic seconds.
        ejection_allowed: From :func:`may_eject`; without it failures are only counted.
    """
    return TABLE[status.state, event](status, now, ejection_allowed)


def may_eject(states: Mapping[str, EndpointState], name: str) -> bool:
    """Tell whether at most half of its role would be left out with ``name`` ejected.

    Draining and unproven endpoints count on neither side: they take no new work anyway, and a dead
    engine must not stay because others are still starting.

    Args:
        states: Every endpoint of one role.
        name: One of them.
    """
    serving = [n for n, s in states.items() if s in {EndpointState.READY, EndpointState.EJECTED}]
    ejected = sum(states[n] is EndpointState.EJECTED for n in serving if n != name)
    return ejected + 1 <= len(serving) * MAX_EJECTED_SHARE


def _stay(status: EndpointStatus, _now: float, _allowed: bool) -> EndpointStatus:  # noqa: FBT001 (a row's shape)
    return status


def _proved(status: EndpointStatus, _now: float, _allowed: bool) -> EndpointStatus:  # noqa: FBT001 (a row's shape)
    """A good answer clears the record."""
    if not (status.upstream_failures or status.ejections or status.on_probation):
        return status
    return replace(status, upstream_failures=0, ejections=0, on_probation=False)


def _eject(status: EndpointStatus, *, until: float | None) -> EndpointStatus:
    return replace(
        status,
        state=EndpointState.EJECTED,
        upstream_failures=0,
        ejections=status.ejections + 1,
        until=until,
        on_probation=False,
    )


def _failed_locally(status: EndpointStatus, _now: float, allowed: bool) -> EndpointStatus:  # noqa: FBT001 (a row's shape)
    return _eject(status, until=None) if allowed else status


def _failed_upstream(status: EndpointStatus, now: float, allowed: bool) -> EndpointStatus:  # noqa: FBT001 (a row's shape)
    failures = status.upstream_failures + 1
    enough = status.on_probation or failures >= UPSTREAM_FAILURES_TO_EJECT
    if not (enough and allowed):
        return replace(status, upstream_failures=failures)
    length = min(LONGEST_EJECTION_S, FIRST_EJECTION_S * 2.0**status.ejections)
    return _eject(status, until=now + length)


def _begin(status: EndpointStatus, _now: float, _allowed: bool) -> EndpointStatus:  # noqa: FBT001 (a row's shape)
    """The first passed check: who was unproven has failed nobody."""
    return replace(status, state=EndpointState.READY)


def _return(status: EndpointStatus) -> EndpointStatus:
    return replace(status, state=EndpointState.READY, until=None, on_probation=True)


def _check_passed(status: EndpointStatus, _now: float, _allowed: bool) -> EndpointStatus:  # noqa: FBT001 (a row's shape)
    """A passed check answers a failed connect, not a bad answer."""
    return _return(status) if status.until is None else status


def _tick(status: EndpointStatus, now: float, _allowed: bool) -> EndpointStatus:  # noqa: FBT001 (a row's shape)
    over = status.until is not None and now >= status.until
    return _return(status) if over else status


def _drain(status: EndpointStatus, _now: float, _allowed: bool) -> EndpointStatus:  # noqa: FBT001 (a row's shape)
    return replace(status, state=EndpointState.DRAINING, undrains_to=status.state)


def _undrain(status: EndpointStatus, _now: float, _allowed: bool) -> EndpointStatus:  # noqa: FBT001 (a row's shape)
    return replace(status, state=status.undrains_to, undrains_to=EndpointState.READY)


def _beneath(event: EndpointEvent) -> EndpointRow:
    """Let an event change what a draining endpoint goes back to; it drains on."""

    def row(status: EndpointStatus, now: float, allowed: bool) -> EndpointStatus:  # noqa: FBT001 (a row's shape)
        before = replace(status, state=status.undrains_to, undrains_to=EndpointState.READY)
        after = TABLE[before.state, event](before, now, allowed)
        if after is before:
            return status
        return replace(after, state=EndpointState.DRAINING, undrains_to=after.state)

    return row


def _delete(status: EndpointStatus, _now: float, _allowed: bool) -> EndpointStatus:  # noqa: FBT001 (a row's shape)
    return replace(status, state=EndpointState.GONE)


_READY: Final = {
    EndpointEvent.SUCCEEDED: _proved,
    EndpointEvent.FAILED_LOCALLY: _failed_locally,
    EndpointEvent.FAILED_UPSTREAM: _failed_upstream,
    EndpointEvent.CHECK_PASSED: _stay,
    EndpointEvent.CHECK_FAILED: _failed_locally,
    EndpointEvent.DRAIN: _drain,
    EndpointEvent.UNDRAIN: _stay,
    EndpointEvent.DELETED: _delete,
    EndpointEvent.TICK: _stay,
}
_UNPROVEN: Final = {
    # Only a check of ours proves it: a worker's word is of an earlier engine of this name.
    EndpointEvent.SUCCEEDED: _stay,
    EndpointEvent.FAILED_LOCALLY: _stay,
    EndpointEvent.FAILED_UPSTREAM: _stay,
    EndpointEvent.CHECK_PASSED: _begin,
    EndpointEvent.CHECK_FAILED: _stay,
    EndpointEvent.DRAIN: _drain,
    EndpointEvent.UNDRAIN: _stay,
    EndpointEvent.DELETED: _delete,
    EndpointEvent.TICK: _stay,
}
_EJECTED: Final = {
    # Legs that were open at the ejection may still end; they change nothing.
    EndpointEvent.SUCCEEDED: _stay,
    EndpointEvent.FAILED_LOCALLY: _stay,
    EndpointEvent.FAILED_UPSTREAM: _stay,
    EndpointEvent.CHECK_PASSED: _check_passed,
    EndpointEvent.CHECK_FAILED: _stay,
    EndpointEvent.DRAIN: _drain,
    EndpointEvent.UNDRAIN: _stay,
    EndpointEvent.DELETED: _delete,
    EndpointEvent.TICK: _tick,
}
_DRAINING: Final = {
    # No new work goes there, so there is nothing to eject it from.
    EndpointEvent.SUCCEEDED: _stay,
    EndpointEvent.FAILED_LOCALLY: _stay,
    EndpointEvent.FAILED_UPSTREAM: _stay,
    EndpointEvent.CHECK_PASSED: _beneath(EndpointEvent.CHECK_PASSED),
    EndpointEvent.CHECK_FAILED: _stay,
    EndpointEvent.DRAIN: _stay,
    EndpointEvent.UNDRAIN: _undrain,
    EndpointEvent.DELETED: _delete,
    EndpointEvent.TICK: _beneath(EndpointEvent.TICK),
}

TABLE: Final[Mapping[tuple[EndpointState, EndpointEvent], EndpointRow]] = {
    (state, event): row
    for state, rows in (
        (EndpointState.UNPROVEN, _UNPROVEN),
        (EndpointState.READY, _READY),
        (EndpointState.EJECTED, _EJECTED),
        (EndpointState.DRAINING, _DRAINING),
        # An endpoint that is gone hears nothing any more; discovery makes a new one.
        (EndpointState.GONE, dict.fromkeys(EndpointEvent, _stay)),
    )
    for event, row in rows.items()
}
