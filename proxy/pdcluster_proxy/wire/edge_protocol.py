"""The client's edge: uvicorn's protocol with a guard, deadlines and the relay extension.

Shell. Theory of operation. uvicorn drives ASGI; this subclass adds what must sit below it. A
connection is in one phase at a time (:class:`_Phase`), with the instant it began; the server's
sweep looks at both once per second, so no timer is set per request. What breaks a rule is rejected
with a JSON error in vLLM's shape and the connection closes; bytes that still come are read and
dropped for a while, so that the answer is not lost to a reset.

It leans on uvicorn's internals (``cycle``, ``flow``, ``pipeline``): the minor version is pinned.

Source:
    ``reliability.md`` 4.2 of the design for the rules; RFC 9112 for the messages.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import httptools
from typing_extensions import override
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pdcluster_proxy.errors import RejectedError
from pdcluster_proxy.wire.any_length import AnyLength
from pdcluster_proxy.wire.connection_port import ConnectionPort
from pdcluster_proxy.wire.edge_guard import (
    EdgeLimits,
    head_too_large,
    judge_head,
    judge_size,
    pipeline_full,
    render,
    too_slow,
    version_unsupported,
)
from pdcluster_proxy.wire.edge_parsing import PipelineFlow, rejection_of
from pdcluster_proxy.wire.relay import RELAY_EXTENSION
from pdcluster_proxy.wire.unread import UnreadAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from uvicorn import Config
    from uvicorn._types import ASGI3Application
    from uvicorn.server import ServerState

    from pdcluster_proxy.wire.leg_relay import LegRelay

__all__ = ["EdgeProtocol"]


_ASGI: Mapping[str, str] = {"version": "3.0", "spec_version": "2.3"}


class _Phase(Enum):
    """What a connection is waiting for."""

    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    IDLE = auto()
    LINGER = auto()


class EdgeProtocol(HttpToolsProtocol):
    """One client connection.

    Args:
        config: Of the server.
        server_state: Of the server.
        app_state: Of the application's lifespan.
        _loop: The event loop.
        limits: The guard's bounds.
        on_rejected: Called with the code of each rejection.
        on_unread: Called for each client that is cut because it does not read its answer.
        is_leaving: Says whether the server is on its way out: answers then announce the close, so
            that clients take their next request elsewhere.
        hot: ASGI endpoints by path that POSTs reach without the application around them.

    Attributes:
        answering: The request that is being answered; pipelined ones wait for their turn.
        relay: Told of a client that is slow, catches up or leaves.
        gone_callbacks: Called once, when the client leaves.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # uvicorn's type: what the lifespan put there.
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: EdgeLimits,
        on_rejected: Callable[[str], None],
        on_unread: Callable[[], None],
        is_leaving: Callable[[], bool],
        hot: Mapping[str, Any],  # ASGIApp; uvicorn types the same thing in its own way.
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._hot = hot
        self._is_leaving = is_leaving
        self._limits = limits
        self._on_rejected = on_rejected
        self._on_unread = on_unread
        # This is all the mutable state that we add.
        self._phase = _Phase.HEAD
        self._phase_since = time.monotonic()
        self._num_phase_bytes = 0
        self._num_bare_bytes = 0  # Of a body's framing since the last byte of the body itself.
        self._behind_since = 0.0
        self._unread = UnreadAnswer(
            grace_s=limits.read_grace_s, bytes_per_s=limits.read_bytes_per_s
        )
        # One port for all requests: one of each request's own would be a reference cycle for the
        # garbage collector.
        self._extensions = {RELAY_EXTENSION: ConnectionPort(self)}
        self.answering: RequestResponseCycle | None = None
        self.relay: LegRelay | None = None
        self.gone_callbacks: list[Callable[[], None]] = []
        self._pending_rejection = b""
        self._has_to_leave = False

    # What the transport calls.

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As uvicorn narrows it.
        super().connection_made(transport)
        self.flow = PipelineFlow(transport, self.pipeline)

    @override
    def data_received(self, data: bytes) -> None:
        phase = self._phase
        if phase is _Phase.LINGER:
            return
        if phase is not _Phase.ANSWER:
            self._num_phase_bytes += len(data)
            self._num_bare_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The parser has skipped any body, so what follows cannot be trusted as a request.
            self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            self._reject(rejection_of(error))
        else:
            phase = self._phase
            if phase is _Phase.HEAD:
                is_too_large = self._num_phase_bytes > self._limits.head_bytes
            else:
                is_too_large = (
                    phase is _Phase.BODY and self._num_bare_bytes > self._limits.head_bytes
                )
            if is_too_large:
                self._reject(head_too_large(self._limits))

    @override
    def eof_received(self) -> bool:  # type: ignore[override]  # As asyncio has it.
        """Answer what is asked already; but whoever leaves a long exchange half-closes too."""
        cycle = self.answering
        if (
            self._phase is not _Phase.ANSWER
            or cycle is None
            or cycle is not self.cycle
            or cycle.response_complete
            or cycle.scope["method"] == "POST"
        ):
            return False
        cycle.keep_alive = False
        return True

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._behind_since = time.monotonic()
        if self.relay is not None:
            self.relay.pause()

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        if self.relay is not None:
            self.relay.resume()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        relay, self.relay = self.relay, None
        if relay is not None:
            relay.client_gone()
        answering = self.answering  # uvicorn tells the latest request, which may wait behind it.
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        super().connection_lost(exc)
        callbacks, self.gone_callbacks = self.gone_callbacks, []
        for callback in callbacks:
            callback()

    # What the parser calls.

    @override
    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        if self._phase is not _Phase.HEAD:
            self._enter(_Phase.HEAD)
            self._num_phase_bytes = 1  # How much of this read belongs here is not known yet.

    @override
    def on_headers_complete(self) -> None:
        """Do as uvicorn does, with the guard before and the relay's port after it."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        self._judge(method, version)
        scope = self._make_scope(method, version)
        if len(self.pipeline) >= self._limits.num_waiting:
            raise pipeline_full(self._limits)
        # Nothing raises from here on: what is rejected in this phase has a cycle of its own.
        self._phase = _Phase.BODY  # Its time began with the head's: the clock is not asked again.
        self._num_phase_bytes = self._num_bare_bytes = 0
        earlier = self.cycle
        self.scope = scope
        self.cycle = cycle = RequestResponseCycle(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            False,
            self.server_state.default_headers,
            asyncio.Event(),
            self.expect_100_continue,
            version != "1.0" and self.parser.should_keep_alive() and not self._is_leaving(),
            self.on_response_complete,
        )
        if version == "1.0":
            cycle.chunked_encoding = False
            cycle.expected_content_length = AnyLength()
        elif method != b"HEAD":
            scope["extensions"] = self._extensions
        if earlier is None or earlier.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:  # Pipelined: it has to wait for its turn.
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def _make_scope(self, method: bytes, version: str) -> Any:  # uvicorn's own typed dictionary.
        target = httptools.parse_url(self.url)
        raw_path = target.path or b"/"
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method.decode("ascii"),
            "scheme": self.scheme,
            # As sent, unlike ASGI: "/v1%2Fcompletions" is not a route, for us or a proxy before us.
            "path": raw_path.decode("ascii"),
            "raw_path": raw_path,
            "query_string": target.query or b"",
            "root_path": "",
            "headers": self.headers,
            "server": self.server,
            "client": self.client,
            "state": self.app_state.copy(),
        }

    @override
    def on_body(self, body: bytes) -> None:
        self._num_bare_bytes = 0
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_chunk_header(self) -> None:
        """What follows the last chunk are trailers: no field of the request may come from there."""
        self.headers = []

    def on_chunk_complete(self) -> None:
        """Judge the trailers, which are dropped."""
        if self.headers:
            if len(self.headers) > self._limits.num_fields:
                raise head_too_large(self._limits)
            judge_size(b"", self.headers, self._limits)

    @override
    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._num_phase_bytes = 0
        if self.cycle.response_complete:
            self._enter(_Phase.IDLE)
        else:
            self._phase = _Phase.ANSWER

    @override
    def on_response_complete(self) -> None:
        """Do as uvicorn does, without its timer per request."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self.flow.resume_reading()
            self._start_asgi_task(cycle, app)
            return
        self.flow.resume_reading()
        if self._has_to_leave:
            self._leave_soon()
        if self._pending_rejection:
            self._write_rejection(self._pending_rejection)
        elif self._phase is _Phase.BODY:  # The application answered without reading it all.
            self._linger()
        elif self._phase is _Phase.ANSWER:
            self._enter(_Phase.IDLE)

    @override
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        scope = cycle.scope
        if scope["method"] == "POST":
            app = self._hot.get(scope["path"], app)
        self.answering = cycle
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    # What the server calls at its end.

    @override
    def shutdown(self) -> None:
        """Leave, but not under a client's next request.

        A client that was not told of the close may send one in the very moment; it would be reset,
        and could not know whether anybody had read it.
        """
        self._has_to_leave = True
        self._is_leaving = lambda: True
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._leave_soon()
        elif not cycle.response_started:
            cycle.keep_alive = False

    def _leave_soon(self) -> None:
        self.loop.call_later(self._limits.farewell_s, self._leave)

    def _leave(self) -> None:
        """Close an idle connection; one that has a request again closes with its answer."""
        if self.transport.is_closing():
            return
        if self._phase is _Phase.HEAD and self._num_phase_bytes:
            self._leave_soon()  # A request is coming in.
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    # What the server's sweep calls.

    def check(self, now: float) -> None:
        """Close or reject a connection that has used up its time."""
        elapsed = now - self._phase_since
        limits = self._limits
        if self._phase is not _Phase.LINGER and self._check_reading(now):
            return
        match self._phase:
            case _Phase.HEAD if self.flow.read_paused:
                self._phase_since = now
            case _Phase.HEAD if elapsed > limits.head_timeout_s:
                if self._num_phase_bytes:
                    self._reject(too_slow(f"head within {limits.head_timeout_s:g} s"))
                else:
                    self.transport.close()
            case _Phase.BODY if self.flow.read_paused:
                self._phase_since = now  # It is us who do not read.
                self._num_phase_bytes = 0
            case _Phase.BODY if elapsed > limits.body_timeout_s:
                self._reject(too_slow(f"body within {limits.body_timeout_s:g} s"))
            case _Phase.BODY if (
                elapsed > limits.body_grace_s
                and self._num_phase_bytes < elapsed * limits.body_bytes_per_s
            ):
                self._reject(too_slow(f"body at {limits.body_bytes_per_s:g} bytes/s or more"))
            case _Phase.IDLE if elapsed > limits.keep_alive_s:
                self.transport.close()
            case _Phase.LINGER if elapsed > limits.linger_s:
                self.transport.abort()
            case _:
                pass

    def _check_reading(self, now: float) -> bool:
        """Cut a client that does not read: a whole answer, a close, or an answer that waits for it.

        A relay bounds that by itself.

        Returns:
            Whether there is nothing else to look at.
        """
        is_closing = self.transport.is_closing()
        if is_closing:
            since = 0.0
        elif self._phase is _Phase.IDLE:
            since = self._phase_since
        elif self.flow.write_paused and self.relay is None:
            since = self._behind_since
        else:
            return False
        if self._unread.is_given_up(self.transport, now=now, since=since):
            self.transport.abort()
            self._on_unread()
            return True
        return is_closing

    # What the port calls.

    def close_flushed(self) -> None:
        """Flush, then close; the sweep cuts a client that does not read."""
        self._enter(_Phase.LINGER)
        self.transport.close()

    # Inside.

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._phase_since = time.monotonic()
        self._num_phase_bytes = 0

    def _judge(self, method: bytes, version: str) -> None:
        """Judge a complete head. Raises :class:`RejectedError`."""
        limits = self._limits
        is_http_1_0 = version == "1.0"
        if version != "1.1" and not is_http_1_0:
            raise version_unsupported()
        if self._num_phase_bytes > limits.head_bytes:  # Else it cannot be too large.
            judge_size(self.url, self.headers, limits)
        judge_head(
            method=method,
            target=self.url,
            fields=self.headers,
            is_http_1_0=is_http_1_0,
            is_upgrade=self.parser.should_upgrade(),
            limits=limits,
        )

    def _reject(self, rejection: RejectedError) -> None:
        """Answer with an error, in turn where earlier requests are still being answered."""
        if self._pending_rejection:
            return  # One ends the connection; what comes behind it is dropped.
        self._on_rejected(rejection.code)
        answer = render(
            rejection,
            default_fields=self.server_state.default_headers,
            request_id=uuid.uuid4().hex,
        )
        if self._phase is _Phase.BODY:  # The rejected request has reached, or waits for, its turn.
            cycle = self.cycle
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle is not self.answering:
                self.pipeline.popleft()
            elif cycle.response_started:
                self.transport.close()
                return
        earlier = self.answering
        if earlier is None or earlier.response_complete or earlier.disconnected:
            self._write_rejection(answer)
        else:
            self._pending_rejection = answer
            self._enter(_Phase.ANSWER)

    def _write_rejection(self, answer: bytes) -> None:
        self.transport.write(answer)
        self._linger()

    def _linger(self) -> None:
        """Close our side, and read what still comes until the client closes or time is up."""
        self._enter(_Phase.LINGER)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
