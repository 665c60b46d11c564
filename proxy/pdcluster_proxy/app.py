"""The worker's application: routes, lifespan, what the exchanges share.

Composition root: it knows everything and decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import time
from collections.abc import AsyncIterator
from random import Random

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pdcluster_api.proxy_config import ProxyConfig
from pdcluster_proxy.api.openai import (
    ExchangeEndpoint,
    ModelsEndpoint,
    UnfinishedBodies,
    request_id_of,
)
from pdcluster_proxy.api.probes import healthz, readyz
from pdcluster_proxy.background import kept_up
from pdcluster_proxy.core.bodies import PATHS, Api
from pdcluster_proxy.core.error_bodies import REASON_HEADER, error_body
from pdcluster_proxy.core.ports import CompanionPort, Engines
from pdcluster_proxy.exchange.journal import Journal
from pdcluster_proxy.exchange.worker import Worker

__all__ = ["create_app"]


def create_app(
    config: ProxyConfig,
    engines: Engines,
    link: CompanionPort,
    worker_index: int = 0,
    num_workers: int = 1,
) -> Starlette:
    """Make one worker's application.

    Args:
        config: The proxy's configuration.
        engines: The pooled engine client.
        link: The worker's side of the link to its companion.
        worker_index: Which worker this is.
        num_workers: How many there are.
    """
    seed = int.from_bytes(os.urandom(8))
    worker = Worker(
        config,
        workers=num_workers,
        engines=engines,
        companion=link,
        journal=Journal(sys.stderr.buffer if config.exchange_log else None),
        rng=Random(seed),  # noqa: S311 (breaks ties between engines, guards nothing)
        nonce=f"{seed & 0xFFFF_FFFF:08x}{worker_index:02x}",
    )

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(kept_up(run)) for run in (worker.tick, worker.write_journal)]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        worker.journal.flush()

    unfinished = UnfinishedBodies()
    models = ModelsEndpoint(worker, created=int(time.time()))
    app = Starlette(
        routes=[
            *(
                Route(PATHS[api], ExchangeEndpoint(worker, api, unfinished), methods=["POST"])
                for api in Api
            ),
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/models/{model:path}", models, methods=["GET"]),
            Route("/healthz", healthz),
            Route("/readyz", readyz(worker)),
            # vLLM's own name for it, which load balancers and clients of vLLM know.
            Route("/health", readyz(worker)),
        ],
        exception_handlers={HTTPException: functools.partial(_http_error, worker)},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # A redirected POST would be sent twice.
    app.state.worker = worker
    return app


def _http_error(worker: Worker, request: Request, error: Exception) -> Response:
    """Give routing's own errors (404, 405) the API's shape."""
    assert isinstance(error, HTTPException), "registered for nothing else"
    code = {404: "unknown-route", 405: "method-not-allowed"}.get(error.status_code, "http-error")
    path = request.url.path[:256]
    message = {
        "unknown-route": f"{path} is not served. Served are {', '.join(PATHS.values())} (POST) and "
        "/v1/models, /health, /healthz, /readyz (GET).",
        "method-not-allowed": f"{path} does not take {request.method}; see the Allow header.",
    }.get(code, str(error.detail))
    headers = {
        **(error.headers or {}),
        REASON_HEADER.decode(): code,
        "cache-control": "no-store",
        "x-request-id": request_id_of(request.scope, worker),
    }
    body = error_body(status=error.status_code, code=code, message=message)
    return Response(body, error.status_code, headers, media_type="application/json")
