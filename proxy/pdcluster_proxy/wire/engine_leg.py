"""One use of a connection to an engine: a request and its response, collected or relayed.

Shell. Theory of operation. Bytes come by callback (:attr:`EngineLeg.deliver`, which is the state:
head, body, relay), control flow is in coroutines that wait for one thing at a time. Until somebody
says what the body is for, at most 64 KiB of it are held, then the engine is paused.

The holder's handle is dead once the response is over, so that a late ``abort`` cannot hit the
connection's next user. Any failure closes the connection; only a response that ended by its framing
gives it back.

Source:
    ``performance.md`` 3.2 of the design for the division of labour.
"""

from __future__ import annotations

import asyncio
import time
from enum import Enum, auto
from typing import TYPE_CHECKING

from pdcluster_proxy.core.framing import ChunkDecoder, FramingError, StreamFraming, first_event
from pdcluster_proxy.errors import ConnectionLostError, UpstreamFailureError, UpstreamTimeoutError
from pdcluster_proxy.wire.leg_relay import LegRelay
from pdcluster_proxy.wire.response_head import parse_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdcluster_proxy.core.ports import EventEditor, ResponseHead
    from pdcluster_proxy.errors import ProxyError
    from pdcluster_proxy.wire.engine_socket import EngineSocket

__all__ = ["HOLD_LIMIT_BYTES", "EngineLeg"]

HOLD_LIMIT_BYTES = 64 * 1024
"""Most body bytes held before anybody wants them (``reliability.md`` 3 of the design)."""

_HEAD_LIMIT_BYTES = 64 * 1024
"""Largest response head; vLLM's are below 1 KiB."""


class _Awaits(Enum):
    """What the leg's coroutine waits for."""

    HEAD = auto()
    EVENT = auto()
    END = auto()


