"""The client's side of an exchange: errors, whole answers, streams.

Shell. Every answer carries ``x-request-id``; errors carry the stable reason in a header of ours
as well as in the body.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from pdcluster_proxy.core.error_bodies import REASON_HEADER, error_body, error_event
from pdcluster_proxy.core.failures import Failure
from pdcluster_proxy.core.ports import EngineConnection, EventEditor, RelayEnd
from pdcluster_proxy.wire.relay import ClientWatch, answer, end_stream, relay_stream, watch_client

__all__ = ["ClientSide"]

_JSON = (b"content-type", b"application/json")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_NO_STORE = (b"cache-control", b"no-store")


class ClientSide:
    """One client request's connection.

    Args:
        scope: Of the request.
        receive: Of the request.
        send: Of the request.
        request_id: The id the client is told.
        flush_s: How long it may take to read the end of its stream, in seconds.

    Attributes:
        request_id: The id the client is told.
        status: The status that went out; 0 before.
    """

    __slots__ = ("_flush_s", "_receive", "_scope", "_send", "_watch", "request_id", "status")

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, request_id: str, flush_s: float
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._flush_s = flush_s
        self.request_id = request_id
        self.status = 0
        self._watch: ClientWatch | None = None

    def watch(self, on_gone: Callable[[], None]) -> None:
        """Have ``on_gone`` called when the client leaves while nothing is relayed."""
        self._watch = watch_client(self._scope, self._receive)
        self._watch.on_gone(on_gone)

    def unwatch(self) -> None:
        """Stop watching. Idempotent."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    async def respond_error(self, failure: Failure, *, param: str | None = None) -> None:
        """Answer with an error: an engine's own 4xx body, or one of ours."""
        body = failure.body
        if body is None:
            body = error_body(
                status=failure.status,
                code=failure.code,
                message=failure.message,
                param=param,
                request_id=self.request_id,
            )
        extra = [(REASON_HEADER, failure.code.encode())]
        if failure.retry_after_s is not None:
            extra.append((b"retry-after", b"%d" % failure.retry_after_s))
        await self._answer(failure.status, body, extra)

    async def respond(self, body: bytes) -> None:
        """Send a whole answer."""
        await self._answer(200, body, [])

    async def relay(
        self, connection: EngineConnection, *, editor: EventEditor, idle_timeout_s: float
    ) -> RelayEnd:
        """Commit status 200 and forward the stream; the response stays open."""
        self.status = 200
        # The relay sees the client leave by itself.
        self.unwatch()
        return await relay_stream(
            self._scope,
            self._receive,
            self._send,
            connection,
            status=200,
            headers=[_EVENTS, _NO_STORE, (b"x-request-id", self.request_id.encode())],
            editor=editor,
            idle_timeout_s=idle_timeout_s,
            flush_s=self._flush_s,
        )

    async def end_stream(self, failure: Failure | None) -> None:
        """End the stream; after a failure visibly: an error event, no ``[DONE]``, and close."""
        if failure is None:
            await end_stream(self._scope, self._send, flush_s=self._flush_s)
            return
        tail = error_event(
            status=failure.status,
            code=failure.code,
            message=failure.message,
            request_id=self.request_id,
        )
        await end_stream(self._scope, self._send, tail=tail, close=True, flush_s=self._flush_s)

    async def _answer(self, status: int, body: bytes, extra: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        headers = [
            _JSON,
            (b"content-length", b"%d" % len(body)),
            _NO_STORE,
            (b"x-request-id", self.request_id.encode()),
            *extra,
        ]
        await answer(
            self._scope,
            self._send,
            status=status,
            headers=headers,
            body=body,
            flush_s=self._flush_s,
        )
