"""The exchange machine: the table covers every pair, and no walk through it breaks a rule."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pdcluster_lease.errors import LocalProtocolError
from pdcluster_proxy.core.exchange import (
    FINAL_STATES,
    MAX_LATE_HAND_OFFS,
    MAX_PREFILL_TRIES,
    AbortLeg,
    Admitted,
    AwaitDecode,
    ClientGone,
    Command,
    ConnectDecode,
    DeadlinePassed,
    DecodeConnected,
    DecodePicked,
    EndLease,
    Event,
    Exchange,
    FirstEvent,
    HeldLease,
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
from pdcluster_proxy.core.exchange_table import IMPOSSIBLE, TABLE, step
from pdcluster_proxy.core.failures import Failure, FailureKind, Leg
from pdcluster_proxy.core.picker import Lack

EVENTS: tuple[type[Event], ...] = get_args(Event)
GRANT = HeldLease("cmpl-1", 100.0)
NO_TIME = 100.0


def failure(kind: FailureKind, *, answered: bool = False) -> Failure:
    return Failure(kind, 502, "code", "message", answered=answered)


BROKEN = failure(FailureKind.BROKEN)
UNREACHED = failure(FailureKind.UNREACHED)


def exchange(state: State, **fields: object) -> Exchange:
    held = {State.GRANTED, State.HANDING_OFF, State.DECODING}
    base = Exchange(
        two_legs=True,
        state=state,
        prefill="p1" if state not in {State.NEW, State.ADMITTED} else "",
        decode="d1" if state in {State.HANDING_OFF, State.DECODING, State.STREAMING} else "",
        lease=GRANT if state in held else None,
        hand_off_s=20.0 if state in held else None,
        prefill_tries=1 if state is State.PREFILLING else 0,
    )
    return replace(base, **fields)


def kinds(commands: tuple[Command, ...]) -> list[type[Command]]:
    return [type(command) for command in commands]


def test_every_pair_is_in_the_table_or_listed_as_impossible() -> None:
    listed = {(state, event) for state, events in IMPOSSIBLE.items() for event in events}
    every = set(itertools.product(State, EVENTS))
    assert set() == listed & set(TABLE)
    assert every == listed | set(TABLE)


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (State.NEW, FirstEvent()),
        (State.GRANTED, UpstreamEnded()),
        (State.HANDING_OFF, FirstEvent()),
        (State.DONE, UpstreamFailed(Leg.DECODE, BROKEN)),
    ],
)
def test_a_pair_that_cannot_happen_is_an_error(state: State, event: Event) -> None:
    with pytest.raises(LocalProtocolError, match=type(event).__name__):
        step(exchange(state), event, now=NO_TIME)


def test_the_plain_way_streams_and_ends_the_lease_when_the_answer_begins() -> None:
    x = Exchange(two_legs=True)
    seen: list[type[Command]] = []
    for event in (
        Admitted(),
        PrefillPicked("p1"),
        PrefillReplied(GRANT),
        DecodePicked("d1", 20.0),
        DecodeConnected(),
        FirstEvent(),
        UpstreamEnded(),
    ):
        x, commands = step(x, event, now=105.0)
        seen += kinds(commands)
    assert State.DONE is x.state
    assert [
        PickPrefill,
        SendPrefill,
        PickDecode,
        ConnectDecode,
        SendDecode,
        EndLease,
        Relay,
    ] == seen


def test_a_whole_answer_is_sent_once_it_is_complete() -> None:
    x, commands = step(exchange(State.DECODING), UpstreamEnded(), now=105.0)
    assert State.DONE is x.state
    assert (EndLease(release=False, was_read=True), Respond()) == commands


def test_a_request_without_prefill_leg_goes_to_a_decode_engine_at_once() -> None:
    x, commands = step(Exchange(two_legs=False), Admitted(), now=0.0)
    assert (PickDecode(),) == commands
    x, commands = step(x, DecodePicked("d1", None), now=0.0)
    x, commands = step(x, DecodeConnected(), now=1e9)
    assert State.DECODING is x.state


@pytest.mark.parametrize(("now", "state"), [(120.0, State.DECODING), (120.001, State.ADMITTED)])
def test_the_clock_is_checked_with_the_connection_in_hand(now: float, state: State) -> None:
    x, commands = step(exchange(State.HANDING_OFF), DecodeConnected(), now=now)
    assert state is x.state
    assert (SendDecode in kinds(commands)) == (state is State.DECODING)


def test_a_late_hand_off_is_prefilled_again_and_its_lease_released() -> None:
    x, commands = step(exchange(State.HANDING_OFF), DecodeConnected(), now=121.0)
    assert (AbortLeg(), EndLease(release=True), PickPrefill()) == commands
    assert (None, "", 1) == (x.lease, x.decode, x.late_hand_offs)


def test_late_hand_offs_are_bounded() -> None:
    late = exchange(State.HANDING_OFF, late_hand_offs=MAX_LATE_HAND_OFFS)
    x, commands = step(late, DecodeConnected(), now=121.0)
    assert State.FAILED is x.state
    assert [AbortLeg, EndLease, RespondError] == kinds(commands)


def test_without_a_bound_the_clock_never_strikes() -> None:
    kept = exchange(State.HANDING_OFF, hand_off_s=None)
    assert State.DECODING is step(kept, DecodeConnected(), now=1e9)[0].state


def test_a_decode_engine_that_accepted_nothing_leaves_the_params_good() -> None:
    failed = UpstreamFailed(Leg.DECODE, UNREACHED)
    x, commands = step(exchange(State.HANDING_OFF), failed, now=105.0)
    assert (State.GRANTED, GRANT, frozenset({"d1"})) == (x.state, x.lease, x.bad_decode)
    assert (PickDecode(),) == commands


def test_a_decode_engine_that_accepted_spends_the_params() -> None:
    x, commands = step(exchange(State.DECODING), UpstreamFailed(Leg.DECODE, BROKEN), now=105.0)
    assert (State.ADMITTED, None, frozenset({"d1"})) == (x.state, x.lease, x.bad_decode)
    assert (AbortLeg(), EndLease(release=False), PickPrefill()) == commands


def test_a_decode_engine_that_answered_will_not_read_so_the_lease_is_released() -> None:
    answered = UpstreamFailed(Leg.DECODE, failure(FailureKind.BROKEN, answered=True))
    assert EndLease(release=True) in step(exchange(State.DECODING), answered, now=105.0)[1]


def test_params_are_spent_once_per_exchange() -> None:
    again = exchange(State.DECODING, spent_params=1)
    x, commands = step(again, UpstreamFailed(Leg.DECODE, BROKEN), now=105.0)
    assert State.FAILED is x.state
    assert [AbortLeg, EndLease, RespondError] == kinds(commands)


def test_nothing_is_prefilled_again_unless_another_decode_engine_is_ready() -> None:
    alone = UpstreamFailed(Leg.DECODE, BROKEN, other_decode=False)
    x, commands = step(exchange(State.DECODING), alone, now=105.0)
    assert State.FAILED is x.state
    assert PickPrefill not in kinds(commands)


def test_a_rejected_request_is_the_client_s_and_never_tried_again() -> None:
    rejected = failure(FailureKind.REJECTED, answered=True)
    for leg, state in ((Leg.PREFILL, State.PREFILLING), (Leg.DECODE, State.DECODING)):
        x, commands = step(exchange(state), UpstreamFailed(leg, rejected), now=105.0)
        assert State.FAILED is x.state
        assert RespondError(rejected) == commands[-1]


@pytest.mark.parametrize(
    ("kind", "tries"),
    [
        (FailureKind.UNREACHED, MAX_PREFILL_TRIES),
        (FailureKind.BUSY, MAX_PREFILL_TRIES),
        (FailureKind.BROKEN, 2),
        (FailureKind.SILENT, 2),
    ],
)
def test_a_failed_prefill_goes_to_other_engines_within_bounds(
    kind: FailureKind, tries: int
) -> None:
    x = Exchange(two_legs=True, state=State.ADMITTED)
    for number in range(tries):
        assert State.ADMITTED is x.state
        x, _ = step(x, PrefillPicked(f"p{number}"), now=0.0)
        x, _ = step(x, UpstreamFailed(Leg.PREFILL, failure(kind)), now=0.0)
    assert State.FAILED is x.state
    assert {f"p{n}" for n in range(tries - 1)} == x.bad_prefill


def test_an_empty_budget_allows_no_retry() -> None:
    for state, leg in (
        (State.PREFILLING, Leg.PREFILL),
        (State.HANDING_OFF, Leg.DECODE),
        (State.DECODING, Leg.DECODE),
    ):
        event = UpstreamFailed(leg, UNREACHED, retry_allowed=False)
        assert State.FAILED is step(exchange(state), event, now=105.0)[0].state


def test_after_the_first_byte_nothing_is_retried_and_the_end_is_visible() -> None:
    x, commands = step(exchange(State.STREAMING), UpstreamFailed(Leg.DECODE, BROKEN), now=1.0)
    assert State.FAILED is x.state
    assert (AbortLeg(), StreamError(BROKEN)) == commands


def test_nobody_to_decode_is_waited_for_and_everybody_is_asked_again() -> None:
    waiting = exchange(State.GRANTED, bad_decode=frozenset({"d1"}))
    x, commands = step(waiting, NoEndpoint(Lack.DECODE, "none"), now=105.0)
    assert (State.GRANTED, frozenset()) == (x.state, x.bad_decode)
    assert (AwaitDecode(),) == commands


def test_nobody_to_prefill_ends_it_unless_d_may_prefill_locally() -> None:
    admitted = exchange(State.ADMITTED)
    x, commands = step(admitted, NoEndpoint(Lack.PREFILL, "none"), now=0.0)
    assert State.FAILED is x.state
    assert [RespondError] == kinds(commands)
    x, commands = step(admitted, NoEndpoint(Lack.PREFILL, "", True), now=0.0)
    assert (State.ADMITTED, False) == (x.state, x.two_legs)
    assert (PickDecode(),) == commands


@pytest.mark.parametrize("lack", [Lack.DECODE, Lack.PAIR])
def test_d_prefills_locally_only_where_it_is_a_prefill_engine_that_lacks(lack: Lack) -> None:
    admitted = exchange(State.ADMITTED)
    x, commands = step(admitted, NoEndpoint(lack, "", may_prefill_locally=True), now=0.0)
    assert State.FAILED is x.state
    (answer,) = commands
    assert isinstance(answer, RespondError)
    assert (503, lack.value) == (answer.failure.status, answer.failure.code)


@pytest.mark.parametrize("event", [FirstEvent(), UpstreamEnded()])
def test_only_a_lease_whose_answer_has_begun_was_read(event: Event) -> None:
    ends = [c for c in step(exchange(State.DECODING), event, now=1.0)[1] if type(c) is EndLease]
    assert [EndLease(release=False, was_read=True)] == ends
    for other in (ClientGone(), UpstreamFailed(Leg.DECODE, BROKEN)):
        ends = [c for c in step(exchange(State.DECODING), other, now=1.0)[1] if type(c) is EndLease]
        assert [False] == [end.was_read for end in ends]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State.NEW, []),
        (State.ADMITTED, []),
        (State.PREFILLING, [AbortLeg()]),
        (State.GRANTED, [EndLease(release=True)]),
        (State.HANDING_OFF, [AbortLeg(), EndLease(release=True)]),
        # D has it: closing its connection makes D tell P, and a release could let it read late.
        (State.DECODING, [AbortLeg(), EndLease(release=False)]),
        (State.STREAMING, [AbortLeg()]),
        (State.DONE, []),
        (State.FAILED, []),
        (State.CANCELLED, []),
    ],
)
def test_a_client_that_leaves_closes_the_right_leg_in_every_state(
    state: State, expected: list[Command]
) -> None:
    x, commands = step(exchange(state), ClientGone(), now=105.0)
    assert expected == list(commands)
    assert x.state is (state if state in FINAL_STATES else State.CANCELLED)
    assert x.lease is None


@pytest.mark.parametrize("state", [s for s in State if s not in FINAL_STATES])
def test_the_overall_deadline_ends_an_exchange_in_every_state(state: State) -> None:
    late = failure(FailureKind.SILENT)
    x, commands = step(exchange(state), DeadlinePassed(late), now=105.0)
    assert State.FAILED is x.state
    told = StreamError(late) if state is State.STREAMING else RespondError(late)
    assert told == commands[-1]


FAILURES = st.builds(
    Failure,
    st.sampled_from(FailureKind),
    st.just(502),
    st.just("code"),
    st.just("message"),
    answered=st.booleans(),
)


def events_for(x: Exchange, name: str) -> st.SearchStrategy[Event]:
    leg = Leg.PREFILL if x.state is State.PREFILLING else Leg.DECODE
    grants = st.builds(HeldLease, st.just(name), st.floats(0, 50))
    makers: dict[type[Event], st.SearchStrategy[Event]] = {
        Admitted: st.just(Admitted()),
        PrefillPicked: st.sampled_from(["p1", "p2", "p3"]).map(PrefillPicked),
        DecodePicked: st.builds(
            DecodePicked, st.sampled_from(["d1", "d2"]), st.none() | st.floats(1, 30)
        ),
        NoEndpoint: st.builds(NoEndpoint, st.sampled_from(Lack), st.just("m"), st.booleans()),
        PrefillReplied: grants.map(PrefillReplied),
        DecodeConnected: st.just(DecodeConnected()),
        FirstEvent: st.just(FirstEvent()),
        UpstreamEnded: st.just(UpstreamEnded()),
        UpstreamFailed: st.builds(
            UpstreamFailed, st.just(leg), FAILURES, st.booleans(), st.booleans()
        ),
        ClientGone: st.just(ClientGone()),
        DeadlinePassed: FAILURES.map(DeadlinePassed),
    }
    possible = [event for state, event in TABLE if state is x.state]
    return st.one_of([makers[event] for event in possible])


@given(st.data(), st.booleans())
def test_no_walk_breaks_a_rule(data: st.DataObject, two_legs: bool) -> None:
    """Leases are balanced, params go to one accepting engine, the client hears one thing."""
    x, now = Exchange(two_legs=two_legs), 0.0
    granted = ended = sent = told = 0
    for number in range(40):
        if x.state in FINAL_STATES:
            break
        now += data.draw(st.floats(0, 20))
        event = data.draw(events_for(x, f"cmpl-{number}"))
        before = x
        x, commands = step(x, event, now=now)
        names = kinds(commands)
        assert x.state in TABLE[before.state, type(event)].to
        granted += isinstance(event, PrefillReplied)
        ended += names.count(EndLease)
        told += sum(names.count(kind) for kind in (RespondError, Respond, Relay))
        if SendDecode in names:
            sent += 1
            assert before.lease is None or now <= before.lease.clock_start + (
                before.hand_off_s if before.hand_off_s is not None else now
            )
        # Whatever waits comes last: nothing after it would run in time.
        waits = {PickPrefill, SendPrefill, PickDecode, AwaitDecode, ConnectDecode, SendDecode}
        assert all(name not in waits for name in names[:-1])
        assert x.late_hand_offs <= MAX_LATE_HAND_OFFS
        assert granted - ended == (x.lease is not None)
    assert sent <= 2
    assert told <= 1
    if x.state in FINAL_STATES:
        assert x.lease is None
