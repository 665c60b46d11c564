"""What the exchange machine's commands do: legs, hand-off, relay, lease events.

Shell. One object per exchange holds the connection that is out and what the engines have said. Each
command is one method; those that wait return the event that came of it. What follows from an event
stands in ``core/exchange_table.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from pdcluster_lease.params import KVTransferParams
from pdcluster_lease.timing import clock_start
from pdcluster_proxy.core.bodies import (
    PATHS,
    ClientRequest,
    RequestClass,
    decode_body,
    prefill_body,
)
from pdcluster_proxy.core.exchange import (
    AbortLeg,
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
    Grant,
    NoEndpoint,
    PickDecode,
    PickPrefill,
    PrefillPicked,
    PrefillReplied,
    Refuse,
    Relay,
    Respond,
    SendDecode,
    SendPrefill,
    State,
    StreamError,
    UpstreamEnded,
    UpstreamFailed,
    refusal,
)
from pdcluster_proxy.core.failures import (
    Failure,
    FailureKind,
    Leg,
    blame,
    failure_of_error,
    request_timeout,
)
from pdcluster_proxy.core.headers import ClientHeaders, leg_head
from pdcluster_proxy.core.messages import (
    EndpointView,
    LeaseEvent,
    LeaseEventKind,
    Outcome,
    OutcomeKind,
)
from pdcluster_proxy.core.picker import NoPick, pick_decode, pick_prefill
from pdcluster_proxy.core.ports import Address, EngineConnection, RelayEnd, RelayOutcome
from pdcluster_proxy.core.replies import PrefillUsage, client_answer, parse_prefill_reply
from pdcluster_proxy.core.sse import StreamEditor
from pdcluster_proxy.errors import ProxyError
from pdcluster_proxy.exchange.answer import ClientSide
from pdcluster_proxy.exchange.engine_answers import (
    HTTP_OK,
    bad_status,
    check_address,
    first_event,
    refused_event,
)
from pdcluster_proxy.exchange.story import Story
from pdcluster_proxy.exchange.worker import Worker

__all__ = ["ACTIONS", "Actions"]

# Reading a member off its enum costs as much as a call: the hot path does it here, once.
_GRANTED: Final = LeaseEventKind.GRANTED
_HANDED_OFF: Final = LeaseEventKind.HANDED_OFF
_ENDED: Final = LeaseEventKind.ENDED
_SUCCEEDED: Final = OutcomeKind.SUCCEEDED
_PREFILL: Final = Leg.PREFILL
_DECODE: Final = Leg.DECODE
_TWO_LEGS: Final = RequestClass.TWO_LEGS

_ANSWERED: Final = frozenset({State.STREAMING, State.DONE})
"""Where a lease ends because D's answer has begun."""

AWAIT_DECODE_S: Final = 0.25
"""Longest wait for a changed pool before a decode engine is looked for again, in seconds."""


