"""The exchange machine's table: every pair of state and event, possible or not.

Pure. The states, events and commands are explained in ``core/exchange.py``; the diagram in
``docs/state-machines.md`` is rendered from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from pdcluster_lease.errors import LocalProtocolError
from pdcluster_proxy.core.exchange import (
    MAX_LATE_HAND_OFFS,
    MAX_PREFILL_TRIES,
    MAX_PREFILL_TRIES_BROKEN,
    MAX_SPENT_PARAMS,
    AbortLeg,
    Admitted,
    AwaitDecode,
    ClientGone,
    Command,
    ConnectDecode,
    DeadlinePassed,
    Decision,
    DecodeConnected,
    DecodePicked,
    EndLease,
    Event,
    Exchange,
    FirstEvent,
    NoEndpoint,
    PickDecode,
    PickPrefill,
    PrefillPicked,
    PrefillReplied,
    Relay,
    Respond,
    RespondError,
    SendDecode,
    SendPrefill,
    State,
    StreamError,
    UpstreamEnded,
    UpstreamFailed,
)
from pdcluster_proxy.core.failures import (
    Failure,
    FailureKind,
    hand_off_late,
    is_final,
    nobody_serves,
)
from pdcluster_proxy.core.picker import Lack

__all__ = ["IMPOSSIBLE", "TABLE", "ExchangeRow", "is_within_deadline", "step"]


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """One row: what decides, and which states it may lead to."""

    # The row's key fixes the event's type; a table of functions can't say so to the checker.
    apply: Callable[[Exchange, Any, float], Decision]
    to: tuple[State, ...]


def step(exchange: Exchange, event: Event, *, now: float) -> Decision:
    """Apply one event.

    Args:
        exchange: The exchange before it.
        event: What happened.
        now: Monotonic seconds.

    Returns:
        The exchange afterwards, and what to do, in order.

    Raises:
        LocalProtocolError: The pair cannot happen: a bug of ours.
    """
    rule = _ROWS[exchange.state].get(type(event))
    if rule is None:
        raise LocalProtocolError(f"{type(event).__name__} cannot happen in {exchange.state}")
    return rule.apply(exchange, event, now)


def is_within_deadline(exchange: Exchange, now: float) -> bool:
    """Tell whether a decode leg may still begin."""
    if exchange.lease is None or exchange.hand_off_s is None:
        return True
    return now <= exchange.lease.clock_start + exchange.hand_off_s


_ADMITTED: Final = State.ADMITTED
_PREFILLING: Final = State.PREFILLING
_GRANTED: Final = State.GRANTED
_HANDING_OFF: Final = State.HANDING_OFF
_DECODING: Final = State.DECODING
_STREAMING: Final = State.STREAMING
_DONE: Final = State.DONE
_FAILED: Final = State.FAILED
_CANCELLED: Final = State.CANCELLED
_LEG_IS_OUT: Final = frozenset({_PREFILLING, _HANDING_OFF, _DECODING, _STREAMING})
_ENGINE_S_OWN: Final = frozenset({FailureKind.UNREACHED, FailureKind.BUSY})
"""Failures that speak of the engine and not of the request."""
_READ: Final = (EndLease(release=False, was_read=True),)
"""D's answer has begun: the lease has done its work."""

# Rows ----------------------------------------------------------------------------------------


def _admit(x: Exchange, _event: Admitted, _now: float) -> Decision:
    first: Command = PickPrefill() if x.two_legs else PickDecode()
    return replace(x, state=_ADMITTED), (first,)


def _send_prefill(x: Exchange, event: PrefillPicked, _now: float) -> Decision:
    tries = x.prefill_tries + 1
    picked = replace(x, state=_PREFILLING, prefill=event.endpoint, prefill_tries=tries)
    return picked, (SendPrefill(),)


def _connect(x: Exchange, event: DecodePicked, _now: float) -> Decision:
    picked = replace(x, state=_HANDING_OFF, decode=event.endpoint, hand_off_s=event.hand_off_s)
    return picked, (ConnectDecode(),)


def _nobody(x: Exchange, event: NoEndpoint, _now: float) -> Decision:
    decode_only = event.may_prefill_locally and event.lack is Lack.PREFILL
    if decode_only and x.two_legs and x.lease is None:
        return replace(x, two_legs=False), (PickDecode(),)
    # After a failed try the client is told of that, not that there is nobody else.
    return _fail(x, x.failure or nobody_serves(event.lack.value, event.message))


def _nobody_decodes(x: Exchange, _event: NoEndpoint, _now: float) -> Decision:
    """Wait in bounds; whoever could not be reached before is asked again."""
    return replace(x, bad_decode=frozenset()), (AwaitDecode(),)


def _granted(x: Exchange, event: PrefillReplied, _now: float) -> Decision:
    return replace(x, state=_GRANTED, lease=event.lease, prefill_tries=0), (PickDecode(),)


