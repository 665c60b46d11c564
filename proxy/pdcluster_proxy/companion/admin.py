"""The admin pages: readiness of the whole proxy, metrics, ledger, endpoints, and their index.

Shell. Plain HTTP on its own address, for the cluster's inside only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from pdcluster_api.proxy_state import ProxyState

__all__ = ["PAGES", "AdminSource", "create_admin_app"]

PAGES: Final = {
    "/readyz": "whether the whole proxy can serve, with reasons where it can not (503)",
    "/healthz": "the companion runs",
    "/endpoints": "every engine: address, revision, state, load, open legs (JSON)",
    "/ledger": "exchanges and KV leases in flight, per engine (JSON)",
    "/metrics": "everything counted, in Prometheus' text format",
}
"""What the index lists."""


class Renders(Protocol):
    """Something that renders metrics."""

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""


class AdminSource(Protocol):
    """What the page shows (``companion.py``)."""

    @property
    def figures(self) -> Renders:
        """The metrics."""

    def hindrances(self) -> tuple[str, ...]:
        """Why the proxy is not ready; empty where it is."""

    def endpoint_rows(self) -> tuple[Mapping[str, object], ...]:
        """Every endpoint."""

    def state(self) -> ProxyState:
        """What the operator asks for."""


def create_admin_app(source: AdminSource) -> Starlette:
    """Make the admin application."""

    async def index(_request: Request) -> Response:
        lines = [f"{path:<12} {what}\n" for path, what in PAGES.items()]
        return PlainTextResponse("pdcluster-proxy, admin port\n\n" + "".join(lines))

    async def healthz(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        hindrances = source.hindrances()
        if hindrances:
            return JSONResponse({"status": "not ready", "reasons": hindrances}, status_code=503)
        return JSONResponse({"status": "ready"})

    async def metrics(_request: Request) -> Response:
        return Response(source.figures.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def ledger(_request: Request) -> Response:
        body = source.state().model_dump_json(by_alias=True)
        return Response(body, media_type="application/json")

    async def endpoints(_request: Request) -> Response:
        return Response(msgspec.json.encode(source.endpoint_rows()), media_type="application/json")

    pages = {"/": index}
    pages |= {f"/{page.__name__}": page for page in (readyz, healthz, endpoints, ledger, metrics)}
    return Starlette(routes=[Route(path, page, methods=["GET"]) for path, page in pages.items()])
