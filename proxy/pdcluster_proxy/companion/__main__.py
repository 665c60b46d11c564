"""The companion's process: wires its parts together and runs until it is told to stop.

Composition root: it knows everything and decides nothing. Started by the supervisor, which hands
over the configuration on standard input and the bound admin socket as a descriptor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path

import uvloop

from pdcluster_api.proxy_config import ProxyConfig
from pdcluster_proxy.background import first_end
from pdcluster_proxy.clients import HttpReader, make_client
from pdcluster_proxy.companion.admin import create_admin_app
from pdcluster_proxy.companion.checks import Checker
from pdcluster_proxy.companion.companion import Companion
from pdcluster_proxy.companion.discovery import FileDiscovery
from pdcluster_proxy.errors import BackgroundEndedError
from pdcluster_proxy.lifeline import die_with_parent
from pdcluster_proxy.logs import configure
from pdcluster_proxy.settings import ProcessSettings, parse_process_settings
from pdcluster_proxy.supervisor import DRAIN_SIGNAL, EXIT_FAULT, EXIT_STOPPED
from pdcluster_proxy.wire.engine_client import EngineClient
from pdcluster_proxy.wire.link_server import LinkServer
from pdcluster_proxy.wire.server import EdgeServer, serve_worker

_LOG = logging.getLogger(__name__)
_PULSE_S = 0.1


async def run(config: ProxyConfig, settings: ProcessSettings) -> int:
    """Run the companion until SIGTERM, or until a part of it fails; returns the exit code."""
    # Wall time only numbers boots: a later companion must give larger numbers.
    companion = Companion(config, num_workers=settings.workers, first_incarnation=int(time.time()))
    engines = EngineClient()
    checker = Checker(
        HttpReader(make_client(engines)),
        companion,
        lease_duration_s=config.lease.duration_seconds,
    )
    companion.check_with(checker)
    links = LinkServer(settings.link, companion)
    server = EdgeServer(create_admin_app(companion), grace_s=1.0)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, server.stop)
    loop.add_signal_handler(DRAIN_SIGNAL, companion.drain)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {DRAIN_SIGNAL})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal's Ctrl-C is the supervisor's.
    await links.start()
    # Without any of these the companion would go on with what it knew: another one must begin.
    background = asyncio.create_task(
        first_end((lambda: discover(config, companion), lambda: _pulse(companion), checker.run))
    )
    background.add_done_callback(lambda _: server.stop())
    _LOG.info("companion.started", extra={"admin_port": config.admin.port})
    try:
        await serve_worker(server, [socket.socket(fileno=settings.socket)])
    finally:
        background.cancel()
        (failure,) = await asyncio.gather(background, return_exceptions=True)
        await checker.close()
        await links.close()
        await engines.close()
    if isinstance(failure, BackgroundEndedError):
        _LOG.error("companion.failed", exc_info=failure)
        return EXIT_FAULT
    _LOG.info("companion.stopped")
    return EXIT_STOPPED


async def discover(config: ProxyConfig, companion: Companion) -> None:
    """Follow the endpoints where the configuration says they are."""
    if config.kubernetes is None:
        await FileDiscovery(Path(config.endpoints_file), companion).run()
        return
    # Takes a second and 60 MB, so it is imported where it is used.
    from kubernetes import aio  # noqa: PLC0415

    from pdcluster_proxy.companion.pod_watch import PodDiscovery  # noqa: PLC0415

    if "KUBERNETES_SERVICE_HOST" in os.environ:
        aio.config.load_incluster_config()  # type: ignore[no-untyped-call]
    else:
        await aio.config.load_kube_config()  # type: ignore[no-untyped-call]
    async with aio.client.ApiClient() as api:
        await PodDiscovery(api, config.kubernetes, companion).run()


async def _pulse(companion: Companion) -> None:
    while True:
        companion.pulse()
        await asyncio.sleep(_PULSE_S)


def main() -> None:
    """Start from the supervisor's arguments."""
    settings = parse_process_settings(sys.argv[1:])
    config = ProxyConfig.model_validate_json(sys.stdin.buffer.read())
    configure(log_format=settings.log_format, level=settings.log_level, process="companion")
    die_with_parent(settings.parent)
    sys.exit(uvloop.run(run(config, settings)))


if __name__ == "__main__":
    main()
