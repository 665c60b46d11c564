"""The worker's side of the link to its companion.

Shell. Implements :class:`~pdcluster_proxy.core.ports.CompanionPort`. What the worker reports is
summed up and sent in one message a few milliseconds later; nothing here waits for the companion.
While it is away the worker goes on with its last snapshot, and what it would have reported is kept
within bounds. Open legs are told as absolute numbers, all of them at the start of a connection, so
that a lost report heals itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, cast

import msgspec
from typing_extensions import override

from pdcluster_proxy.background import kept_up
from pdcluster_proxy.core.messages import (
    DrainNotice,
    LeaseStep,
    Outcome,
    OutcomeKind,
    PoolNotice,
    PoolSnapshot,
    ToWorker,
)
from pdcluster_proxy.core.reporting import PendingReport
from pdcluster_proxy.errors import LinkError
from pdcluster_proxy.wire.frames import FrameReader, frame

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CompanionLink", "Occupancy"]

_LOG = logging.getLogger(__name__)

FLUSH_S = 0.05
"""How long reports are gathered: at most 20 messages per second and worker, for each one wakes the
companion. A failed leg does not wait."""

HEARTBEAT_S = 0.5
"""How often the occupancy is looked at where nothing else is reported."""

RECONNECT_S = 0.2
"""Between two tries to reach a companion that is away."""

_MAX_UNSENT_BYTES = 1024 * 1024
"""More than this in the socket's buffer means that the companion hangs."""

Occupancy = tuple[int, int]
"""(exchanges running, exchanges queued)."""


class CompanionLink:
    """One worker's link.

    Args:
        path: Name of the companion's socket; one that starts with ``@`` is abstract.
        flush_s: How long reports are gathered.
        reconnect_s: Between two tries to connect.

    Attributes:
        snapshot: The last pool snapshot; seq 0 before the first.
        is_draining: The companion has said that the proxy is on its way out.
    """

    def __init__(
        self, path: str, *, flush_s: float = FLUSH_S, reconnect_s: float = RECONNECT_S
    ) -> None:
        self._path = path.replace("@", "\0", 1)
        self._flush_s = flush_s
        self._reconnect_s = reconnect_s
        self._encoder = msgspec.msgpack.Encoder()
        # This is all the mutable state.
        self.snapshot = PoolSnapshot(seq=0)
        self.is_draining = False
        self._has_snapshot = asyncio.Event()
        self._callbacks: list[Callable[[PoolSnapshot], None]] = []
        self._sample: Callable[[], Occupancy] = lambda: (0, 0)
        self._sampled: Occupancy = (0, 0)
        self._wire: _Wire | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pending = PendingReport()

    # The port.

    def on_snapshot(self, callback: Callable[[PoolSnapshot], None]) -> None:
        """Have ``callback`` called with each new snapshot."""
        self._callbacks.append(callback)

    def leg_began(self, endpoint: str, prompt_tokens: int) -> None:
        """Report a leg that goes out."""
        self._add_leg(endpoint, 1, prompt_tokens)

    def leg_ended(self, endpoint: str, prompt_tokens: int, outcome: Outcome | None) -> None:
        """Report its end; without an outcome the endpoint is neither to praise nor to blame."""
        self._add_leg(endpoint, -1, -prompt_tokens)
        if outcome is not None:
            self._pending.add_outcome(outcome)
            if outcome.kind is not OutcomeKind.SUCCEEDED:
                self._flush_soon()

    def lease(self, event: LeaseStep) -> None:
        """Report one step of one lease."""
        self._pending.add_lease(event)
        if self._timer is None:
            self._flush_later()

    def count(self, name: str, labels: tuple[str, ...], amount: float = 1.0) -> None:
        """Add to a counter."""
        self._pending.count(name, labels, amount)
        if self._timer is None:
            self._flush_later()

    def observe(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """Add one value to a histogram."""
        self._pending.observe(name, labels, value)
        if self._timer is None:
            self._flush_later()

    # The worker's root.

    def sample_with(self, sample: Callable[[], Occupancy]) -> None:
        """Ask ``sample`` for the worker's occupancy at each report."""
        self._sample = sample

    async def first_snapshot(self, *, timeout_s: float) -> bool:
        """Wait for the first snapshot; returns whether it came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_snapshot.wait()
        except TimeoutError:
            return False
        return True

    def start(self) -> None:
        """Connect, and reconnect for ever."""
        self._task = asyncio.get_running_loop().create_task(kept_up(self._stay_connected))

    async def close(self) -> None:
        """Send what is left, then close."""
        self._flush()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What comes in.

    def receive(self, message: ToWorker) -> None:
        """Take one message of the companion."""
        match message:
            case PoolNotice(pool):
                self.snapshot = pool
                self._has_snapshot.set()
                for callback in self._callbacks:
                    callback(pool)
            case DrainNotice():
                self.is_draining = True

    # Inside.

    async def _stay_connected(self) -> None:
        while True:
            try:
                wire = await self._connect()
            except OSError:
                await asyncio.sleep(self._reconnect_s)
                continue
            _LOG.info("companion.connected")
            self._wire = wire
            self._pending.tell_all_legs()
            self._flush()
            try:
                while not wire.closed.done():
                    await asyncio.wait([wire.closed], timeout=HEARTBEAT_S)
                    if self._sample() != self._sampled:
                        self._flush()
            finally:
                self._wire = None
                wire.close()
            _LOG.warning("companion.lost")

    async def _connect(self) -> _Wire:
        # uvloop itself cannot connect to abstract names.
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connection.connect(self._path)
            loop = asyncio.get_running_loop()
            _, wire = await loop.create_unix_connection(lambda: _Wire(self), sock=connection)
        except OSError:
            connection.close()
            raise
        return wire

    def _add_leg(self, endpoint: str, legs: int, prompt_tokens: int) -> None:
        self._pending.add_legs(endpoint, legs, prompt_tokens)
        if self._timer is None:
            self._flush_later()

    def _flush_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._flush_s, self._flush)

    def _flush_soon(self) -> None:
        """Send within this pass of the loop: others should be spared this experience."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(0.0, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wire = self._wire
        if wire is None or wire.num_unsent > _MAX_UNSENT_BYTES:
            self._pending.drop_surplus()
            return
        self._sampled = running, queued = self._sample()
        report = self._pending.take(running=running, queued=queued)
        wire.send(self._encoder.encode(report))


class _Wire(asyncio.Protocol):
    """The socket of one connection."""

    def __init__(self, link: CompanionLink) -> None:
        self._link = link
        self._reader = FrameReader()
        self._decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def num_unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, payload: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame(payload))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        try:
            messages = [self._decoder.decode(payload) for payload in self._reader.feed(data)]
        except (LinkError, msgspec.DecodeError):
            _LOG.exception("companion.message.failed")
            self.close()
            return
        for message in messages:
            self._link.receive(message)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)
