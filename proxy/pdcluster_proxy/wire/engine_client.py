"""The pooled engine client: takes or opens connections, keeps idle ones, watches their time.

Shell. One per worker. It implements :class:`~pdcluster_proxy.core.ports.Engines`; what one use of a
connection does is in ``engine_leg.py``. Deliberately not here: retries, choice of endpoints, status
codes, TLS.

Idle connections are taken last in, first out, so that the warmest is used and the surplus ages out.
One sweep per second looks at every connection; only the connect timeout is exact. The requests of
one pass of the event loop go out together after it: an engine that sleeps is woken by the first of
them, and finds the others when it looks; woken by each, it costs us a fifth more per request.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from pdcluster_proxy.errors import ConnectError
from pdcluster_proxy.wire.engine_socket import EngineSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pdcluster_proxy.core.ports import Address
    from pdcluster_proxy.wire.engine_leg import EngineLeg

__all__ = ["EngineClient", "request_head"]

IDLE_LIMIT_S = 4.0
"""An idle connection older than this is closed; vLLM's uvicorn closes its own after 5 s."""

SWEEP_INTERVAL_S = 1.0
"""Grain of all bounds but the connect timeout: they strike at most this much late, never early."""

MAX_ADDRESSES = 1_000
"""Addresses whose opened connections are counted; engines come and go under ever new ones."""


class EngineClient:
    """All connections of this process to engines.

    Args:
        idle_limit_s: Longest idle time of a pooled connection; keep it below the engines' own.
        sweep_interval_s: Seconds between two looks at all connections.
        on_opened: Called with the address of each connection that was opened.
        socket: What a connection is made of.
    """

    def __init__(
        self,
        *,
        idle_limit_s: float = IDLE_LIMIT_S,
        sweep_interval_s: float = SWEEP_INTERVAL_S,
        on_opened: Callable[[Address], None] = lambda _address: None,
        socket: type[EngineSocket] = EngineSocket,
    ) -> None:
        self._socket = socket
        self._on_opened = on_opened
        self._idle_limit_s = idle_limit_s
        self._sweep_interval_s = sweep_interval_s
        # This is all the mutable state.
        self._idle: dict[Address, dict[EngineSocket, None]] = {}  # A stack one can remove from.
        self._open: set[EngineSocket] = set()
        self._opened: Counter[Address] = Counter()
        self._unsent: deque[EngineSocket] = deque()
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def connections_opened(self) -> Mapping[Address, int]:
        """Connections opened, per address: more than the load explains means no reuse."""
        return self._opened

    @property
    def num_open(self) -> int:
        """Connections open now, idle ones included."""
        return len(self._open)

    @property
    def num_idle(self) -> int:
        """Connections waiting in the pool."""
        return sum(len(idle) for idle in self._idle.values())

    async def connect(self, address: Address, *, timeout_s: float) -> EngineLeg:
        """Take an idle connection or open one; nothing is sent.

        Args:
            address: The engine's HTTP API.
            timeout_s: Bound on opening a connection, exact.

        Raises:
            ConnectError: Nobody listens, unreachable, or not connected within ``timeout_s``.
        """
        idle = self._idle.get(address)
        if idle:
            oldest = time.monotonic() - self._idle_limit_s
            while idle:
                socket, _ = idle.popitem()
                if socket.is_usable and socket.idle_since > oldest:
                    return socket.begin()
                socket.abort()
        return await self._dial(address, timeout_s)

    async def close(self) -> None:
        """Close every connection; running legs fail with a lost connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        closing = tuple(self._open)
        for socket in closing:
            socket.abort()
        await asyncio.gather(*(socket.closed for socket in closing))

    async def _dial(self, address: Address, timeout_s: float) -> EngineLeg:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, socket = await loop.create_connection(
                    lambda: self._socket(
                        address,
                        on_unsent=self._send_later,
                        on_idle=self._return,
                        on_closed=self._forget,
                    ),
                    address.host,
                    address.port,
                )
        except TimeoutError as error:
            raise ConnectError(
                f"{address.host}:{address.port} did not accept a connection within {timeout_s:g} s."
            ) from error
        except OSError as error:
            raise ConnectError(
                f"Cannot connect to {address.host}:{address.port}: {error.strerror or error}."
            ) from error
        self._opened[address] += 1
        if len(self._opened) > MAX_ADDRESSES:
            del self._opened[next(iter(self._opened))]
        self._on_opened(address)
        self._open.add(socket)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._sweep_interval_s, self._sweep)
        return socket.begin()

    def _send_later(self, socket: EngineSocket) -> None:
        if not self._unsent:
            socket.loop.call_soon(self._send)
        self._unsent.append(socket)

    def _send(self) -> None:
        unsent = self._unsent
        try:
            while unsent:
                unsent.popleft().flush()
        finally:  # One connection's fault is not the others'.
            if unsent:
                unsent[0].loop.call_soon(self._send)

    def _return(self, socket: EngineSocket) -> None:
        idle = self._idle.get(socket.address)
        if idle is None:
            idle = self._idle[socket.address] = {}
        idle[socket] = None

    def _forget(self, socket: EngineSocket) -> None:
        self._open.discard(socket)
        idle = self._idle.get(socket.address)
        if idle:
            idle.pop(socket, None)

    def _sweep(self) -> None:
        now = time.monotonic()
        self._sweeper = None
        try:
            for socket in tuple(self._open):
                socket.check(now=now, idle_limit_s=self._idle_limit_s)
        finally:  # Else one fault would end every bound on an engine's silence.
            if self._open:
                loop = asyncio.get_running_loop()
                self._sweeper = loop.call_later(self._sweep_interval_s, self._sweep)
        # Engines come and go under ever new addresses.
        for address in [address for address, idle in self._idle.items() if not idle]:
            del self._idle[address]


def request_head(
    method: str,
    path: str,
    address: Address,
    headers: Sequence[tuple[bytes, bytes]],
    body_len: int,
) -> bytes:
    r"""The head of one request, blank line included.

    Args:
        method: HTTP method.
        path: Origin-form target.
        address: Where it goes; becomes ``Host``.
        headers: End-to-end fields in order, without ``Host`` and ``Content-Length``.
        body_len: Length of the body in bytes.

    Raises:
        ValueError: A field has a line end in it: it would be two fields on the wire.
    """
    fields = [b"%b: %b\r\n" % field for field in headers]
    head = b"".join(
        (_head_start(method, path, address), *fields, b"content-length: %d\r\n\r\n" % body_len)
    )
    if head.count(b"\n") != len(fields) + 4:
        raise ValueError(
            "A header field contains a line end; drop the field or reject the request."
        )
    return head


@functools.lru_cache(maxsize=1024)
def _head_start(method: str, path: str, address: Address) -> bytes:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{method} {path} HTTP/1.1\r\nhost: {host}:{address.port}\r\n".encode()
