"""``/healthz``, ``/readyz`` and ``/metrics`` of the operator.

Shell. Up before anything else: a follower that waits for its turn is well.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

__all__ = ["serve_probes"]


async def serve_probes(host: str, port: int, *, render: Callable[[], bytes]) -> web.AppRunner:
    """Listen.

    Args:
        host: Address.
        port: Port.
        render: The metrics.

    Returns:
        What to clean up at the end.
    """

    async def health(_: web.Request) -> web.Response:
        # Whatever goes wrong for good ends the process, so answering is proof enough.
        return web.json_response({"ok": True})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=render(), content_type="text/plain", charset="utf-8")

    app = web.Application()
    app.router.add_get("/healthz", health)
    app.router.add_get("/readyz", health)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