def _prefill_failed(x: Exchange, event: UpstreamFailed, _now: float) -> Decision:
    failure = event.failure
    tries = MAX_PREFILL_TRIES if failure.kind in _ENGINE_S_OWN else MAX_PREFILL_TRIES_BROKEN
    final = is_final(failure) or not event.retry_allowed
    if final or x.prefill_tries >= tries:
        return _fail(x, failure)
    again = replace(
        x,
        state=_ADMITTED,
        prefill="",
        bad_prefill=x.bad_prefill | {x.prefill},
        failure=failure,
    )
    return again, (PickPrefill(),)


def _connected(x: Exchange, _event: DecodeConnected, now: float) -> Decision:
    if is_within_deadline(x, now):
        return replace(x, state=_DECODING), (SendDecode(),)
    # The lease may end before D's first heartbeat counts: nothing is sent, prefill again.
    if x.late_hand_offs >= MAX_LATE_HAND_OFFS:
        return _fail(x, hand_off_late(), release=True)
    again = replace(
        x,
        state=_ADMITTED,
        prefill="",
        decode="",
        lease=None,
        hand_off_s=None,
        late_hand_offs=x.late_hand_offs + 1,
    )
    return again, (AbortLeg(), EndLease(release=True), PickPrefill())


def _connect_failed(x: Exchange, event: UpstreamFailed, _now: float) -> Decision:
    """Class 1: D accepted nothing, so the params are still good."""
    if not event.retry_allowed:
        return _fail(x, event.failure, release=True)
    state = _GRANTED if x.two_legs else _ADMITTED
    bad = x.bad_decode | {x.decode}
    again = replace(x, state=state, decode="", bad_decode=bad, failure=event.failure)
    return again, (PickDecode(),)


def _decode_failed(x: Exchange, event: UpstreamFailed, _now: float) -> Decision:
    """Class 2: D may have read, so the params are spent whatever happened."""
    failure = event.failure
    end: tuple[Command, ...] = (EndLease(release=failure.answered),) if x.lease else ()
    final = (
        is_final(failure)
        or not (event.retry_allowed and event.other_decode)
        or x.spent_params >= MAX_SPENT_PARAMS
    )
    if final:
        failed = replace(x, state=_FAILED, lease=None)
        return failed, (AbortLeg(), *end, RespondError(failure))
    again = replace(
        x,
        state=_ADMITTED,
        prefill="",
        decode="",
        lease=None,
        hand_off_s=None,
        spent_params=x.spent_params + 1,
        bad_decode=x.bad_decode | {x.decode},
        failure=failure,
    )
    pick: Command = PickPrefill() if x.two_legs else PickDecode()
    return again, (AbortLeg(), *end, pick)


def _first_event(x: Exchange, _event: FirstEvent, _now: float) -> Decision:
    end: tuple[Command, ...] = _READ if x.lease else ()
    return replace(x, state=_STREAMING, lease=None), (*end, Relay())


def _answered(x: Exchange, _event: UpstreamEnded, _now: float) -> Decision:
    end: tuple[Command, ...] = _READ if x.lease else ()
    return replace(x, state=_DONE, lease=None), (*end, Respond())


def _stream_ended(x: Exchange, _event: UpstreamEnded, _now: float) -> Decision:
    return replace(x, state=_DONE), ()


def _stream_failed(x: Exchange, event: UpstreamFailed | DeadlinePassed, _now: float) -> Decision:
    """Class 3: the client has seen a byte; the truncation is made visible."""
    return replace(x, state=_FAILED), (AbortLeg(), StreamError(event.failure))


def _client_gone(x: Exchange, _event: ClientGone, _now: float) -> Decision:
    """Close what is out. Only where no engine can read any more is the lease released."""
    commands: list[Command] = []
    if x.state in _LEG_IS_OUT:
        commands.append(AbortLeg())
    if x.lease is not None:
        commands.append(EndLease(release=x.state is not _DECODING))
    return replace(x, state=_CANCELLED, lease=None), tuple(commands)


def _overdue(x: Exchange, event: DeadlinePassed, _now: float) -> Decision:
    return _fail(x, event.failure, release=x.state is not _DECODING)


def _stay(x: Exchange, _event: ClientGone | DeadlinePassed, _now: float) -> Decision:
    """It is over; what arrives late changes nothing."""
    return x, ()


def _fail(x: Exchange, failure: Failure, *, release: bool = True) -> Decision:
    commands: list[Command] = []
    if x.state in _LEG_IS_OUT:
        commands.append(AbortLeg())
    if x.lease is not None:
        commands.append(EndLease(release=release))
    commands.append(RespondError(failure))
    return replace(x, state=_FAILED, lease=None), tuple(commands)


_LEAVE: Final = ExchangeRow(_client_gone, (State.CANCELLED,))
_OVERDUE: Final = ExchangeRow(_overdue, (State.FAILED,))

