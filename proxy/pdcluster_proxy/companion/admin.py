"""The admin page: readiness of the whole proxy, metrics, ledger, endpoints.

Shell. Plain HTTP on its own address, for the cluster's inside only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

    from pdcluster_api.proxy_state import ProxyState
    from pdcluster_proxy.core.messages import EndpointView

__all__ = ["AdminSource", "create_admin_app"]


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

    def endpoints(self) -> tuple[EndpointView, ...]:
        """Every endpoint."""

    def state(self) -> ProxyState:
        """What the operator asks for."""


def create_admin_app(source: AdminSource) -> Starlette:
    """Make the admin application."""

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
        return Response(msgspec.json.encode(source.endpoints()), media_type="application/json")

    pages = (healthz, readyz, metrics, ledger, endpoints)
    return Starlette(routes=[Route(f"/{page.__name__}", page, methods=["GET"]) for page in pages])
