"""The HTTP server: uvicorn on a socket of ours.

Shell, and the only module that knows uvicorn. Signals are not its business: what SIGTERM means is
decided in ``main.py``, where leases are drained first.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

import uvicorn
from typing_extensions import override

from pdcluster_sim.errors import FlagError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp

__all__ = ["HttpServer", "bind"]

_BACKLOG: Final = 2048
_KEEP_ALIVE_S: Final = 5
_CLOSING_S: Final = 2
_STARTED_POLL_S: Final = 0.002


def bind(host: str, port: int) -> socket.socket:
    """Bind the address, but do not listen yet: nobody shall connect before the engine is ready.

    Raises:
        FlagError: The address is taken, or is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        raise FlagError(
            f"cannot listen on {host}:{port}: {error.strerror or error}. Free the port, or choose "
            "another with --host and --port."
        ) from error
    return listening


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves one application until told to stop.

    Args:
        app: The application.
        access_log: Whether every request is logged.
    """

    def __init__(self, app: ASGIApp, *, access_log: bool) -> None:
        config = uvicorn.Config(
            app,
            loop="none",
            http="httptools",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=access_log,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_CLOSING_S,
        )
        self._server = _Server(config)

    async def serve(self, listening: socket.socket) -> None:
        """Serve until :meth:`stop`; then finish what runs, for at most 2 s."""
        await self._server.serve(sockets=[listening])

    async def started(self) -> None:
        """Wait until the server listens."""
        # uvicorn offers a flag, no event.
        while not self._server.started:  # noqa: ASYNC110 - see above
            await asyncio.sleep(_STARTED_POLL_S)

    def stop(self) -> None:
        """Accept no more connections, and close what is idle."""
        self._server.should_exit = True
