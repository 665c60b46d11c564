"""The client's side of a response that is relayed, and of a client that leaves.

Shell. :func:`relay_stream` copies an engine's event stream to the client; :func:`end_stream` ends
the response it leaves open; :func:`watch_client` tells when the client goes while nothing is
relayed.

Our own server offers the scope extension :data:`RELAY_EXTENSION`: reads of the engine are then
written to the client's transport in the read callback. Any other server, and HTTP/1.0 clients, get
ordinary ASGI body messages.

Source:
    ``performance.md`` 3.1 and 3.3 of the design.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from pdcluster_proxy.core.ports import RelayEnd, RelayOutcome
from pdcluster_proxy.wire.engine_leg import HOLD_LIMIT_BYTES, EngineLeg

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from pdcluster_proxy.core.ports import EngineConnection, EventEditor
    from pdcluster_proxy.wire.leg_relay import LegRelay

__all__ = [
    "RELAY_EXTENSION",
    "ClientPort",
    "ClientWatch",
    "answer",
    "end_stream",
    "relay_stream",
    "take_body",
    "watch_client",
]

RELAY_EXTENSION = "pdcluster.relay"
"""Key of the :class:`ClientPort` in ``scope["extensions"]``."""


class ClientPort(Protocol):
    """One client connection, as the server's protocol class offers it."""

    @property
    def is_gone(self) -> bool:
        """The client has closed its connection, or is about to be closed."""

    @property
    def is_behind(self) -> bool:
        """The client has yet to read much of what was written before."""

    @property
    def write(self) -> Callable[[bytes], None]:
        """Writes bytes that are framed already."""

    def attach(self, relay: LegRelay) -> None:
        """Tell ``relay`` of a client that is slow, catches up or leaves."""

    def detach(self) -> None:
        """The relay has ended."""

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back when the client leaves."""

    def forget(self, callback: Callable[[], None]) -> None:
        """Do not call back any more."""

    def close(self) -> None:
        """Flush what is written, for a short while, then close without ending the response."""

    def abort(self) -> None:
        """Close at once; what the client has not read is lost."""

    def take_body(self) -> bytes | None:
        """The request's whole body, where it is here already; else None."""

    def answer(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send a whole response; False where it must go the ordinary way."""


class ClientWatch(Protocol):
    """Tells when the client has closed its connection."""

    @property
    def gone(self) -> bool:
        """It has."""

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, when the client leaves; at once where it has left."""

    def close(self) -> None:
        """Stop watching; no callback comes after this. Idempotent."""


class _PortWatch:
    """A watch that our own server tells."""

    # This is all the mutable state.
    __slots__ = ("_callbacks", "_port")

    def __init__(self, port: ClientPort) -> None:
        self._port = port
        self._callbacks: list[Callable[[], None]] = []

    @property
    def gone(self) -> bool:
        return self._port.is_gone

    def on_gone(self, callback: Callable[[], None]) -> None:
        if self._port.is_gone:
            callback()
        else:
            self._callbacks.append(callback)
            self._port.on_gone(callback)

    def close(self) -> None:
        for callback in self._callbacks:
            self._port.forget(callback)
        self._callbacks.clear()


class _TaskWatch:
    """A watch that reads the request's messages, where no server of ours tells."""

    # This is all the mutable state.
    __slots__ = ("_callbacks", "_task", "gone")

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self._callbacks: list[Callable[[], None]] = []
        self._task = asyncio.get_running_loop().create_task(self._read(receive))

    async def _read(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_gone(self, callback: Callable[[], None]) -> None:
        if self.gone:
            callback()
        else:
            self._callbacks.append(callback)

    def close(self) -> None:
        self._callbacks.clear()
        self._task.cancel()


def watch_client(scope: Scope, receive: Receive) -> ClientWatch:
    """Watch for the client's departure, from now until the watch is closed.

    The request's body must have been received whole. Close the watch before a relay begins: the
    relay watches by itself, and without our server there is only one reader of ``receive``.
    """
    port = _client_port(scope)
    return _TaskWatch(receive) if port is None else _PortWatch(port)


async def relay_stream(
    scope: Scope,
    receive: Receive,
    send: Send,
    connection: EngineConnection,
    *,
    status: int,
    headers: list[tuple[bytes, bytes]],
    editor: EventEditor,
    idle_timeout_s: float,
    flush_s: float,
) -> RelayEnd:
    """Start the response and relay the engine's whole event stream into it.

    The response is left open: call :func:`end_stream`, unless the client is gone. The connection is
    pooled where its body ended, else closed.

    Args:
        scope: Of the request.
        receive: Of the request; used where the server does not offer the extension.
        send: Of the request.
        connection: Its head has been received; its body has not been collected.
        status: For the client.
        headers: For the client; without Content-Length.
        editor: Edits each event that contains one of ``EDIT_MARKS``.
        idle_timeout_s: Longest silence of the engine, in seconds.
        flush_s: How long the client may take to read what it got before, in seconds.

    Returns:
        How it ended: failures of engine or client are outcomes, never exceptions.
    """
    if not isinstance(connection, EngineLeg):
        raise TypeError(f"Only connections of EngineClient can be relayed, not {connection!r}.")
    try:
        port, outbox = _client_port(scope), _Outbox()
        if not await _sent(send, _start_of(status, headers), port, flush_s):
            connection.abort()
            return _NEVER_BEGUN
        relay = connection.prepare_relay(
            outbox.write if port is None else port.write,
            editor=editor,
            frames_output=port is not None,
            idle_timeout_s=idle_timeout_s,
        )
        if port is not None:
            return await _relay_to_port(port, relay)
        return await _relay_as_messages(outbox, relay, receive, send)
    except asyncio.CancelledError:
        connection.abort()
        raise


def take_body(scope: Scope) -> bytes | None:
    """Take the request's whole body, where our server has it already: small ones come at once.

    Returns:
        The body; or None where it has to be received in the ordinary way.
    """
    port = _client_port(scope)
    return None if port is None else port.take_body()


async def answer(
    scope: Scope,
    send: Send,
    *,
    status: int,
    headers: Sequence[tuple[bytes, bytes]],
    body: bytes,
    flush_s: float,
) -> None:
    """Send a whole response: in one write where our own server serves the request.

    Args:
        scope: Of the request.
        send: Of the request.
        status: For the client.
        headers: For the client; with Content-Length.
        body: Its body.
        flush_s: How long the client may take to read what it got before, in seconds.
    """
    port = _client_port(scope)
    if port is not None and port.answer(status, headers, body):
        return
    if await _sent(send, _start_of(status, list(headers)), port, flush_s):
        await send({"type": "http.response.body", "body": body})


async def end_stream(
    scope: Scope, send: Send, *, tail: bytes = b"", close: bool = False, flush_s: float
) -> None:
    """End a response that :func:`relay_stream` has left open.

    Args:
        scope: Of the request.
        send: Of the request.
        tail: One last event, for example an error.
        close: The answer is not whole: close the client's connection without the end of the body,
            so that the truncation shows at every level. Where the server gives no hold on its
            connection, the body is ended and only ``tail`` and the missing terminator tell.
        flush_s: How long the client may take to read what it has not read yet; then its connection
            is cut, for it must not hold the exchange's place for ever.
    """
    port = _client_port(scope)
    is_last = not close or port is None
    if tail or is_last:
        message = {"type": "http.response.body", "body": tail, "more_body": not is_last}
        if not await _sent(send, message, port, flush_s):
            return
    if not is_last and port is not None:
        port.close()


def _start_of(status: int, headers: list[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


async def _send(send: Send, message: Message) -> None:
    await send(message)


async def _sent(send: Send, message: Message, port: ClientPort | None, flush_s: float) -> bool:
    """Send a part of a response.

    Returns:
        False where the client did not read what it got before, for example of a pipelined request:
        it is cut, for it must not hold the exchange's place for ever.
    """
    if port is not None and not port.is_behind:
        await send(message)  # Waits for nobody.
        return True
    try:
        # Not asyncio.timeout: in a task that was cancelled before, as at the end of the server's
        # grace, that of Python 3.11.0 to 3.11.3 takes its own time-out for that cancellation.
        await asyncio.wait_for(_send(send, message), flush_s)
    except TimeoutError:
        if port is not None:
            port.abort()
        return False
    return True


_NEVER_BEGUN = RelayEnd(
    outcome=RelayOutcome.CLIENT_GONE, reads=0, num_bytes=0, first_at=None, last_at=None
)


def _client_port(scope: Scope) -> ClientPort | None:
    extensions = scope.get("extensions")
    port: ClientPort | None = extensions.get(RELAY_EXTENSION) if extensions else None
    return port


async def _relay_to_port(port: ClientPort, relay: LegRelay) -> RelayEnd:
    if port.is_gone:
        relay.client_gone()
        return await relay.done
    port.attach(relay)
    try:
        relay.start()
        return await relay.done
    finally:
        port.detach()


class _Outbox:
    """What waits to be sent as messages."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.num_bytes = 0
        self.changed = asyncio.Event()
        self.relay: LegRelay | None = None

    def write(self, data: bytes) -> None:
        self.parts.append(data)
        self.num_bytes += len(data)
        self.changed.set()
        if self.num_bytes > HOLD_LIMIT_BYTES and self.relay is not None:
            self.relay.pause()

    def take(self) -> bytes:
        data = b"".join(self.parts)
        self.parts.clear()
        self.num_bytes = 0
        return data


async def _relay_as_messages(
    outbox: _Outbox, relay: LegRelay, receive: Receive, send: Send
) -> RelayEnd:
    outbox.relay = relay
    relay.done.add_done_callback(lambda _: outbox.changed.set())
    watch = _TaskWatch(receive)
    watch.on_gone(relay.client_gone)
    try:
        relay.start()
        while outbox.parts or not relay.done.done():
            await outbox.changed.wait()
            outbox.changed.clear()
            data = outbox.take()
            if relay.done.done() and relay.done.result().outcome is RelayOutcome.CLIENT_GONE:
                break
            if data:
                await send({"type": "http.response.body", "body": data, "more_body": True})
                relay.resume()
    except OSError:  # How ASGI servers say that the client is gone (specification 2.4).
        relay.client_gone()
    finally:
        watch.close()
    return relay.done.result()
