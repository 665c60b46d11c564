"""Judging what engines answer: bad statuses, foreign addresses, streams that fail at once.

Shell only where it waits for a first event; what a failure leads to is the machine's affair.
"""

from __future__ import annotations

from typing import Final

from pdcluster_lease.params import KVTransferParams
from pdcluster_proxy.core.failures import Failure, FailureKind, Leg, failure_of_status
from pdcluster_proxy.core.messages import EndpointView
from pdcluster_proxy.core.ports import EngineConnection, ResponseHead
from pdcluster_proxy.core.sse import is_failure_event
from pdcluster_proxy.errors import HandOffError, UpstreamFailureError
from pdcluster_proxy.exchange.worker import Bounds

__all__ = ["HTTP_OK", "bad_status", "check_address", "first_event", "refused_event"]

HTTP_OK: Final = 200


def bad_status(leg: Leg, head: ResponseHead, body: bytes) -> Failure:
    """Classify an answer that is not 200."""
    retry_after = next((value for name, value in head.headers if name == b"retry-after"), b"")
    seconds = int(retry_after) if retry_after.isdigit() else None
    return failure_of_status(leg, head.status, body, retry_after_s=seconds)


def check_address(params: KVTransferParams, endpoint: EndpointView) -> None:
    """Demand the side channel that discovery published: P names it itself.

    Raises:
        HandOffError: It names another one, which is never handed on.
    """
    host, port = endpoint.side_channel_host, endpoint.side_channel_port
    if params.port != port or params.host != host:
        raise HandOffError(
            f"The prefill answer names the side channel {params.host}:{params.port}, but discovery "
            f"published {host}:{port} for {endpoint.name}."
        )


async def first_event(
    connection: EngineConnection, head: ResponseHead, bounds: Bounds, left_s: float
) -> bytes:
    """Wait for a stream's first event, without consuming it.

    Raises:
        UpstreamFailureError: The answer is no stream, or ended without an event.
        LocalFailureError: The connection broke, or nothing came in time.
    """
    if not head.is_event_stream:
        raise UpstreamFailureError("The decode engine answered a stream request without a stream.")
    event = await connection.first_event(timeout_s=left_s, limit=bounds.max_event_bytes)
    if not event:
        raise UpstreamFailureError("The decode engine's stream ended before its first event.")
    return event


def refused_event(event: bytes) -> Failure | None:
    """Tell whether a first event is a failure: then nothing was committed yet."""
    if not is_failure_event(event):
        return None
    message = "The decode engine failed before its first token. Retry the request."
    return Failure(FailureKind.BROKEN, 502, "decode-failed", message, answered=True)
