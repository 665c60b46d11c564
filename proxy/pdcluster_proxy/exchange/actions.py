"""What the exchange machine's commands do: legs, hand-off, relay, lease events.

Shell. One object per exchange holds the connection that is out and what the engines have said. Each
command is one method; those that wait return the event that came of it. What follows from an event
stands in ``core/exchange_table.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from pdcluster_lease.params import KVTransferParams
from pdcluster_lease.timing import clock_start
from pdcluster_proxy.core.bodies import ClientRequest, RequestClass
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
    StreamError,
    UpstreamEnded,
    UpstreamFailed,
)
from pdcluster_proxy.core.failures import Failure, FailureKind, Leg, blame, failure_of_error
from pdcluster_proxy.core.headers import ClientHeaders
from pdcluster_proxy.core.messages import (
    EndpointView,
    LeaseEvent,
    LeaseEventKind,
    Outcome,
    OutcomeKind,
)
from pdcluster_proxy.core.picker import NoPick, pick_decode, pick_prefill
from pdcluster_proxy.core.ports import Address, EngineConnection, RelayEnd, RelayOutcome
from pdcluster_proxy.core.replies import PrefillUsage
from pdcluster_proxy.core.sse import StreamEditor
from pdcluster_proxy.errors import ProxyError
from pdcluster_proxy.exchange.answer import ClientSide
from pdcluster_proxy.exchange.engine_legs import (
    PrefillReply,
    receive_decode,
    receive_prefill,
    send_leg,
)
from pdcluster_proxy.exchange.legs import Leave
from pdcluster_proxy.exchange.story import Story
from pdcluster_proxy.exchange.worker import Worker

__all__ = ["Actions"]

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
        self.x = Exchange(two_legs=request.request_class is RequestClass.TWO_LEGS)
        self.story = Story(worker, request, client.request_id)
        self.is_overdue = False
        self._deadline_at = worker.clock() + worker.bounds.request_s
        self._connection: EngineConnection | None = None
        self._leave: Leave | None = None
        self._outcome: Outcome | None = None
        self._prefill: EndpointView | None = None
        self._decode: EndpointView | None = None
        self._params: KVTransferParams | None = None
        self._usage: PrefillUsage | None = None
        self._answer = b""
        self._leg_id = ""

    async def execute(self, commands: tuple[Command, ...]) -> Event | None:
        """Execute commands in order; at most the last one brings an event."""
        event: Event | None = None
        for command in commands:
            now = _AT_ONCE.get(type(command))
            if now is not None:
                event = now(self, command)
            else:
                event = await _AWAITED[type(command)](self, command)
        return event

    def close(self) -> None:
        """Give back whatever is still held, on whichever way out."""
        self.abort_leg()
        if self.x.grant is not None:
            self._lease_event(LeaseEventKind.ENDED, 0.0)

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
        endpoint = self._prefill
        assert endpoint is not None, "picked before it is sent"
        worker = self._worker
        self._leg_id = f"{self._client.request_id}-{worker.new_id()}"
        self._leave = worker.legs.enter(endpoint.name, prompt_tokens=self._request.prompt_tokens)
        sent_at = worker.clock()
        try:
            connection = await self._connect(endpoint)
        except ProxyError as error:
            return self._failed(Leg.PREFILL, endpoint, failure_of_error(Leg.PREFILL, error))
        send_leg(
            connection,
            Leg.PREFILL,
            self._request,
            endpoint=endpoint,
            headers=self._headers,
            leg_id=self._leg_id,
        )
        reply = await receive_prefill(
            connection, endpoint, bounds=worker.bounds, timeout_s=self._first_byte_s()
        )
        if isinstance(reply, Failure):
            return self._failed(Leg.PREFILL, endpoint, reply)
        self._outcome = Outcome(endpoint.name, OutcomeKind.SUCCEEDED)
        self._close_leg()
        return self._granted(endpoint, reply, sent_at)

    def _granted(self, endpoint: EndpointView, reply: PrefillReply, sent_at: float) -> Event:
        worker = self._worker
        now = worker.clock()
        started = clock_start(answered_at=now, last_tick_at=worker.last_tick_at)
        self._params, self._usage = reply.params, reply.usage
        self._lease_event(LeaseEventKind.GRANTED, now - started, params=reply.params.raw)
        self.story.granted(endpoint, reply, self._leg_id, now - sent_at)
        return PrefillReplied(Grant(reply.params.request_id, started))

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
            failure = Failure(
                FailureKind.UNREACHED, 503, "no-decode-engine", message, retry_after_s=1
            )
            return DeadlinePassed(failure)
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
        self._leave = self._worker.legs.enter(endpoint.name)
        try:
            await self._connect(endpoint)
        except ProxyError as error:
            return self._failed(Leg.DECODE, endpoint, failure_of_error(Leg.DECODE, error))
        return DecodeConnected()

    async def send_decode(self, _command: SendDecode) -> Event:
        """Run the decode leg until its answer can be committed."""
        connection, endpoint = self._connection, self._decode
        assert connection is not None, "connected before it is sent"
        assert endpoint is not None, "picked before it is sent"
        grant, params = self.x.grant, self._params if self.x.grant is not None else None
        send_leg(
            connection,
            Leg.DECODE,
            self._request,
            endpoint=endpoint,
            headers=self._headers,
            leg_id=self._leg_id or f"{self._client.request_id}-{self._worker.new_id()}",
            params=params.raw if params is not None else None,
        )
        timeout_s, held = self._first_byte_s(), False
        if grant is not None:
            now = self._worker.clock()
            self._lease_event(LeaseEventKind.HANDED_OFF, now - grant.clock_start)
            self.story.handed_off(now - grant.clock_start)
            hold_s = grant.clock_start + self._worker.bounds.max_hold_s - now
            timeout_s, held = min(timeout_s, hold_s), hold_s < timeout_s
        reply = await receive_decode(
            connection,
            self._request,
            bounds=self._worker.bounds,
            timeout_s=max(0.0, timeout_s),
            prefill=self._usage,
        )
        if isinstance(reply, Failure):
            return self._failed(Leg.DECODE, endpoint, self._as_hold(reply) if held else reply)
        self._decode_answered(endpoint)
        if reply.body is None:
            return FirstEvent()
        self._answer = reply.body
        return UpstreamEnded()

    def _decode_answered(self, endpoint: EndpointView) -> None:
        self._outcome = Outcome(endpoint.name, OutcomeKind.SUCCEEDED)
        grant, params = self.x.grant, self._params
        if grant is not None and params is not None:
            self._worker.note_met(params.engine_id, endpoint)
        age = self._worker.clock() - grant.clock_start if grant is not None else 0.0
        self.story.answered(age)

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
                    return _broken_stream("request-timeout", "The request's time is over.")
                return _broken_stream("decode-lost", "The decode engine's stream broke off.")

    # Both legs ------------------------------------------------------------------------------

    async def _connect(self, endpoint: EndpointView) -> EngineConnection:
        worker = self._worker
        self._connection = await worker.engines.connect(
            Address(endpoint.host, endpoint.port),
            timeout_s=min(worker.bounds.connect_s, self._remaining_s()),
        )
        return self._connection

    def _remaining_s(self) -> float:
        return max(0.001, self._deadline_at - self._worker.clock())

    def _first_byte_s(self) -> float:
        return min(self._worker.bounds.first_byte_s, self._remaining_s())

    def _failed(self, leg: Leg, endpoint: EndpointView, failure: Failure) -> Event:
        """Report a leg's bad end and gather what the decision needs."""
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
            retry_allowed=self._worker.take_retry(),
            other_decode=not isinstance(other, NoPick),
        )

    def _blame(self, endpoint: EndpointView, failure: Failure) -> None:
        kind = blame(failure)
        if kind is not None:
            self._outcome = Outcome(endpoint.name, kind, failure.code)

    def _close_leg(self) -> None:
        """The leg has ended by itself; its connection is back in the pool already."""
        self._connection = None
        leave, self._leave = self._leave, None
        outcome, self._outcome = self._outcome, None
        if leave is not None:
            leave(outcome)

    def abort_leg(self, _command: AbortLeg | None = None) -> None:
        """Close the connection that is out, if any."""
        if self._connection is not None:
            self._connection.abort()
        self._close_leg()

    def end_lease(self, command: EndLease) -> None:
        """Take the lease out of the ledger; the keeper, where there is one, does the releasing."""
        self._lease_event(LeaseEventKind.ENDED, 0.0, release=command.release)

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
        self, kind: LeaseEventKind, age_s: float, *, params: bytes = b"", release: bool = False
    ) -> None:
        held, prefill = self._params, self._prefill
        if held is None or prefill is None:
            return
        decode = self._decode if kind is LeaseEventKind.HANDED_OFF else None
        self._worker.companion.lease(
            LeaseEvent(
                kind=kind,
                endpoint=prefill.name,
                request_id=held.request_id,
                age_s=age_s,
                engine_id=held.engine_id,
                decode_endpoint=decode.name if decode else "",
                decode_incarnation=decode.incarnation if decode else 0,
                params=params,
                release=release,
            )
        )


def _broken_stream(code: str, message: str) -> UpstreamFailed:
    return UpstreamFailed(
        Leg.DECODE, Failure(FailureKind.BROKEN, 502, code, f"{message} The answer is cut short.")
    )


# The rows' keys fix the commands' types; a mapping of methods can't say so to the checker.
_AT_ONCE: Final[Mapping[type[Command], Callable[[Actions, Any], Event | None]]] = {
    PickPrefill: Actions.pick_prefill,
    PickDecode: Actions.pick_decode,
    AbortLeg: Actions.abort_leg,
    EndLease: Actions.end_lease,
}
_AWAITED: Final[Mapping[type[Command], Callable[[Actions, Any], Awaitable[Event | None]]]] = {
    SendPrefill: Actions.send_prefill,
    AwaitDecode: Actions.await_decode,
    ConnectDecode: Actions.connect_decode,
    SendDecode: Actions.send_decode,
    Relay: Actions.relay,
    Respond: Actions.respond,
    Refuse: Actions.refuse,
    StreamError: Actions.stream_error,
}
