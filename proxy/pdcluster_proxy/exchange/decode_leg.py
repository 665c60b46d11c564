"""The decode leg: choose D, connect, hand off, and wait until its answer can be committed.

Shell. Each function is one command of the exchange machine and returns the event that came of it.
"""

from __future__ import annotations

from pdcluster_proxy.core.bodies import decode_body
from pdcluster_proxy.core.deadlines import answer_until, decode_wait_s, left_s
from pdcluster_proxy.core.exchange import (
    AwaitDecode,
    ConnectDecode,
    DeadlinePassed,
    DecodeConnected,
    DecodePicked,
    Event,
    FirstEvent,
    NoEndpoint,
    PickDecode,
    SendDecode,
    UpstreamEnded,
)
from pdcluster_proxy.core.failures import (
    Failure,
    Leg,
    failure_of_answer,
    failure_of_error,
    failure_of_first_event,
    nobody_decodes_in_time,
)
from pdcluster_proxy.core.messages import EndpointView
from pdcluster_proxy.core.picker import NoPick
from pdcluster_proxy.core.picker import pick_decode as pick
from pdcluster_proxy.core.ports import EngineConnection, ResponseHead
from pdcluster_proxy.core.replies import client_answer
from pdcluster_proxy.errors import ProxyError, UpstreamFailureError
from pdcluster_proxy.exchange.running import RunningExchange

__all__ = ["await_decode", "connect_decode", "pick_decode", "send_decode"]

_DECODE = Leg.DECODE


def pick_decode(running: RunningExchange, _command: PickDecode | AwaitDecode) -> Event:
    """Choose a decode engine."""
    worker = running.worker
    params = running.params if running.x.lease is not None else None
    picked = pick(
        worker.pool,
        mine=worker.legs.by_endpoint,
        excluded=running.x.bad_decode,
        prefill=running.prefill if params is not None else None,
        engine_id=params.engine_id if params is not None else None,
        rng=worker.rng,
    )
    if isinstance(picked, NoPick):
        return NoEndpoint(picked.lack, picked.message)
    running.decode = picked
    bound = None
    if params is not None and running.prefill is not None:
        bound = worker.hand_off_s(running.prefill, picked, params.engine_id)
    running.story.decode_picked(picked, bound)
    return DecodePicked(picked.name, bound)


async def await_decode(running: RunningExchange, command: AwaitDecode) -> Event:
    """Wait for a changed pool, then choose again; at most as long as a hand-off may come."""
    lease, prefill, worker = running.x.lease, running.prefill, running.worker
    assert lease is not None, "only a granted exchange waits for a decode engine"
    assert prefill is not None, "the lease was granted by a prefill engine"
    wait_s = decode_wait_s(
        worker.clock(),
        clock_start=lease.clock_start,
        longest_hand_off_s=worker.longest_hand_off_s(prefill),
        max_hold_s=worker.bounds.max_hold_s,
    )
    if wait_s is None:
        return DeadlinePassed(nobody_decodes_in_time())
    await worker.pool_change(wait_s)
    return pick_decode(running, command)


async def connect_decode(running: RunningExchange, _command: ConnectDecode) -> Event:
    """Get a connection to the chosen engine; send nothing."""
    endpoint = running.decode
    assert endpoint is not None, "picked before it is connected"
    running.enter_leg(endpoint, 0)
    now = running.worker.clock()
    try:
        await running.connect(endpoint, running.leg_until(now) - now)
    except ProxyError as error:
        return running.fail_leg(_DECODE, endpoint, failure_of_error(_DECODE, error))
    return DecodeConnected()


async def send_decode(running: RunningExchange, _command: SendDecode) -> Event:
    """Run the decode leg until its answer can be committed."""
    connection, endpoint, worker = running.connection, running.decode, running.worker
    assert connection is not None, "connected before it is sent"
    assert endpoint is not None, "picked before it is sent"
    lease = running.x.lease
    params = running.params if lease is not None else None
    if not running.leg_id:
        running.new_leg_id()
    raw = params.raw if params is not None else None
    running.send(connection, endpoint, decode_body(running.request, raw))
    now = worker.clock()
    if lease is not None:
        age_s = now - lease.clock_start
        running.tell_handed_off(age_s)
        running.story.handed_off(age_s)
    until, is_held = answer_until(
        now,
        leg_until=running.leg_until(now),
        clock_start=lease.clock_start if lease is not None else None,
        max_hold_s=worker.bounds.max_hold_s,
    )
    reply = await _begun_answer(running, connection, until)
    if isinstance(reply, Failure):
        return running.fail_leg(_DECODE, endpoint, reply, is_held=is_held)
    _answered(running, endpoint)
    if reply is None:
        return FirstEvent()
    running.answer = reply
    return UpstreamEnded()


async def _begun_answer(
    running: RunningExchange, connection: EngineConnection, until: float
) -> bytes | Failure | None:
    """Wait until D's answer can be committed: all of it, or None for a stream that began."""
    bounds, clock = running.worker.bounds, running.worker.clock
    try:
        head = await connection.head(timeout_s=left_s(until, clock()))
        if head.is_ok and head.is_encoded:
            raise UpstreamFailureError("The decode engine encoded its answer; nobody asked for it.")
        if head.is_ok and running.request.stream:
            event = await _first_event(
                connection, head, left_s(until, clock()), bounds.max_event_bytes
            )
            return failure_of_first_event(event)
        body = await connection.collect(bounds.max_answer_bytes, timeout_s=left_s(until, clock()))
        if not head.is_ok:
            return failure_of_answer(_DECODE, head, body)
        return client_answer(body, running.usage)
    except ProxyError as error:
        return failure_of_error(_DECODE, error)


async def _first_event(
    connection: EngineConnection, head: ResponseHead, timeout_s: float, limit: int
) -> bytes:
    """Wait for a stream's first event, without consuming it.

    Raises:
        UpstreamFailureError: The answer is no stream, or ended without an event.
        LocalFailureError: The connection broke, or nothing came in time.
    """
    if not head.is_event_stream:
        raise UpstreamFailureError("The decode engine answered a stream request without a stream.")
    event = await connection.first_event(timeout_s=timeout_s, limit=limit)
    if not event:
        raise UpstreamFailureError("The decode engine's stream ended before its first event.")
    return event


def _answered(running: RunningExchange, endpoint: EndpointView) -> None:
    """D's answer has begun: it has read the blocks, and the pair has met."""
    running.praise(endpoint)
    lease, params = running.x.lease, running.params
    age_s = 0.0
    if lease is not None and params is not None:
        running.worker.note_met(params.engine_id, endpoint)
        age_s = running.worker.clock() - lease.clock_start
    running.story.answered(age_s)
