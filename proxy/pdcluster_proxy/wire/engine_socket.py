"""One TCP connection to an engine, with its HTTP parser.

Shell. It carries legs (``engine_leg.py``) one after the other and knows whether it may carry
another. llhttp calls back on the end of a message only: framing is checked in C, no Python runs per
header or per chunk. What a relay passes on untouched, whole chunks of whole events, it does not
see.

Deliberately not here: what a leg does with the bytes, and which connection is used next.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

import httptools
from typing_extensions import override

from pdcluster_proxy.wire.engine_leg import EngineLeg

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdcluster_proxy.core.ports import Address

__all__ = ["EngineSocket"]

_FIRST_FINAL_STATUS = 200
_JOIN_LIMIT_BYTES = 64 * 1024


class EngineSocket(asyncio.Protocol):
    """A connection: transport, parser, and the one leg it carries.

    Args:
        address: Where it leads.
        on_unsent: Called with each request that is to go out soon; :meth:`flush` sends it.
        on_idle: Called once per leg after which the connection can carry another.
        on_closed: Called once, when the connection has ended.

    Attributes:
        address: Where it leads.
        closed: Set once the connection has ended.
        idle_since: Monotonic instant since which it carries no leg.
        is_complete: The current leg's response has ended by its framing.
        loop: The event loop, which costs a system call to ask for.
        pass_on: Set by a relay; takes reads that need no parsing and says whether it did. The
            parser may miss them: they are whole chunks.
    """

    # This is all the mutable state of a connection.
    __slots__ = (
        "_is_asked",
        "_is_broken",
        "_is_reading_paused",
        "_keeps_alive",
        "_leg",
        "_on_closed",
        "_on_idle",
        "_on_unsent",
        "_parser",
        "_transport",
        "_unsent",
        "address",
        "closed",
        "idle_since",
        "is_complete",
        "loop",
        "pass_on",
    )

    def __init__(
        self,
        address: Address,
        *,
        on_unsent: Callable[[EngineSocket], None],
        on_idle: Callable[[EngineSocket], None],
        on_closed: Callable[[EngineSocket], None],
    ) -> None:
        self.address = address
        self._on_unsent = on_unsent
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._leg: EngineLeg | None = None
        self._is_asked = False
        self._is_broken = False
        self._is_reading_paused = False
        self._keeps_alive = False
        self._unsent = b""
        self.loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self.pass_on: Callable[[bytes], bool] | None = None
        self.idle_since = 0.0
        self.is_complete = False

    # What legs and the pool use.

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open and free."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and self._leg is None

    @property
    def num_unsent(self) -> int:
        """Bytes written that the kernel has not taken yet."""
        if self._transport is None:
            return 0
        return len(self._unsent) + self._transport.get_write_buffer_size()

    def begin(self) -> EngineLeg:
        """Give the connection to a new leg."""
        assert self._leg is None
        self.is_complete = False
        self._is_asked = False
        self._keeps_alive = False
        self._leg = leg = EngineLeg(self)
        return leg

    def write(self, head: bytes, body: bytes) -> None:
        """Send one request: a small one with the others of this moment, a large one at once."""
        if self._transport is not None:
            # One buffer is one cheap system call; a large body is not worth its copy.
            if len(body) < _JOIN_LIMIT_BYTES:
                self._unsent = head + body
                self._on_unsent(self)
            else:
                self._is_asked = True
                self._transport.writelines((head, body))

    def flush(self) -> None:
        """Hand what is unsent to the kernel, or to the transport's buffer."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # It stays unsent, and that proves that the engine saw nothing.
        unsent, self._unsent = self._unsent, b""
        self._is_asked = True
        transport.write(unsent)

    def end_leg(self, *, may_reuse: bool) -> None:
        """The leg is over: back to the pool if another can follow, else close."""
        self._leg = self.pass_on = None
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._is_reading_paused:
            self.resume_reading()
        if may_reuse and self.is_complete and self._keeps_alive and not self._is_broken:
            self.idle_since = time.monotonic()
            self._on_idle(self)
        else:
            transport.abort()

    def pause_reading(self) -> None:
        """Stop taking bytes from the engine; the kernel's window then fills."""
        if not self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take bytes again."""
        if self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once; what is unsent is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def check(self, *, now: float, idle_limit_s: float) -> None:
        """Look at the clock: part of the client's sweep."""
        if self._leg is not None:
            self._leg.check(now)
        elif now - self.idle_since > idle_limit_s:
            self.abort()

    # What the event loop calls.

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        pass_on = self.pass_on
        if pass_on is not None and pass_on(data):
            return
        leg = self._leg
        # Nobody asked for these bytes, or nobody can have yet.
        if leg is None or self._is_broken or not self._is_asked:
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._is_broken = True
            if not self.is_complete:
                leg.break_off(f"sent what is not HTTP/1.1 ({error})")
                return
        leg.deliver(data)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        leg, self._leg = self._leg, None
        self.pass_on = None
        if leg is not None:
            leg.lose(exc)
        self._transport = None
        self._on_closed(self)
        if not self.closed.done():
            self.closed.set_result(None)

    # What llhttp calls.

    def on_message_complete(self) -> None:
        """The parser has seen a whole response."""
        if self._parser.get_status_code() < _FIRST_FINAL_STATUS:
            return
        if self.is_complete:  # A second response that nobody asked for.
            self._is_broken = True
        self.is_complete = True
        # Valid inside this callback only: llhttp clears its flags after it.
        self._keeps_alive = self._parser.should_keep_alive()
