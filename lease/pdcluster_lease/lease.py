"""The KV lease on the engine that granted it: a state machine as a table.

Pure. :class:`LeaseTable` is told what happened and when, and says what follows; pinning and
freeing blocks, metrics and logs are the caller's.

Theory of operation. When P's scheduler finishes a prefill that some D will read, the blocks stay
pinned under a lease of ``duration``. It ends in one of two ways: RELEASED, once as many completions
have arrived as the readers announced (or the owner gives it up), or EXPIRED, when its end passes
unrenewed. A heartbeat moves the end to ``max(end, now + extension)``, so it never shortens. The
sweep visits every lease: ends are not in the order of grants once one was renewed, and a reaper
that stops at the first live one strands the others (vLLM #50789, #58222). An ended lease is
forgotten at once, so that to the table ABSENT, RELEASED and EXPIRED are one: a heartbeat for it
does nothing (the sender never learns), and a completion for it is a **late read**: somebody read
blocks that may hold another request's KV by then.

Notifications must be applied before the sweep of the same step, or a heartbeat that waited during
a long step would come too late.

Source:
    vLLM 0.31.0 and later, ``nixl/base_worker.py``: ``_handle_heartbeat``, ``_get_new_notifs``,
    ``_reap_expired_send_leases``; ``nixl/pull_scheduler.py``: ``request_finished``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from pdcluster_lease.errors import LocalProtocolError
from pdcluster_lease.wire import Heartbeat, TransferComplete

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdcluster_lease.params import RequestId
    from pdcluster_lease.timing import LeaseTiming

__all__ = [
    "TRANSITIONS",
    "Abort",
    "Expired",
    "Grant",
    "Granted",
    "Ignored",
    "LateRead",
    "LeaseEvent",
    "LeaseOutcome",
    "LeaseState",
    "LeaseTable",
    "PartlyRead",
    "Released",
    "Renewed",
    "Sweep",
    "Transition",
]


class LeaseState(StrEnum):
    """Where a lease stands; ABSENT is also where the two ends lead."""

    ABSENT = "absent"
    GRANTED = "granted"
    RELEASED = "released"
    EXPIRED = "expired"


# --- events; the other two are what peers send: Heartbeat and TransferComplete -------------------


@dataclass(frozen=True, slots=True)
class Grant:
    """The scheduler finished a prefill that somebody will read."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class Abort:
    """The owner gives the lease up."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class Sweep:
    """Look at every lease for its end."""


LeaseEvent: TypeAlias = Grant | Heartbeat | TransferComplete | Abort | Sweep


# --- outcomes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    """The blocks are pinned until ``expires_at`` (monotonic seconds, the owner's clock)."""

    request_id: RequestId
    expires_at: float


@dataclass(frozen=True, slots=True)
class Renewed:
    """A heartbeat was applied; the end may be the same as before."""

    request_id: RequestId
    old_expires_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class PartlyRead:
    """Some but not all readers are done."""

    request_id: RequestId
    num_reads: int
    consumers: int


@dataclass(frozen=True, slots=True)
class Released:
    """The blocks may be reclaimed: read by all, or given up."""

    request_id: RequestId
    num_reads: int


@dataclass(frozen=True, slots=True)
class Expired:
    """The blocks may be reclaimed: nobody renewed in time."""

    request_id: RequestId
    num_reads: int


@dataclass(frozen=True, slots=True)
class LateRead:
    """A completion came for no lease: a read may have seen another request's KV."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class Ignored:
    """A heartbeat or an abort for no lease; the sender is not told."""

    request_id: RequestId


LeaseOutcome: TypeAlias = Granted | Renewed | PartlyRead | Released | Expired | LateRead | Ignored


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Lease:
    expires_at: float
    num_reads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What a rule may look at; ``lease`` means nothing in state ABSENT."""

    request_id: RequestId
    lease: _Lease
    consumers: int
    timing: LeaseTiming
    now: float


@dataclass(frozen=True, slots=True)
class _Then:
    state: LeaseState
    lease: _Lease
    outcome: LeaseOutcome


_NO_LEASE: Final = _Lease(expires_at=0.0)


def _grant(given: _Given) -> _Then:
    granted = _Lease(expires_at=given.now + given.timing.duration_s)
    outcome = Granted(given.request_id, granted.expires_at)
    return _Then(LeaseState.GRANTED, granted, outcome)


def _renew(given: _Given) -> _Then:
    old = given.lease.expires_at
    end = given.timing.renewed_until(old, now=given.now)
    renewed = _Lease(expires_at=end, num_reads=given.lease.num_reads)
    return _Then(LeaseState.GRANTED, renewed, Renewed(given.request_id, old, end))


def _complete(given: _Given) -> _Then:
    num_reads = given.lease.num_reads + 1
    read = _Lease(expires_at=given.lease.expires_at, num_reads=num_reads)
    if num_reads >= given.consumers:
        return _Then(LeaseState.RELEASED, read, Released(given.request_id, num_reads))
    partly = PartlyRead(given.request_id, num_reads, given.consumers)
    return _Then(LeaseState.GRANTED, read, partly)


def _abort(given: _Given) -> _Then:
    outcome = Released(given.request_id, given.lease.num_reads)
    return _Then(LeaseState.RELEASED, given.lease, outcome)


def _sweep(given: _Given) -> _Then:
    if given.now < given.lease.expires_at:
        return _Then(LeaseState.GRANTED, given.lease, Ignored(given.request_id))
    outcome = Expired(given.request_id, given.lease.num_reads)
    return _Then(LeaseState.EXPIRED, given.lease, outcome)


def _late_read(given: _Given) -> _Then:
    return _Then(LeaseState.ABSENT, given.lease, LateRead(given.request_id))


def _ignore(given: _Given) -> _Then:
    return _Then(LeaseState.ABSENT, given.lease, Ignored(given.request_id))


@dataclass(frozen=True, slots=True)
class Transition:
    """One row: where it may lead, and the rule that decides.

    Attributes:
        to: Every state the rule can lead to; empty where the pair is an error of ours.
        rule: Computes the new state and the outcome; None where the pair is an error.
    """

    to: tuple[LeaseState, ...]
    rule: Callable[[_Given], _Then] | None = None


TRANSITIONS: Final[Mapping[tuple[LeaseState, type[LeaseEvent]], Transition]] = MappingProxyType(
    {
        (LeaseState.ABSENT, Grant): Transition((LeaseState.GRANTED,), _grant),
        (LeaseState.ABSENT, Heartbeat): Transition((LeaseState.ABSENT,), _ignore),
        (LeaseState.ABSENT, TransferComplete): Transition((LeaseState.ABSENT,), _late_read),
        (LeaseState.ABSENT, Abort): Transition((LeaseState.ABSENT,), _ignore),
        # A sweep visits what is held, and only that.
        (LeaseState.ABSENT, Sweep): Transition(()),
        # An engine's request ids are unique, so a second grant is a bug of the caller.
        (LeaseState.GRANTED, Grant): Transition(()),
        (LeaseState.GRANTED, Heartbeat): Transition((LeaseState.GRANTED,), _renew),
        (LeaseState.GRANTED, TransferComplete): Transition(
            (LeaseState.GRANTED, LeaseState.RELEASED), _complete
        ),
        (LeaseState.GRANTED, Abort): Transition((LeaseState.RELEASED,), _abort),
        (LeaseState.GRANTED, Sweep): Transition((LeaseState.GRANTED, LeaseState.EXPIRED), _sweep),
    }
)
"""(state, event) to what may follow. RELEASED and EXPIRED have no rows: an end leads to ABSENT."""


class LeaseTable:
    """All leases one engine holds.

    Args:
        timing: The engine's own lease timing.
    """

    def __init__(self, timing: LeaseTiming) -> None:
        self._timing = timing
        self._held: dict[RequestId, _Lease] = {}  # this is all the mutable state

    @property
    def held(self) -> int:
        """Leases that have not ended."""
        return len(self._held)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._held

    def next_end(self) -> float | None:
        """Return when the first lease would end unrenewed, in the owner's monotonic seconds."""
        return min((lease.expires_at for lease in self._held.values()), default=None)

    def apply(self, event: LeaseEvent, *, now: float) -> tuple[LeaseOutcome, ...]:
        """Apply one event to every lease it concerns and say what followed.

        Args:
            event: What happened.
            now: Monotonic seconds on the owner's clock.

        Returns:
            One outcome per lease concerned; of a sweep only the leases that expired.

        Raises:
            LocalProtocolError: A second grant of one id.
        """
        match event:
            case Sweep():
                swept = [self._step(each, event, now=now) for each in tuple(self._held)]
                return tuple(outcome for outcome in swept if isinstance(outcome, Expired))
            case Heartbeat():
                return tuple(self._step(each, event, now=now) for each in event.request_ids)
            case TransferComplete():
                return (self._step(event.request_id, event, now=now, consumers=event.consumers),)
            case Grant() | Abort():
                return (self._step(event.request_id, event, now=now),)

    def _step(
        self, request_id: RequestId, event: LeaseEvent, *, now: float, consumers: int = 1
    ) -> LeaseOutcome:
        lease = self._held.get(request_id)
        state = LeaseState.ABSENT if lease is None else LeaseState.GRANTED
        row = TRANSITIONS[state, type(event)]
        if row.rule is None:
            raise LocalProtocolError(
                f"{type(event).__name__} cannot happen to the lease {request_id!r} when {state}"
            )
        then = row.rule(
            _Given(
                request_id=request_id,
                lease=_NO_LEASE if lease is None else lease,
                consumers=consumers,
                timing=self._timing,
                now=now,
            )
        )
        assert then.state in row.to, (state, event, then)
        if then.state is LeaseState.GRANTED:
            self._held[request_id] = then.lease
        else:
            self._held.pop(request_id, None)
        return then.outcome
