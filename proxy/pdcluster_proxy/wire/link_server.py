"""The companion's side of the links to its workers.

Shell. One Unix socket; only processes of the same user are heard. Deliberately not here: what a
report means.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from typing import Protocol, cast

import msgspec
from typing_extensions import override

from pdcluster_proxy.core.messages import Report, ToWorker
from pdcluster_proxy.errors import LinkError
from pdcluster_proxy.wire.frames import FrameReader, frame

__all__ = ["LinkServer", "WorkerPeer", "WorkerWatcher"]

_LOG = logging.getLogger(__name__)
_CREDENTIALS = struct.Struct("3i")
"""ucred of unix(7): pid, uid, gid."""

_MAX_UNSENT_BYTES = 4 * 1024 * 1024
"""A worker that takes no snapshots hangs; no more are queued for it."""


class WorkerWatcher(Protocol):
    """Hears of workers."""

    def joined(self, worker: WorkerPeer) -> None:
        """A worker has connected."""

    def reported(self, worker: WorkerPeer, report: Report) -> None:
        """A worker reports."""

    def left(self, worker: WorkerPeer) -> None:
        """A worker's connection has ended."""


class WorkerPeer(asyncio.Protocol):
    """One connected worker."""

    def __init__(self, watcher: WorkerWatcher) -> None:
        self._watcher = watcher
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
        # This is all the mutable state.
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._has_joined = False

    def send(self, message: ToWorker) -> None:
        """Queue one message; dropped where the worker hangs, a later one replaces it."""
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size() < _MAX_UNSENT_BYTES:
            transport.write(frame(self._encoder.encode(message)))

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        raw = transport.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        _, user, _ = _CREDENTIALS.unpack(raw)
        if user != os.getuid():
            _LOG.warning("link.stranger.rejected", extra={"uid": user})
            self._transport.abort()
            return
        self._has_joined = True
        self._watcher.joined(self)

    @override
    def data_received(self, data: bytes) -> None:
        if not self._has_joined:
            return
        try:
            for payload in self._reader.feed(data):
                self._watcher.reported(self, self._decoder.decode(payload))
        except (LinkError, msgspec.DecodeError):
            _LOG.exception("link.report.failed")
            self.close()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._has_joined:
            self._watcher.left(self)


class LinkServer:
    """Listens for workers.

    Args:
        path: Name of the socket; one that starts with ``@`` is abstract.
        watcher: Hears of workers.
    """

    def __init__(self, path: str, watcher: WorkerWatcher) -> None:
        self._path = path.replace("@", "\0", 1)
        self._watcher = watcher
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: WorkerPeer(self._watcher), self._path)

    async def close(self) -> None:
        """Stop listening; links that exist stay open."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
