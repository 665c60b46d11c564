"""The client's edge: uvicorn's protocol with a guard, deadlines and the relay extension.

Shell. Theory of operation. uvicorn drives ASGI; this subclass adds what must sit below it. A
connection is in one phase at a time (:class:`_Phase`), with the instant it began; the server's
sweep looks at both once per second, so no timer is set per request. What breaks a rule is refused
with a JSON error in vLLM's shape and the connection closes; bytes that still come are read and
dropped for a while, so that the answer is not lost to a reset.

It leans on uvicorn's internals (``cycle``, ``flow``, ``pipeline``): the minor version is pinned.

Source:
    ``reliability.md`` 4.2 of the design for the rules; RFC 9112 for the messages.
"""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import httptools
import msgspec
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pdcluster_proxy.wire.relay import RELAY_EXTENSION

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from starlette.types import ASGIApp, Scope
    from uvicorn import Config
    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from uvicorn.server import ServerState

    from pdcluster_proxy.wire.leg_relay import LegRelay

__all__ = ["EdgeLimits", "EdgeProtocol", "RefusedRequestError", "RequestPort"]

_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]+)(?::[0-9]{1,5})?")
_REFUSED_METHODS = (b"TRACE", b"CONNECT")


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLimits:
    """Bounds on what a client may send before any application code runs.

    Attributes:
        head_bytes: Request line and fields together.
        num_fields: Header fields; vLLM has a cap of this kind since CVE-2025-48956.
        head_timeout_s: From the connection's or request's first byte to the end of the head.
        body_bytes_per_s: Slowest body, measured from the head's first byte.
        body_grace_s: A body may take this long whatever its rate.
        keep_alive_s: Idle time between two requests of a connection.
        linger_s: How long a refused client's bytes are read and dropped.
    """

    head_bytes: int = 64 * 1024
    num_fields: int = 100
    head_timeout_s: float = 10.0
    body_bytes_per_s: float = 1024.0
    body_grace_s: float = 10.0
    keep_alive_s: float = 75.0
    linger_s: float = 2.0


class RefusedRequestError(Exception):
    """A request that breaks a rule of the edge; raised through llhttp to stop the parser."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class _Phase(Enum):
    """What a connection is waiting for."""

    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    IDLE = auto()
    LINGER = auto()


class _AnyLength(int):
    """Content length of an answer that ends with the connection: no sum is too long or too short.

    uvicorn chunks every answer of unknown length, which an HTTP/1.0 client cannot read.
    """

    @override
    def __sub__(self, _other: object) -> _AnyLength:
        return self

    @override
    def __lt__(self, _other: object) -> bool:
        return False

    @override
    def __ne__(self, _other: object) -> bool:
        return False

    __hash__ = int.__hash__


class RequestPort:
    """One request's hold on its connection: the :class:`~pdcluster_proxy.wire.relay.ClientPort`.

    Args:
        protocol: The client's connection.
        cycle: uvicorn's record of the request.
    """

    __slots__ = ("_cycle", "_protocol")

    def __init__(self, protocol: EdgeProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle

    @property
    def write(self) -> Callable[[bytes], None]:
        """Writes bytes that are framed already."""
        return self._protocol.transport.write

    @property
    def is_gone(self) -> bool:
        """The client has closed its connection, or is about to be closed."""
        return self._protocol.transport.is_closing()

    def attach(self, relay: LegRelay) -> None:
        """Tell ``relay`` of a client that is slow, catches up or leaves."""
        self._protocol.relay = relay
        if self._protocol.flow.write_paused:
            relay.pause()

    def detach(self) -> None:
        """The relay has ended."""
        self._protocol.relay = None

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back when the client leaves."""
        self._protocol.gone_callbacks.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Do not call back any more."""
        callbacks = self._protocol.gone_callbacks
        if callback in callbacks:
            callbacks.remove(callback)

    def close(self) -> None:
        """Flush what is written, then close without ending the response."""
        self._cycle.disconnected = True  # Else uvicorn reports an answer that was not completed.
        self._protocol.transport.close()

    def answer(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send a whole response in one write, which uvicorn would do in two.

        Returns:
            False where the client is slow to take what was written before: send it the other way.

        Raises:
            ValueError: A field has a line end in it.
        """
        protocol, cycle = self._protocol, self._cycle
        if protocol.flow.write_paused:
            return False
        if cycle.disconnected:
            return True
        fields = [*protocol.server_state.default_headers, *headers]
        if not cycle.keep_alive:
            fields.append((b"connection", b"close"))
        lines = [b"%b: %b\r\n" % field for field in fields]
        head = b"".join([STATUS_LINE[status], *lines, b"\r\n"])
        if head.count(b"\n") != len(fields) + 2:
            raise ValueError("A response field contains a line end.")
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        protocol.transport.write(head + body)
        if not cycle.keep_alive:
            protocol.transport.close()
        cycle.on_response()
        return True