TABLE: Final[Mapping[tuple[State, type[Event]], ExchangeRow]] = {
    (State.NEW, Admitted): ExchangeRow(_admit, (State.ADMITTED,)),
    (State.NEW, ClientGone): _LEAVE,
    (State.NEW, DeadlinePassed): _OVERDUE,
    (State.ADMITTED, PrefillPicked): ExchangeRow(_send_prefill, (State.PREFILLING,)),
    (State.ADMITTED, DecodePicked): ExchangeRow(_connect, (State.HANDING_OFF,)),
    (State.ADMITTED, NoEndpoint): ExchangeRow(_nobody, (State.FAILED, State.ADMITTED)),
    (State.ADMITTED, ClientGone): _LEAVE,
    (State.ADMITTED, DeadlinePassed): _OVERDUE,
    (State.PREFILLING, PrefillReplied): ExchangeRow(_granted, (State.GRANTED,)),
    (State.PREFILLING, UpstreamFailed): ExchangeRow(
        _prefill_failed, (State.ADMITTED, State.FAILED)
    ),
    (State.PREFILLING, ClientGone): _LEAVE,
    (State.PREFILLING, DeadlinePassed): _OVERDUE,
    (State.GRANTED, DecodePicked): ExchangeRow(_connect, (State.HANDING_OFF,)),
    (State.GRANTED, NoEndpoint): ExchangeRow(_nobody_decodes, (State.GRANTED,)),
    (State.GRANTED, ClientGone): _LEAVE,
    (State.GRANTED, DeadlinePassed): _OVERDUE,
    (State.HANDING_OFF, DecodeConnected): ExchangeRow(
        _connected, (State.DECODING, State.ADMITTED, State.FAILED)
    ),
    (State.HANDING_OFF, UpstreamFailed): ExchangeRow(
        _connect_failed, (State.GRANTED, State.ADMITTED, State.FAILED)
    ),
    (State.HANDING_OFF, ClientGone): _LEAVE,
    (State.HANDING_OFF, DeadlinePassed): _OVERDUE,
    (State.DECODING, FirstEvent): ExchangeRow(_first_event, (State.STREAMING,)),
    (State.DECODING, UpstreamEnded): ExchangeRow(_answered, (State.DONE,)),
    (State.DECODING, UpstreamFailed): ExchangeRow(_decode_failed, (State.ADMITTED, State.FAILED)),
    (State.DECODING, ClientGone): _LEAVE,
    (State.DECODING, DeadlinePassed): _OVERDUE,
    (State.STREAMING, UpstreamEnded): ExchangeRow(_stream_ended, (State.DONE,)),
    (State.STREAMING, UpstreamFailed): ExchangeRow(_stream_failed, (State.FAILED,)),
    (State.STREAMING, ClientGone): _LEAVE,
    (State.STREAMING, DeadlinePassed): ExchangeRow(_stream_failed, (State.FAILED,)),
    (State.DONE, ClientGone): ExchangeRow(_stay, (State.DONE,)),
    (State.DONE, DeadlinePassed): ExchangeRow(_stay, (State.DONE,)),
    (State.FAILED, ClientGone): ExchangeRow(_stay, (State.FAILED,)),
    (State.FAILED, DeadlinePassed): ExchangeRow(_stay, (State.FAILED,)),
    (State.CANCELLED, ClientGone): ExchangeRow(_stay, (State.CANCELLED,)),
    (State.CANCELLED, DeadlinePassed): ExchangeRow(_stay, (State.CANCELLED,)),
}

# The same by state, so that a step makes no tuple. Reading a member off its enum costs more than a
# whole row here, hence the names below.
_ROWS: Final[Mapping[State, Mapping[type[Event], ExchangeRow]]] = {
    state: {event: rule for (of, event), rule in TABLE.items() if of is state} for state in State
}

_PICKS: Final = (PrefillPicked, DecodePicked, NoEndpoint)
_REPLIES: Final = (PrefillReplied, DecodeConnected, FirstEvent, UpstreamEnded, UpstreamFailed)
_FINAL: Final = (Admitted, *_PICKS, *_REPLIES)

IMPOSSIBLE: Final[Mapping[State, tuple[type[Event], ...]]] = {
    # Nothing was picked or sent before admission.
    State.NEW: (*_PICKS, *_REPLIES),
    # No leg is out.
    State.ADMITTED: (Admitted, *_REPLIES),
    State.PREFILLING: (Admitted, *_PICKS, DecodeConnected, FirstEvent, UpstreamEnded),
    # The prefill leg has ended, no decode leg is out.
    State.GRANTED: (Admitted, PrefillPicked, *_REPLIES),
    # Nothing was sent, so nothing can be answered.
    State.HANDING_OFF: (Admitted, *_PICKS, PrefillReplied, FirstEvent, UpstreamEnded),
    State.DECODING: (Admitted, *_PICKS, PrefillReplied, DecodeConnected),
    State.STREAMING: (Admitted, *_PICKS, PrefillReplied, DecodeConnected, FirstEvent),
    # The runner stops at a final state.
    State.DONE: _FINAL,
    State.FAILED: _FINAL,
    State.CANCELLED: _FINAL,
}
