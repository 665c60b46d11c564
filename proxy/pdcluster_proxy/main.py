"""``pdcluster-proxy``: reads the configuration, binds, supervises.

Composition root: it knows everything and decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys

from pdcluster_api.proxy_config import ListenConfig, ProxyConfig
from pdcluster_lease.errors import ConfigurationError
from pdcluster_proxy.logs import configure
from pdcluster_proxy.settings import Settings, load_config, parse_settings
from pdcluster_proxy.supervisor import EXIT_CONFIGURATION, ProcessPlan, Supervisor

__all__ = ["main"]

BACKLOG = 4096
"""Connections that may wait to be accepted, per worker; the kernel's own bound may be lower."""


def main() -> None:
    """Run the proxy until SIGTERM or Ctrl-C; exit codes are in ``--help``."""
    settings = parse_settings(sys.argv[1:], os.environ)
    configure(log_format=settings.log_format, level=settings.log_level, process="supervisor")
    try:
        config = load_config(settings.config)
        num_workers = config.workers or len(os.sched_getaffinity(0))
        listeners = bind(config.listen, num_workers, field="listen")
        (admin,) = bind(config.admin, 1, field="admin")
    except ConfigurationError as error:
        sys.stderr.write(f"pdcluster-proxy: {error}\n")
        sys.exit(EXIT_CONFIGURATION)
    sys.exit(asyncio.run(run(config, settings, listeners, admin)))


async def run(
    config: ProxyConfig, settings: Settings, listeners: list[socket.socket], admin: socket.socket
) -> int:
    """Supervise; returns the exit code."""
    supervisor = Supervisor(
        companion=ProcessPlan(
            name="companion", module="pdcluster_proxy.companion", socket=admin, index=0
        ),
        workers=[
            ProcessPlan(
                name=f"worker-{index}",
                module="pdcluster_proxy.worker",
                socket=listener,
                index=index,
            )
            for index, listener in enumerate(listeners)
        ],
        config_json=config.model_dump_json(by_alias=True).encode(),
        link=f"@pdcluster-proxy-{os.getpid()}-{secrets.token_hex(8)}",
        settings=settings,
        drain_s=config.drain_seconds,
        grace_s=config.grace_seconds,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    logging.getLogger(__name__).info(
        "proxy.started",
        extra={
            "cluster": config.cluster,
            "listen": f"{config.listen.host}:{config.listen.port}",
            "admin": f"{config.admin.host}:{config.admin.port}",
            "workers": len(listeners),
            "keeper": config.keeper.value,
        },
    )
    return await supervisor.run()


def bind(address: ListenConfig, number: int, *, field: str) -> list[socket.socket]:
    """Bind ``number`` sockets to one address.

    They share it by SO_REUSEPORT, with which the kernel would also let a second proxy of the same
    user in; so a socket without it tries first, unless sharing is what the configuration asks for.

    Raises:
        ConfigurationError: The address is taken or cannot be used; names it and the remedy.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound: list[socket.socket] = []
    try:
        if not address.shared:
            with socket.socket(family) as first:
                first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                first.bind((address.host, address.port))
        for _ in range(number):
            listener = socket.socket(family)
            bound.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((address.host, address.port))
            if not address.shared:
                # Until a worker is up its clients wait in the queue. Beside another proxy they are
                # better off there: the kernel gives each listener its share, accepting or not.
                listener.listen(BACKLOG)
    except OSError as error:
        for listener in bound:
            listener.close()
        raise ConfigurationError(
            f"{field}: cannot listen on {address.host}:{address.port}: {error.strerror or error}. "
            f"Free the port, or change {field}.host and {field}.port."
        ) from error
    return bound


if __name__ == "__main__":
    main()