class EdgeProtocol(HttpToolsProtocol):
    """One client connection.

    Args:
        config: Of the server.
        server_state: Of the server.
        app_state: Of the application's lifespan.
        _loop: The event loop.
        limits: The guard's bounds.
        on_refused: Called with the code of each refusal.
        hot: ASGI endpoints by path that POSTs reach without the application around them.

    Attributes:
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
        on_refused: Callable[[str], None],
        hot: Mapping[str, ASGIApp],
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._hot = hot
        self._limits = limits
        self._on_refused = on_refused
        # This is all the mutable state that we add.
        self._phase = _Phase.HEAD
        self._phase_since = time.monotonic()
        self._num_phase_bytes = 0
        self.relay: LegRelay | None = None
        self.gone_callbacks: list[Callable[[], None]] = []
        self._pending_refusal = b""
        self._known_host: bytes | None = None

    # What the transport calls.

    @override
    def data_received(self, data: bytes) -> None:
        phase = self._phase
        if phase is _Phase.LINGER:
            return
        if phase is not _Phase.ANSWER:
            self._num_phase_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, RefusedRequestError):
                cause = _malformed("its target is not valid")
            self._refuse(cause)
        except httptools.HttpParserInvalidMethodError:
            self._refuse(
                RefusedRequestError(
                    HTTPStatus.NOT_IMPLEMENTED, "method-unknown", "The request's method is unknown."
                )
            )
        except httptools.HttpParserUpgrade:
            # The parser has skipped any body, so what follows cannot be trusted as a request.
            self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            self._refuse(_malformed(str(error)))
        else:
            if self._phase is _Phase.HEAD and self._num_phase_bytes > self._limits.head_bytes:
                self._refuse(self._too_large())

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
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
        super().connection_lost(exc)
        callbacks, self.gone_callbacks = self.gone_callbacks, []
        for callback in callbacks:
            callback()

    # What the parser calls.

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._phase is not _Phase.HEAD:
            self._enter(_Phase.HEAD)
            self._num_phase_bytes = 1  # How much of this read belongs here is not known yet.

    @override
    def on_headers_complete(self) -> None:
        self._guard()
        super().on_headers_complete()
        self._phase = _Phase.BODY  # Its time began with the head's: the clock is not asked again.
        self._num_phase_bytes = 0
        # The application's task exists but has not run yet.
        scope = cast("Scope", self.scope)
        if scope["http_version"] == "1.0":
            self.cycle.chunked_encoding = False
            self.cycle.expected_content_length = _AnyLength()
        elif scope["method"] != "HEAD":
            scope["extensions"] = {RELAY_EXTENSION: RequestPort(self, self.cycle)}

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
        if self._pending_refusal:
            self._write_refusal(self._pending_refusal)
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._phase is _Phase.BODY:  # The application answered without reading it all.
            self._linger()
        elif self._phase is _Phase.ANSWER:
            self._enter(_Phase.IDLE)

    @override
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        scope = cycle.scope
        if scope["method"] == "POST":
            app = cast("ASGI3Application", self._hot.get(scope["path"], app))
        super()._start_asgi_task(cycle, app)

    # What the server's sweep calls.

    def check(self, now: float) -> None:
        """Close or refuse a connection that has used up its time."""
        elapsed = now - self._phase_since
        limits = self._limits
        match self._phase:
            case _Phase.HEAD if elapsed > limits.head_timeout_s:
                if self._num_phase_bytes:
                    self._refuse(_too_slow(f"head within {limits.head_timeout_s:g} s"))
                else:
                    self.transport.close()
            case _Phase.BODY if self.flow.read_paused:
                self._phase_since = now  # It is us who do not read.
                self._num_phase_bytes = 0
            case _Phase.BODY if (
                elapsed > limits.body_grace_s
                and self._num_phase_bytes < elapsed * limits.body_bytes_per_s
            ):
                self._refuse(_too_slow(f"body at {limits.body_bytes_per_s:g} bytes/s or more"))
            case _Phase.IDLE if elapsed > limits.keep_alive_s:
                self.transport.close()
            case _Phase.LINGER if elapsed > limits.linger_s:
                self.transport.abort()
            case _:
                pass

    # Inside.

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._phase_since = time.monotonic()
        self._num_phase_bytes = 0

    def _guard(self) -> None:
        """Judge a complete head. Raises :class:`RefusedRequestError`."""
        if len(self.headers) > self._limits.num_fields:
            raise self._too_large()
        if self._num_phase_bytes > self._limits.head_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._limits.head_bytes:
                raise self._too_large()
        method = self.parser.get_method()
        if method in _REFUSED_METHODS:
            raise RefusedRequestError(
                HTTPStatus.NOT_IMPLEMENTED, "method-refused", f"{method.decode()} is not served."
            )
        if not self.url.startswith((b"/", b"http://", b"https://")):
            raise _malformed("its target must start with '/' or be an absolute URL")
        self._guard_fields()

    def _guard_fields(self) -> None:
        hosts = [value for name, value in self.headers if name == b"host"]
        is_old = self.parser.get_http_version() == "1.0"
        if len(hosts) != 1 and not (is_old and not hosts):
            raise _malformed(f"it has {len(hosts)} Host fields, not one")
        if hosts and hosts[0] != self._known_host:
            if _HOST.fullmatch(hosts[0]) is None:
                raise _malformed("its Host field is not valid")
            self._known_host = hosts[0]
        if is_old and any(name == b"transfer-encoding" for name, _ in self.headers):
            raise _malformed("HTTP/1.0 has no Transfer-Encoding")
        if self.parser.should_upgrade() and any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self.headers
        ):
            raise _malformed("it asks for an upgrade and has a body; send it without Upgrade")

    def _too_large(self) -> RefusedRequestError:
        return RefusedRequestError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            "head-too-large",
            f"The request's head is over {self._limits.head_bytes} bytes or"
            f" {self._limits.num_fields} fields; send less.",
        )

    def _refuse(self, refusal: RefusedRequestError) -> None:
        """Answer with an error, in turn where an earlier request is still being answered."""
        self._on_refused(refusal.code)
        answer = _render(refusal, self.server_state.default_headers)
        cycle = self.cycle
        is_current = self._phase is _Phase.BODY
        if is_current and not self.pipeline:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        elif cycle is not None and not cycle.response_complete:
            self.pipeline.clear()
            self._pending_refusal = answer
            self._enter(_Phase.ANSWER)
            return
        self._write_refusal(answer)

    def _write_refusal(self, answer: bytes) -> None:
        self.transport.write(answer)
        self._linger()

    def _linger(self) -> None:
        """Close our side, and read what still comes until the client closes or time is up."""
        self._enter(_Phase.LINGER)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()


def _malformed(why: str) -> RefusedRequestError:
    return RefusedRequestError(
        HTTPStatus.BAD_REQUEST, "malformed-request", f"The request is not valid HTTP/1.1: {why}."
    )


def _too_slow(what: str) -> RefusedRequestError:
    return RefusedRequestError(
        HTTPStatus.REQUEST_TIMEOUT, "request-too-slow", f"Send the request's {what}."
    )


def _render(refusal: RefusedRequestError, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    body = msgspec.json.encode(
        {
            "error": {
                "message": refusal.message,
                "type": "invalid_request_error",
                "param": None,
                "code": refusal.code,
            }
        }
    )
    lines = [b"HTTP/1.1 %d %b" % (refusal.status, refusal.status.phrase.encode())]
    lines += [b"%b: %b" % field for field in default_headers]
    lines += [
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"x-request-id: %b" % uuid.uuid4().hex.encode(),
        b"connection: close",
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
