"""The client's answer: a relayed stream, a whole body, an error.

Shell. Each function is one command of the exchange machine; a relay returns the event it ended in.
"""

from __future__ import annotations

from pdcluster_proxy.core.exchange import (
    Event,
    Relay,
    Respond,
    RespondError,
    StreamError,
    UpstreamEnded,
    UpstreamFailed,
)
from pdcluster_proxy.core.relay_ends import event_of_relay
from pdcluster_proxy.core.sse import StreamEditor
from pdcluster_proxy.exchange.running import RunningExchange

__all__ = ["relay", "respond", "respond_error", "stream_error"]


async def relay(running: RunningExchange, _command: Relay) -> Event:
    """Commit the status and forward the stream."""
    connection, bounds = running.connection, running.worker.bounds
    assert connection is not None, "answered before it is relayed"
    editor = StreamEditor(running.usage)
    end = await running.client.relay(connection, editor=editor, idle_timeout_s=bounds.idle_s)
    running.story.relayed(end)
    event = event_of_relay(
        end.outcome,
        has_failed=editor.failed,
        is_overdue=running.is_overdue,
        request_s=bounds.request_s,
    )
    if isinstance(event, UpstreamEnded):
        running.close_leg()
        await running.client.end_stream(None)
    elif isinstance(event, UpstreamFailed) and running.decode is not None:
        running.blame(running.decode, event.failure)
    return event


async def respond(running: RunningExchange, _command: Respond) -> None:
    """Send the whole answer."""
    running.close_leg()
    await running.client.respond(running.answer)


async def respond_error(running: RunningExchange, command: RespondError) -> None:
    """Answer with an error."""
    running.story.failed(command.failure)
    await running.client.respond_error(command.failure)


async def stream_error(running: RunningExchange, command: StreamError) -> None:
    """End the stream visibly."""
    running.story.failed(command.failure)
    await running.client.end_stream(command.failure)