class EngineLeg:
    """Implements :class:`~pdcluster_proxy.core.ports.EngineConnection`.

    Attributes:
        deliver: Where the connection puts what it has read: the state.
    """

    # This is all the mutable state.
    __slots__ = (
        "_awaits",
        "_body",
        "_deadline",
        "_decoder",
        "_head",
        "_is_complete",
        "_is_late",
        "_left",
        "_limit",
        "_lost",
        "_num_sent",
        "_raw",
        "_relay",
        "_socket",
        "_waiter",
        "deliver",
    )

    def __init__(self, socket: EngineSocket) -> None:
        self._socket: EngineSocket | None = socket
        self.deliver: Callable[[bytes], None] = self._take_head
        self._num_sent = 0
        self._raw = b""
        self._head: ResponseHead | None = None
        self._decoder: ChunkDecoder | None = None
        self._left: int | None = None
        self._body: bytes | bytearray = b""  # A small body comes in one piece and is not copied.
        self._is_complete = False
        self._is_late = False
        self._limit = HOLD_LIMIT_BYTES
        self._lost: ProxyError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._awaits = _Awaits.HEAD
        self._deadline = 0.0
        self._relay: LegRelay | None = None

    # The port.

    @property
    def bytes_accepted(self) -> int:
        """Request bytes handed to the kernel; 0 proves that the engine saw nothing."""
        if self._socket is None:
            return self._num_sent
        return max(0, self._num_sent - self._socket.num_unsent)

    def send(self, head: bytes, body: bytes) -> None:
        """Write one request. ``head`` ends in the blank line and states the body's length."""
        if self._socket is not None:
            self._num_sent += len(head) + len(body)
            self._socket.write(head, body)

    async def head(self, *, timeout_s: float) -> ResponseHead:
        """Wait for the final response head; see the port."""
        if self._head is None:
            deadline = time.monotonic() + timeout_s
            while self._head is None:
                await self._wait(_Awaits.HEAD, deadline, "begin its answer")
        return self._head

    async def first_event(self, *, timeout_s: float, limit: int) -> bytes:
        """Wait for one whole event and peek at it; see the port."""
        deadline = time.monotonic() + timeout_s
        self._limit = max(limit, HOLD_LIMIT_BYTES)
        while True:
            event = first_event(self._body)
            if event or self._is_complete:
                return event or bytes(self._body)
            if len(self._body) > limit:
                self._fail(self._lost_error(f"sent a first event larger than {limit} bytes"))
            await self._wait(_Awaits.EVENT, deadline, "send its first event")

    async def collect(self, limit: int, *, timeout_s: float) -> bytes:
        """Read the whole body and give the connection back; see the port."""
        self._limit = limit
        if not self._is_complete:
            deadline = time.monotonic() + timeout_s
            while not self._is_complete and len(self._body) <= limit:
                await self._wait(_Awaits.END, deadline, "complete its answer")
        if len(self._body) <= limit:
            body = bytes(self._body)
            self._finish(may_reuse=True)
            return body
        self.abort()
        raise UpstreamFailureError(f"The engine's answer is larger than {limit} bytes.")

    def abort(self) -> None:
        """Close at once (the engine then aborts the request). Idempotent; harmless once over."""
        if self._relay is not None:
            # Whoever awaits the relay is told, too.
            self._relay.lose()
        self._finish(may_reuse=False)

    # What the relay needs.

    def prepare_relay(
        self,
        write: Callable[[bytes], None],
        *,
        editor: EventEditor,
        frames_output: bool,
        idle_timeout_s: float,
    ) -> LegRelay:
        """Send what is held and all that follows to ``write``, once the relay is started.

        Args:
            write: The client's side; called in the read callback.
            editor: Edits events with a mark.
            frames_output: Whether ``write`` gets HTTP chunks or bare payload.
            idle_timeout_s: Longest silence of the engine.
        """
        framing = StreamFraming(
            decoder=self._decoder,
            held=bytes(self._body),
            editor=editor,
            frames_output=frames_output,
        )
        self._body = b""
        self._relay = relay = LegRelay(
            framing,
            write,
            source=self._socket,
            is_complete=self._is_complete,
            on_end=self._finish,
            left=self._left,
            idle_timeout_s=idle_timeout_s,
        )
        self.deliver = relay.deliver
        if self._socket is not None:
            self._socket.pass_on = relay.pass_on
        return relay

    # What the connection calls.

    def lose(self, exc: Exception | None) -> None:
        """The connection has ended; ``exc`` is None where the engine closed it in order."""
        ends_with_connection = (
            self._head is not None and self._decoder is None and self._left is None
        )
        if exc is None and ends_with_connection:
            self._is_complete = True
        if self._relay is not None:
            self._relay.end_of_input(is_complete=self._is_complete)
        elif not self._is_complete:
            why = "closed the connection" if exc is None else f"lost the connection ({exc})"
            self._lost = self._lost or self._lost_error(why)
        self._num_sent = self.bytes_accepted
        self._socket = None
        self.deliver = _ignore
        self._wake()

    def break_off(self, why: str) -> None:
        """The engine broke the protocol: close, and fail whoever waits."""
        if self._relay is not None:
            self._relay.lose()
        else:
            self._fail(self._lost_error(why))

    def check(self, now: float) -> None:
        """Look at the clock: part of the client's sweep."""
        if self._relay is not None:
            self._relay.check(now)
        elif self._waiter is not None and now > self._deadline and not self._is_awaited():
            self._is_late = True
            self._wake()

    # States: where bytes go.

    def _take_head(self, data: bytes) -> None:
        self._raw = raw = self._raw + data if self._raw else data
        parsed = parse_head(raw)
        if parsed is None:
            if len(raw) > _HEAD_LIMIT_BYTES:
                self.break_off(f"sent a response head over {_HEAD_LIMIT_BYTES} bytes")
            return
        self._raw = b""
        self._head = parsed.head
        self._left = parsed.length
        if parsed.is_chunked:
            self._decoder = ChunkDecoder()
        self.deliver = self._take_body
        self._take_body(raw[parsed.end :])

    def _take_body(self, data: bytes) -> None:
        socket = self._socket
        if socket is None:
            return
        if self._decoder is not None:
            try:
                data = self._decoder.feed(data)
            except FramingError as error:
                self._fail(error)
                return
        elif self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        if not self._body:
            self._body = data
        elif isinstance(self._body, bytearray):
            self._body += data
        else:
            self._body = bytearray(self._body)
            self._body += data
        self._is_complete = socket.is_complete
        if len(self._body) > self._limit:
            socket.pause_reading()
        if self._waiter is not None and self._is_awaited():
            self._wake()

    # Inside.

    def _is_awaited(self) -> bool:
        """Whether what the coroutine waits for is there, or can never come."""
        match self._awaits:
            case _Awaits.HEAD:
                return self._head is not None
            case _Awaits.EVENT:
                return (
                    self._is_complete
                    or len(self._body) > self._limit
                    or bool(first_event(self._body))
                )
            case _Awaits.END:
                return self._is_complete or len(self._body) > self._limit

    async def _wait(self, awaits: _Awaits, deadline: float, what: str) -> None:
        """Sleep until what is awaited is there; raise where it cannot come or came too late."""
        socket = self._socket
        if self._lost is not None or socket is None:
            raise self._lost or self._lost_error("was given up by us")
        if len(self._body) <= self._limit:
            socket.resume_reading()
        self._awaits, self._deadline = awaits, deadline
        self._waiter = waiter = socket.loop.create_future()
        try:
            await waiter
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._waiter = None
        if self._is_late:
            self._finish(may_reuse=False)
            raise UpstreamTimeoutError(f"The engine did not {what} in time.")

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _lost_error(self, why: str) -> ConnectionLostError:
        return ConnectionLostError(f"The engine {why}.", accepted=self.bytes_accepted > 0)

    def _fail(self, error: ProxyError) -> None:
        self._lost = self._lost or error
        self._finish(may_reuse=False)
        self._wake()

    def _finish(self, *, may_reuse: bool) -> None:
        """End this use: the connection goes back or closes, exactly once."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        self.deliver = _ignore  # Else the leg would be a reference cycle.
        if not may_reuse:
            self._num_sent = max(0, self._num_sent - socket.num_unsent)
        elif self._decoder is not None and self._decoder.excess:
            may_reuse = False
        socket.end_leg(may_reuse=may_reuse)


def _ignore(_data: bytes) -> None:
    """Where bytes go once the leg is over: nowhere."""
