"""The prefill leg: choose P, send it the prompt, take what it grants.

Shell. Each function is one command of the exchange machine and returns the event that came of it.
"""

from __future__ import annotations

from pdcluster_lease.timing import clock_start
from pdcluster_proxy.core.bodies import prefill_body
from pdcluster_proxy.core.deadlines import left_s
from pdcluster_proxy.core.exchange import (
    Event,
    HeldLease,
    NoEndpoint,
    PickPrefill,
    PrefillPicked,
    PrefillReplied,
    SendPrefill,
)
from pdcluster_proxy.core.failures import Leg, failure_of_answer, failure_of_error
from pdcluster_proxy.core.picker import NoPick
from pdcluster_proxy.core.picker import pick_prefill as pick
from pdcluster_proxy.core.replies import check_side_channel, parse_prefill_reply
from pdcluster_proxy.errors import ProxyError
from pdcluster_proxy.exchange.running import RunningExchange

__all__ = ["pick_prefill", "send_prefill"]

_PREFILL = Leg.PREFILL


def pick_prefill(running: RunningExchange, _command: PickPrefill) -> Event:
    """Choose a prefill engine."""
    worker = running.worker
    picked = pick(
        worker.pool,
        mine=worker.legs.by_endpoint,
        excluded=running.x.bad_prefill,
        rng=worker.rng,
    )
    if isinstance(picked, NoPick):
        return NoEndpoint(picked.lack, picked.message, worker.may_prefill_locally)
    running.prefill = picked
    running.story.prefill_picked(picked)
    return PrefillPicked(picked.name)


async def send_prefill(running: RunningExchange, _command: SendPrefill) -> Event:
    """Run the prefill leg on the chosen engine."""
    endpoint, worker = running.prefill, running.worker
    assert endpoint is not None, "picked before it is sent"
    running.new_leg_id()
    running.enter_leg(endpoint, running.request.prompt_tokens)
    clock = worker.clock
    sent_at = clock()
    until = running.leg_until(sent_at)
    try:
        connection = await running.connect(endpoint, until - sent_at)
        running.send(connection, endpoint, prefill_body(running.request))
        head = await connection.head(timeout_s=left_s(until, clock()))
        answer = await connection.collect(
            worker.bounds.max_answer_bytes, timeout_s=left_s(until, clock())
        )
        if not head.is_ok:
            return running.fail_leg(_PREFILL, endpoint, failure_of_answer(_PREFILL, head, answer))
        params, usage = parse_prefill_reply(answer)
        check_side_channel(params, endpoint)
    except ProxyError as error:
        return running.fail_leg(_PREFILL, endpoint, failure_of_error(_PREFILL, error))
    running.praise(endpoint)
    running.close_leg()
    now = clock()
    started = clock_start(answered_at=now, last_tick_at=worker.last_tick_at)
    running.params, running.usage = params, usage
    running.tell_granted(now - started)
    running.story.granted(endpoint, params, usage, running.leg_id, now - sent_at)
    return PrefillReplied(HeldLease(params.request_id, started))
