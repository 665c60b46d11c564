"""Probes on the client port: is the worker alive, can it serve.

Shell. ``/readyz`` of the whole proxy, with what hinders it, is the companion's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pdcluster_proxy.exchange.worker import Worker

__all__ = ["healthz", "readyz"]


async def healthz(_request: Request) -> Response:
    """Answer 200 as long as the loop runs."""
    return JSONResponse({"status": "ok"})


def readyz(worker: Worker) -> Callable[[Request], Awaitable[Response]]:
    """Make the readiness probe: 200 while a pair takes work and the proxy is not on its way out."""

    async def probe(_request: Request) -> Response:
        pool = worker.pool
        if worker.companion.is_draining:
            return JSONResponse({"status": "draining"}, status_code=503)
        body = {"prefill": len(pool.prefill), "decode": len(pool.decode)}
        if pool.revisions:
            return JSONResponse({"status": "ready", **body})
        return JSONResponse({"status": "no-pair", **body}, status_code=503)

    return probe
