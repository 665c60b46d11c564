"""An ASGI application behind our protocol class, without the rest of a server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from pdcluster_proxy.wire.edge_guard import EdgeLimits
from pdcluster_proxy.wire.edge_protocol import EdgeProtocol

SWEEP_S = 0.01


@dataclass
class Edge:
    """Where it listens, and what it rejected."""

    host: str
    port: int
    state: ServerState
    rejected: list[str] = field(default_factory=list)
    num_unread: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    num_sweeps: int = 0

    @property
    def num_connections(self) -> int:
        return len(self.state.connections)

    @property
    def num_tasks(self) -> int:
        return len(self.state.tasks)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        self.writers.append(writer)
        return reader, writer

    async def exchange(self, *parts: bytes) -> bytes:
        """Send parts and read until the server closes."""
        reader, writer = await self.open()
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.005)
            async with asyncio.timeout(5):
                return await reader.read()
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def edge(
    app: ASGIApp, limits: EdgeLimits | None = None, hot: Mapping[str, ASGIApp] | None = None
) -> AsyncIterator[Edge]:
    """Serve ``app`` until the block ends."""
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    state = ServerState()
    rejected: list[str] = []

    def unread() -> None:
        served.num_unread += 1

    protocol = functools.partial(
        EdgeProtocol,
        config=config,
        server_state=state,
        app_state={},
        _loop=loop,
        limits=limits or EdgeLimits(),
        on_rejected=rejected.append,
        on_unread=unread,
        is_leaving=lambda: False,
        hot=hot or {},
    )

    async def sweep() -> None:
        while True:
            for connection in tuple(state.connections):
                assert isinstance(connection, EdgeProtocol)
                connection.check(time.monotonic())
            served.num_sweeps += 1
            await asyncio.sleep(SWEEP_S)

    server = await loop.create_server(protocol, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    served = Edge(host, port, state, rejected)
    sweeping = asyncio.create_task(sweep())
    try:
        yield served
    finally:
        for writer in served.writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        sweeping.cancel()
        server.close()
        for connection in tuple(state.connections):
            connection.transport.abort()
        for task in tuple(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        await server.wait_closed()
