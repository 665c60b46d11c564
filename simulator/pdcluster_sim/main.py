"""``pdcluster-sim``: one engine, one process.

Composition root. Threads: the main one runs HTTP; the engine's owns scheduler, memory and agent; a
third one speaks on the side channel. Exit status: 0 after SIGTERM or SIGINT, 1 when the engine has
died, 2 for a command line or an environment that cannot work.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import uvloop

from pdcluster_lease.errors import ConfigurationError, PDClusterError
from pdcluster_sim.api.admin import EngineHandles
from pdcluster_sim.api.context import ApiContext
from pdcluster_sim.api.faults import Fault, Faults
from pdcluster_sim.app import create_app
from pdcluster_sim.engine import Engine
from pdcluster_sim.errors import FlagError
from pdcluster_sim.flags import parse_settings
from pdcluster_sim.frontend import Frontend
from pdcluster_sim.logs import configure_logging
from pdcluster_sim.metrics import EngineMetrics
from pdcluster_sim.server import HttpServer, bind
from pdcluster_sim.settings import VLLM_VERSION, Settings

if TYPE_CHECKING:
    import socket

__all__ = ["main"]

_log = logging.getLogger(__name__)

_EXIT_STOPPED: Final = 0
_EXIT_DEAD: Final = 1
_EXIT_CONFIGURATION: Final = 2


def main() -> None:
    """Run one engine until it is told to stop."""
    try:
        settings = parse_settings(sys.argv[1:], os.environ)
        configure_logging(
            settings.log_level,
            access_log=settings.access_log,
            unlogged_paths=settings.unlogged_paths,
        )
        faults = _read_faults(settings.fault_script)
        status = _serve(settings, bind(settings.host, settings.port), faults)
    except ConfigurationError as error:
        print(f"pdcluster-sim: error: {error}", file=sys.stderr)  # noqa: T201 - not a log line
        status = _EXIT_CONFIGURATION
    except PDClusterError:
        _log.exception("Engine core initialization failed.")
        status = _EXIT_DEAD
    sys.exit(status)


def _read_faults(path: str | None) -> tuple[Fault, ...]:
    if path is None:
        return ()
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=tuple[Fault, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise FlagError(f"--sim-fault-script {path}: {error}") from error


def _serve(settings: Settings, listening: socket.socket, faults: tuple[Fault, ...]) -> int:
    metrics = EngineMetrics(
        model_name=settings.served_names[0],
        exchanges_kv=settings.kv_transfer is not None,
        cache_config={
            "block_size": str(settings.block_size),
            "num_gpu_blocks": str(settings.num_blocks),
            "enable_prefix_caching": str(settings.prefix_caching),
        },
    )
    frontend = Frontend(metrics)
    engine = Engine(settings, publish=frontend.publish)
    _log.info("vLLM API server version %s (simulated), model %s", VLLM_VERSION, settings.model)
    engine.start()
    try:
        running = _run(
            settings,
            engine=engine,
            frontend=frontend,
            metrics=metrics,
            listening=listening,
            script=faults,
        )
        return uvloop.run(running)
    finally:
        engine.stop()


async def _run(
    settings: Settings,
    *,
    engine: Engine,
    frontend: Frontend,
    metrics: EngineMetrics,
    listening: socket.socket,
    script: tuple[Fault, ...],
) -> int:
    loop = asyncio.get_running_loop()
    frontend.attach(engine.thread, loop)
    faults = Faults()
    for fault in script:
        loop.call_later(fault.after_seconds, faults.add, fault)
    context = ApiContext(
        settings=settings,
        frontend=frontend,
        metrics=metrics,
        fingerprint=f"vllm-{VLLM_VERSION}-{engine.compatibility.hash[:8]}",
        faults=faults,
    )
    handles = EngineHandles(
        memory=engine.memory,
        leases=lambda: engine.core.leases,
        silence=engine.handshakes.silence if engine.handshakes else None,
    )
    server = HttpServer(create_app(context, handles), access_log=settings.access_log)
    told_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_stop.set)
    serving = asyncio.create_task(server.serve(listening))
    await server.started()
    _log.info("Application startup complete.")
    return await _until_stopped(settings, frontend, server, serving, told_to_stop)


async def _until_stopped(
    settings: Settings,
    frontend: Frontend,
    server: HttpServer,
    serving: asyncio.Task[None],
    told_to_stop: asyncio.Event,
) -> int:
    """Serve until a signal or the engine's death, drain, and return the exit status."""
    stopping = asyncio.create_task(told_to_stop.wait())
    dying = asyncio.create_task(frontend.died.wait())
    await asyncio.wait({stopping, dying}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not frontend.died.is_set():
        timeout_s = settings.shutdown_timeout_s
        _log.info("[shutdown] draining requests and leases for up to %.0f s", timeout_s)
        is_drained = await frontend.drain(timeout_s=timeout_s)
        _log.info("[shutdown] %s", "drained" if is_drained else "aborted what was left")
    dying.cancel()
    server.stop()
    await serving
    return _EXIT_DEAD if frontend.died.is_set() else _EXIT_STOPPED


if __name__ == "__main__":
    main()
