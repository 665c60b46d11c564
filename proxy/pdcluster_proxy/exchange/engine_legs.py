"""The two legs as IO: send, wait, read, and name how it ended.

Shell. Each function does one command of the exchange machine and returns its event; errors of the
wire become failures here and nowhere else. Which leg comes next is the machine's affair.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdcluster_lease.params import KVTransferParams
from pdcluster_proxy.core.bodies import Api, ClientRequest, decode_body, prefill_body
from pdcluster_proxy.core.failures import (
    Failure,
    FailureKind,
    Leg,
    failure_of_error,
    failure_of_status,
)
from pdcluster_proxy.core.headers import ClientHeaders, leg_headers
from pdcluster_proxy.core.messages import EndpointView
from pdcluster_proxy.core.ports import Address, EngineConnection, ResponseHead
from pdcluster_proxy.core.replies import PrefillUsage, client_answer, parse_prefill_reply
from pdcluster_proxy.core.sse import is_failure_event
from pdcluster_proxy.errors import HandOffError, ProxyError
from pdcluster_proxy.exchange.worker import Bounds
from pdcluster_proxy.wire.engine_client import request_head

__all__ = ["DecodeReply", "PrefillReply", "receive_decode", "receive_prefill", "send_leg"]

_OK = 200
_PATHS = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class PrefillReply:
    """A prefill leg that worked."""

    params: KVTransferParams
    usage: PrefillUsage


@dataclass(frozen=True, slots=True)
class DecodeReply:
    """A decode leg that began to answer; ``body`` is the client's answer, or None: a stream."""

    body: bytes | None


def send_leg(
    connection: EngineConnection,
    leg: Leg,
    request: ClientRequest,
    *,
    endpoint: EndpointView,
    headers: ClientHeaders,
    leg_id: str,
    params: bytes | None = None,
) -> None:
    """Write one leg's request; from here on the engine may have it."""
    body = prefill_body(request) if leg is Leg.PREFILL else decode_body(request, params)
    head = request_head(
        "POST",
        _PATHS[request.api],
        Address(endpoint.host, endpoint.port),
        leg_headers(headers, leg_id),
        len(body),
    )
    connection.send(head, body)


async def receive_prefill(
    connection: EngineConnection, endpoint: EndpointView, *, bounds: Bounds, timeout_s: float
) -> PrefillReply | Failure:
    """Wait for P's answer and check it."""
    try:
        head = await connection.head(timeout_s=timeout_s)
        body = await connection.collect(bounds.max_answer_bytes, timeout_s=timeout_s)
        if head.status != _OK:
            return _bad_status(Leg.PREFILL, head, body)
        params, usage = parse_prefill_reply(body)
        _check_address(params, endpoint)
    except ProxyError as error:
        return failure_of_error(Leg.PREFILL, error)
    return PrefillReply(params, usage)


async def receive_decode(
    connection: EngineConnection,
    request: ClientRequest,
    *,
    bounds: Bounds,
    timeout_s: float,
    prefill: PrefillUsage | None,
) -> DecodeReply | Failure:
    """Wait until D's answer can be committed: its first event, or all of it."""
    try:
        head = await connection.head(timeout_s=timeout_s)
        if head.status != _OK:
            body = await connection.collect(bounds.max_answer_bytes, timeout_s=timeout_s)
            return _bad_status(Leg.DECODE, head, body)
        if request.stream:
            return await _first_event(connection, head, bounds=bounds, timeout_s=timeout_s)
        body = await connection.collect(bounds.max_answer_bytes, timeout_s=timeout_s)
        return DecodeReply(client_answer(body, prefill))
    except ProxyError as error:
        return failure_of_error(Leg.DECODE, error)


async def _first_event(
    connection: EngineConnection, head: ResponseHead, *, bounds: Bounds, timeout_s: float
) -> DecodeReply | Failure:
    if not head.is_event_stream:
        return _broken("The decode engine answered a stream request without a stream.")
    event = await connection.first_event(timeout_s=timeout_s, limit=bounds.max_event_bytes)
    if not event:
        return _broken("The decode engine's stream ended before its first event.")
    if is_failure_event(event):
        return _broken("The decode engine failed before its first token. Retry the request.")
    return DecodeReply(None)


def _broken(message: str) -> Failure:
    return Failure(FailureKind.BROKEN, 502, "decode-failed", message, answered=True)


def _bad_status(leg: Leg, head: ResponseHead, body: bytes) -> Failure:
    retry_after = next((v for k, v in head.headers if k == b"retry-after"), b"")
    seconds = int(retry_after) if retry_after.isdigit() else None
    return failure_of_status(leg, head.status, body, retry_after_s=seconds)


def _check_address(params: KVTransferParams, endpoint: EndpointView) -> None:
    """P names its side channel itself; one that discovery did not publish is never handed on."""
    published = (endpoint.side_channel_host, endpoint.side_channel_port)
    if (params.host, params.port) != published:
        raise HandOffError(
            f"The prefill answer names the side channel {params.host}:{params.port}, but discovery "
            f"published {published[0]}:{published[1]} for {endpoint.name}."
        )
