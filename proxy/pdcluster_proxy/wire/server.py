"""The HTTP server of one worker: uvicorn with our protocol class, signals and shutdown.

Shell. Deliberately not here: which application it serves, and who binds the sockets.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import uvicorn
from typing_extensions import override

from pdcluster_proxy.wire.edge_guard import EdgeLimits
from pdcluster_proxy.wire.edge_protocol import EdgeProtocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from starlette.types import ASGIApp

__all__ = ["BACKLOG", "EdgeServer", "serve_worker"]

_GC_THRESHOLDS = (20_000, 20, 20)
"""Objects made before a collection of each generation; CPython's own are 700, 10, 10."""

BACKLOG = 4096
"""Connections that may wait to be accepted, per socket; the kernel's own bound may be lower."""

_TICKS_PER_SWEEP = 10
"""uvicorn ticks ten times per second."""


class EdgeServer(uvicorn.Server):
    """uvicorn's server, which we stop ourselves and which sweeps its connections.

    Args:
        app: What it serves; its lifespan is run.
        limits: The guard's bounds.
        grace_s: How long running requests may take to finish once it is stopped.
        on_rejected: Called with the code of each request rejected below the application.
        on_unread: Called for each client that is cut because it does not read its answer.
        is_leaving: Says whether it is on its way out before it is stopped.
        hot: ASGI endpoints by path that POSTs reach directly: the application's own routing and
            error handling cost a tenth of a small request, and these endpoints need neither.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: EdgeLimits | None = None,
        grace_s: float = 30.0,
        on_rejected: Callable[[str], None] = lambda _code: None,
        on_unread: Callable[[], None] = lambda: None,
        is_leaving: Callable[[], bool] = lambda: False,
        hot: Mapping[str, ASGIApp] = MappingProxyType({}),
    ) -> None:
        protocol: Any = functools.partial(  # uvicorn asks for a class but only calls it.
            EdgeProtocol,
            limits=limits or EdgeLimits(),
            on_rejected=on_rejected,
            on_unread=on_unread,
            is_leaving=is_leaving,
            hot=hot,
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                loop="uvloop",
                lifespan="on",
                backlog=BACKLOG,
                access_log=False,
                log_config=None,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=max(1, round(grace_s)),
            )
        )

    def stop(self) -> None:
        """Stop accepting, let running requests finish, then return from ``serve``."""
        self.should_exit = True

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the composition root's business."""
        yield

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What exists now lives as long as the process: keep the collector off it.
        gc.collect()
        gc.freeze()
        # What a request leaves behind is freed by reference counts; the collector would look at
        # every running exchange again and again.
        gc.set_threshold(*_GC_THRESHOLDS)

    @override
    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_SWEEP == 0:
            now = time.monotonic()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, EdgeProtocol):
                    connection.check(now)
        return await super().on_tick(counter)


async def serve_worker(server: EdgeServer, sockets: Sequence[socket.socket]) -> None:
    """Serve on sockets that are bound already, until the server is stopped."""
    await server.serve(sockets=list(sockets))
