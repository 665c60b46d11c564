"""One engine with its HTTP application, in this process and without NIXL."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import pytest

from pdcluster_sim.api.admin import EngineHandles
from pdcluster_sim.api.context import ApiContext
from pdcluster_sim.api.faults import Faults
from pdcluster_sim.app import create_app
from pdcluster_sim.engine import Engine
from pdcluster_sim.flags import parse_settings
from pdcluster_sim.frontend import Frontend
from pdcluster_sim.metrics import EngineMetrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import ASGIApp

FAST = ("--sim-step-time-ms", "1", "--sim-prefill-tokens-per-second", "0", "--sim-admin")


@dataclass(frozen=True)
class Served:
    """An engine that serves."""

    engine: Engine
    frontend: Frontend
    context: ApiContext
    app: ASGIApp
    client: httpx.AsyncClient

    async def idle(self, *, within_s: float = 30.0) -> None:
        """Wait until no request runs or waits."""
        async with asyncio.timeout(within_s):
            while True:
                gauges = self.frontend.gauges
                if gauges is not None and gauges.num_running + gauges.num_waiting == 0:
                    return
                await asyncio.sleep(0.005)

    async def running(self, *, within_s: float = 30.0) -> None:
        """Wait until a request runs."""
        async with asyncio.timeout(within_s):
            # The engine's thread sets figures, no event.
            while self.frontend.gauges is None or not self.frontend.gauges.num_running:  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.005)


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Served]]:
    """Start engines by command line; they are stopped at the end."""
    started: list[Served] = []

    def start(*argv: str) -> Served:
        settings = parse_settings(["tiny", *FAST, *argv], {})
        metrics = EngineMetrics(
            model_name=settings.served_names[0],
            exchanges_kv=settings.kv_transfer is not None,
            cache_config={"block_size": str(settings.block_size)},
        )
        frontend = Frontend(metrics)
        engine = Engine(settings, publish=frontend.publish)
        frontend.attach(engine.thread, asyncio.get_running_loop())
        engine.start()
        context = ApiContext(
            settings=settings,
            frontend=frontend,
            metrics=metrics,
            fingerprint="vllm-test",
            faults=Faults(),
        )
        handles = EngineHandles(
            memory=engine.memory, leases=lambda: engine.core.leases, silence=None
        )
        app = create_app(context, handles)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine")
        started.append(Served(engine, frontend, context, app, client))
        return started[-1]

    yield start
    for served in started:
        await served.client.aclose()
        served.engine.stop()


@pytest.fixture
async def served(serve: Callable[..., Served]) -> Served:
    """One engine with the defaults of these tests."""
    return serve()