class Actions:
    """One exchange's means.

    Args:
        worker: What the worker's exchanges share.
        request: The client's request.
        headers: What of its header concerns us.
        client: Its connection.

    Attributes:
        x: The exchange, as the machine last left it.
        is_overdue: The deadline passed while the stream was relayed.
    """

    def __init__(
        self, worker: Worker, request: ClientRequest, headers: ClientHeaders, client: ClientSide
    ) -> None:
        self._worker = worker
        self._request = request
        self._headers = headers
        self._client = client
        # This is all the mutable state.
        self.x = Exchange(two_legs=request.request_class is _TWO_LEGS)
        self.story = Story(worker, request, client.request_id)
        self.is_overdue = False
        self.deadline_at = self.story.started_at + worker.bounds.request_s
        self._connection: EngineConnection | None = None
        self._leg: EndpointView | None = None
        self._leg_tokens = 0
        self._outcome: Outcome | None = None
        self._prefill: EndpointView | None = None
        self._decode: EndpointView | None = None
        self._params: KVTransferParams | None = None
        self._usage: PrefillUsage | None = None
        self._answer = b""
        self._leg_id = ""

    def close(self) -> None:
        """Give back whatever is still held, on whichever way out."""
        self.abort_leg()
        if self.x.grant is not None:
            self._lease_event(_ENDED, 0.0)

    def overrun(self) -> None:
        """Cut a relayed stream whose time is over; the relay then ends by itself."""
        self.is_overdue = True
        if self._connection is not None:
            self._connection.abort()

    # The prefill leg ------------------------------------------------------------------------

    def pick_prefill(self, _command: PickPrefill) -> Event:
        """Choose a prefill engine."""
        worker = self._worker
        picked = pick_prefill(
            worker.pool,
            mine=worker.legs.by_endpoint,
            excluded=self.x.bad_prefill,
            rng=worker.rng,
        )
        if isinstance(picked, NoPick):
            return NoEndpoint(
                picked.reason,
                picked.message,
                decode_only=worker.may_prefill_locally and picked.reason == "no-prefill-engine",
            )
        self._prefill = picked
        return PrefillPicked(picked.name)

    async def send_prefill(self, _command: SendPrefill) -> Event:
        """Run the prefill leg."""
        endpoint, worker, client = self._prefill, self._worker, self._client
        assert endpoint is not None, "picked before it is sent"
        self._leg_id = f"{client.request_id}-{worker.new_id()}"
        self._enter(endpoint, self._request.prompt_tokens)
        sent_at = worker.clock()
        until = sent_at + self._first_byte_s(sent_at)
        try:
            connection = await self._connect(endpoint, until - sent_at)
            body = prefill_body(self._request)
            connection.send(self._head(endpoint, len(body)), body)
            head = await connection.head(timeout_s=self._left_s(until))
            answer = await connection.collect(
                worker.bounds.max_answer_bytes, timeout_s=self._left_s(until)
            )
            if head.status != HTTP_OK:
                return self._failed(_PREFILL, endpoint, bad_status(_PREFILL, head, answer))
            params, usage = parse_prefill_reply(answer)
            check_address(params, endpoint)
        except ProxyError as error:
            return self._failed(_PREFILL, endpoint, failure_of_error(_PREFILL, error))
        self._succeeded(endpoint)
        now = worker.clock()
        started = clock_start(answered_at=now, last_tick_at=worker.last_tick_at)
        self._params, self._usage = params, usage
        self._lease_event(_GRANTED, now - started)
        self.story.granted(endpoint, params, usage, self._leg_id, now - sent_at)
        return PrefillReplied(Grant(params.request_id, started))

    # The decode leg -------------------------------------------------------------------------

    def pick_decode(self, _command: PickDecode | AwaitDecode) -> Event:
        """Choose a decode engine."""
        worker = self._worker
        params = self._params if self.x.grant is not None else None
        picked = pick_decode(
            worker.pool,
            mine=worker.legs.by_endpoint,
            excluded=self.x.bad_decode,
            prefill=self._prefill if params is not None else None,
            engine_id=params.engine_id if params is not None else None,
            rng=worker.rng,
        )
        if isinstance(picked, NoPick):
            return NoEndpoint(picked.reason, picked.message)
        self._decode = picked
        bound = None
        if params is not None and self._prefill is not None:
            bound = worker.hand_off_s(self._prefill, picked, params.engine_id)
        self.story.decode_picked(picked, bound)
        return DecodePicked(picked.name, bound)

    async def await_decode(self, command: AwaitDecode) -> Event:
        """Wait for a changed pool; past the hand-off deadline nobody is waited for any more."""
        grant = self.x.grant
        assert grant is not None, "only a granted exchange waits for a decode engine"
        worker = self._worker
        left = self._hold_until(grant) - worker.clock()
        if left <= 0:
            message = "No decode engine became ready in time. Retry the request."
            return DeadlinePassed(refusal("no-decode-engine", message))
        await worker.pool_change(min(left, AWAIT_DECODE_S))
        return self.pick_decode(command)

    def _hold_until(self, grant: Grant) -> float:
        """Last moment a hand-off is waited for: the longest bound that it may have."""
        worker, prefill = self._worker, self._prefill
        assert prefill is not None, "the lease was granted by a prefill engine"
        bound = worker.longest_hand_off_s(prefill)
        held = worker.bounds.max_hold_s if bound is None else min(bound, worker.bounds.max_hold_s)
        return grant.clock_start + held

    async def connect_decode(self, _command: ConnectDecode) -> Event:
        """Get a connection to it."""
        endpoint = self._decode
        assert endpoint is not None, "picked before it is connected"
        self._enter(endpoint, 0)
        try:
            await self._connect(endpoint, self._first_byte_s(self._worker.clock()))
        except ProxyError as error:
            return self._failed(_DECODE, endpoint, failure_of_error(_DECODE, error))
        return DecodeConnected()

    async def send_decode(self, _command: SendDecode) -> Event:
        """Run the decode leg until its answer can be committed."""
        connection, endpoint, worker = self._connection, self._decode, self._worker
        assert connection is not None, "connected before it is sent"
        assert endpoint is not None, "picked before it is sent"
        grant = self.x.grant
        params = self._params if grant is not None else None
        if not self._leg_id:
            self._leg_id = f"{self._client.request_id}-{worker.new_id()}"
        body = decode_body(self._request, params.raw if params is not None else None)
        connection.send(self._head(endpoint, len(body)), body)
        now = worker.clock()
        left_s, is_held = self._first_byte_s(now), False
        if grant is not None:
            age_s = now - grant.clock_start
            self._lease_event(_HANDED_OFF, age_s)
            self.story.handed_off(age_s)
            hold_s = max(0.0, worker.bounds.max_hold_s - age_s)
            left_s, is_held = min(left_s, hold_s), hold_s < left_s
        reply = await self._begun_answer(connection, now + left_s)
        if isinstance(reply, Failure):
            failure = self._as_hold(reply) if is_held else reply
            return self._failed(_DECODE, endpoint, failure)
        self._decode_answered(endpoint)
        if reply is None:
            return FirstEvent()
        self._answer = reply
        return UpstreamEnded()

    async def _begun_answer(
        self, connection: EngineConnection, until: float
    ) -> bytes | Failure | None:
        """Wait until D's answer can be committed: all of it, or None for a stream that began."""
        bounds = self._worker.bounds
        try:
            head = await connection.head(timeout_s=self._left_s(until))
            if head.status == HTTP_OK and self._request.stream:
                event = await first_event(connection, head, bounds, self._left_s(until))
                return refused_event(event)
            body = await connection.collect(bounds.max_answer_bytes, timeout_s=self._left_s(until))
            if head.status != HTTP_OK:
                return bad_status(_DECODE, head, body)
            return client_answer(body, self._usage)
        except ProxyError as error:
            return failure_of_error(_DECODE, error)

    def _decode_answered(self, endpoint: EndpointView) -> None:
        """D's answer has begun: it has read the blocks, and the pair has met."""
        self._outcome = Outcome(endpoint.name, _SUCCEEDED)
        grant, params = self.x.grant, self._params
        age_s = 0.0
        if grant is not None and params is not None:
            self._worker.note_met(params.engine_id, endpoint)
            age_s = self._worker.clock() - grant.clock_start
        self.story.answered(age_s)

    @staticmethod
    def _as_hold(failure: Failure) -> Failure:
        """Give a silence that ran into the hold bound its own name (D7)."""
        if failure.kind is not FailureKind.SILENT:
            return failure
        message = "No decode engine began to answer within the hold bound. Retry the request."
        return Failure(
            FailureKind.HELD_TOO_LONG, 503, "decode-hold-bound", message, retry_after_s=1
        )

    async def relay(self, _command: Relay) -> Event:
        """Forward the stream."""
        connection = self._connection
        assert connection is not None, "answered before it is relayed"
        editor = StreamEditor(self._usage)
        end = await self._client.relay(
            connection, editor=editor, idle_timeout_s=self._worker.bounds.idle_s
        )
        self.story.relayed(end)
        event = self._relay_event(end, editor)
        if isinstance(event, UpstreamEnded):
            self._close_leg()
            await self._client.end_stream(None)
        elif isinstance(event, UpstreamFailed) and self._decode is not None:
            self._blame(self._decode, event.failure)
        return event

    def _relay_event(self, end: RelayEnd, editor: StreamEditor) -> Event:
        if end.outcome is RelayOutcome.CLIENT_GONE:
            return ClientGone()
        if editor.failed:
            return _broken_stream("decode-failed", "The decode engine failed during the answer.")
        match end.outcome:
            case RelayOutcome.COMPLETE:
                return UpstreamEnded()
            case RelayOutcome.UPSTREAM_IDLE:
                return _broken_stream("decode-idle", "The decode engine fell silent.")
            case RelayOutcome.UNTERMINATED | RelayOutcome.UPSTREAM_LOST:
                if self.is_overdue:
                    return UpstreamFailed(_DECODE, request_timeout(self._worker.bounds.request_s))
                return _broken_stream("decode-lost", "The decode engine's stream broke off.")

    # Both legs ------------------------------------------------------------------------------

    def _enter(self, endpoint: EndpointView, prompt_tokens: int) -> None:
        self._leg, self._leg_tokens = endpoint, prompt_tokens
        self._worker.legs.enter(endpoint.name, prompt_tokens)

    def _succeeded(self, endpoint: EndpointView) -> None:
        self._outcome = Outcome(endpoint.name, _SUCCEEDED)
        self._close_leg()

    async def _connect(self, endpoint: EndpointView, left_s: float) -> EngineConnection:
        worker = self._worker
        self._connection = connection = await worker.engines.connect(
            Address(endpoint.host, endpoint.port), timeout_s=min(worker.bounds.connect_s, left_s)
        )
        return connection

    def _head(self, endpoint: EndpointView, body_len: int) -> bytes:
        authority = f"{endpoint.host}:{endpoint.port}"
        path = PATHS[self._request.api]
        return leg_head(path, authority, self._headers, self._leg_id, body_len)

    def _first_byte_s(self, now: float) -> float:
        """Seconds a leg may take until its answer begins: the bound, or what the request has."""
        left_s = self.deadline_at - now
        return min(self._worker.bounds.first_byte_s, left_s) if left_s > 0 else 0.0

    def _left_s(self, until: float) -> float:
        return max(0.0, until - self._worker.clock())

    def _failed(self, leg: Leg, endpoint: EndpointView, failure: Failure) -> Event:
        """Report a leg's bad end and gather what the decision needs."""
        if failure.kind is FailureKind.SILENT and self._worker.clock() >= self.deadline_at:
            # Our own time is over; that says nothing about the engine.
            failure = request_timeout(self._worker.bounds.request_s)
        self._blame(endpoint, failure)
        self.story.leg_failed(leg, failure)
        # A leg that has given its connection back already has nothing left to abort.
        self.abort_leg()
        if failure.kind is FailureKind.REFUSED:
            return UpstreamFailed(leg, failure)
        other = pick_decode(
            self._worker.pool,
            mine=self._worker.legs.by_endpoint,
            excluded=self.x.bad_decode | {self.x.decode},
            prefill=self._prefill if self.x.grant is not None else None,
            engine_id=None,
            rng=self._worker.rng,
        )
        return UpstreamFailed(
            leg,
            failure,
            retry_allowed=self._worker.may_retry(),
            other_decode=not isinstance(other, NoPick),
        )

    def _blame(self, endpoint: EndpointView, failure: Failure) -> None:
        kind = blame(failure)
        if kind is not None:
            self._outcome = Outcome(endpoint.name, kind, failure.code)

    def _close_leg(self) -> None:
        """The leg has ended by itself; its connection is back in the pool already."""
        self._connection = None
        endpoint, self._leg = self._leg, None
        if endpoint is not None:
            outcome, self._outcome = self._outcome, None
            self._worker.legs.leave(endpoint.name, self._leg_tokens, outcome)

    def abort_leg(self, _command: AbortLeg | None = None) -> None:
        """Close the connection that is out, if any."""
        if self._connection is not None:
            self._connection.abort()
        self._close_leg()

    def end_lease(self, command: EndLease) -> None:
        """Take the lease out of the ledger; the keeper, where there is one, does the releasing."""
        was_read = self.x.state in _ANSWERED
        self._lease_event(_ENDED, 0.0, release=command.release, was_read=was_read)

    # The client's answer --------------------------------------------------------------------

    async def respond(self, _command: Respond) -> None:
        """Send the whole answer."""
        self._close_leg()
        await self._client.respond(self._answer)

    async def refuse(self, command: Refuse) -> None:
        """Answer with an error."""
        self.story.failed(command.failure)
        await self._client.refuse(command.failure)

    async def stream_error(self, command: StreamError) -> None:
        """End the stream visibly."""
        self.story.failed(command.failure)
        await self._client.end_stream(command.failure)

    def _lease_event(
        self, kind: LeaseEventKind, age_s: float, *, release: bool = False, was_read: bool = False
    ) -> None:
        params, prefill, decode = self._params, self._prefill, None
        if params is None or prefill is None:
            return
        if was_read or kind is _HANDED_OFF:
            decode = self._decode
        self._worker.companion.lease(
            LeaseEvent(
                kind,
                prefill.name,
                params.request_id,
                age_s,
                params.engine_id,
                decode.name if decode is not None else "",
                decode.incarnation if decode is not None else 0,
                # What a keeper needs; without one nobody looks at it.
                params.raw if self._worker.keeper and kind is _GRANTED else b"",
                release,
            )
        )


def _broken_stream(code: str, message: str) -> UpstreamFailed:
    return UpstreamFailed(
        _DECODE, Failure(FailureKind.BROKEN, 502, code, f"{message} The answer is cut short.")
    )


# The rows' keys fix the commands' types; a mapping of methods can't say so to the checker.
_Act: TypeAlias = Callable[[Actions, Any], Any]
ACTIONS: Final[Mapping[type[Command], tuple[bool, _Act]]] = {
    PickPrefill: (False, Actions.pick_prefill),
    SendPrefill: (True, Actions.send_prefill),
    PickDecode: (False, Actions.pick_decode),
    AwaitDecode: (True, Actions.await_decode),
    ConnectDecode: (True, Actions.connect_decode),
    SendDecode: (True, Actions.send_decode),
    Relay: (True, Actions.relay),
    Respond: (True, Actions.respond),
    AbortLeg: (False, Actions.abort_leg),
    EndLease: (False, Actions.end_lease),
    Refuse: (True, Actions.refuse),
    StreamError: (True, Actions.stream_error),
}
"""Whether a command's method is awaited, and the method; each returns an event or None."""
