"""A worker's process: the application behind our server, linked to the companion.

Composition root: it knows everything and decides nothing. Started by the supervisor, which hands
over the configuration on standard input and a bound socket as a descriptor.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys

import uvloop
from starlette.routing import Route

from pdcluster_api.proxy_config import ProxyConfig
from pdcluster_proxy.api.openai import ExchangeEndpoint
from pdcluster_proxy.app import create_app
from pdcluster_proxy.core.picker import name_at
from pdcluster_proxy.core.ports import Address
from pdcluster_proxy.lifeline import die_with_parent
from pdcluster_proxy.logs import configure
from pdcluster_proxy.settings import ProcessSettings, parse_process_settings
from pdcluster_proxy.wire.engine_client import EngineClient
from pdcluster_proxy.wire.link import CompanionLink
from pdcluster_proxy.wire.server import BACKLOG, EdgeServer, serve_worker

_LOG = logging.getLogger(__name__)
_FIRST_SNAPSHOT_S = 3.0


async def run(config: ProxyConfig, settings: ProcessSettings) -> None:
    """Serve until SIGTERM, then finish what runs."""
    link = CompanionLink(settings.link)

    def opened(address: Address) -> None:
        link.count("connections_opened_total", (name_at(link.snapshot, address),))

    def rejected(code: str) -> None:
        link.count("requests_rejected_total", (code,))

    def unread() -> None:
        link.count("answers_unread_total", ())

    engines = EngineClient(on_opened=opened)
    app = create_app(config, engines, link, settings.index, settings.workers)
    gate = app.state.worker.gate
    link.sample_with(lambda: (gate.running, gate.waiting))
    hot = {
        route.path: route.endpoint
        for route in app.routes
        if isinstance(route, Route) and isinstance(route.endpoint, ExchangeEndpoint)
    }
    server = EdgeServer(
        app,
        grace_s=config.grace_seconds,
        on_rejected=rejected,
        on_unread=unread,
        is_leaving=lambda: link.is_draining,
        hot=hot,
    )

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, server.stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal's Ctrl-C is the supervisor's.
    # Before the companion counts this worker: a proxy that is to be replaced leaves once this one
    # is ready, and then clients must find a listener.
    listener = socket.socket(fileno=settings.socket)
    listener.listen(BACKLOG)
    link.start()
    # Clients wait in the socket's queue until this worker knows the pool.
    if not await link.first_snapshot(timeout_s=_FIRST_SNAPSHOT_S):
        _LOG.warning("worker.started.blind")
    _LOG.info("worker.started", extra={"port": config.listen.port})
    try:
        await serve_worker(server, [listener])
    finally:
        await link.close()
        await engines.close()
        _LOG.info("worker.stopped")


def main() -> None:
    """Start from the supervisor's arguments."""
    settings = parse_process_settings(sys.argv[1:])
    config = ProxyConfig.model_validate_json(sys.stdin.buffer.read())
    configure(
        log_format=settings.log_format,
        level=settings.log_level,
        process=f"worker-{settings.index}",
    )
    die_with_parent(settings.parent)
    uvloop.run(run(config, settings))


if __name__ == "__main__":
    main()
