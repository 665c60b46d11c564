"""The engine's HTTP application.

Composition root: routes, authentication, faults that hit before an endpoint.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pdcluster_sim.api.admin import AdminApi, EngineHandles
from pdcluster_sim.api.chat import ChatApi
from pdcluster_sim.api.completions import CompletionsApi
from pdcluster_sim.api.generating import json_response
from pdcluster_sim.api.plain import PlainApi

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pdcluster_sim.api.context import ApiContext

__all__ = ["create_app"]

_Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(context: ApiContext, handles: EngineHandles) -> ASGIApp:
    """Build the application.

    Args:
        context: What all endpoints share.
        handles: What the admin endpoints may reach; they are served only with ``--sim-admin``.
    """
    plain = PlainApi(context)
    routes = [
        _route("/health", plain.health, "GET"),
        _route("/ping", plain.health, "GET", "POST"),
        _route("/version", plain.version, "GET"),
        _route("/load", plain.load, "GET"),
        _route("/metrics", plain.metrics, "GET"),
        _route("/v1/models", plain.models, "GET"),
        _route("/tokenize", plain.tokenize, "POST"),
        _route("/detokenize", plain.detokenize, "POST"),
        _route("/v1/completions", _generating(context, CompletionsApi(context)), "POST"),
        _route("/v1/chat/completions", _generating(context, ChatApi(context)), "POST"),
    ]
    if context.settings.admin:
        admin = AdminApi(context, handles)
        routes += [
            _route("/sim/state", admin.state, "GET"),
            _route("/sim/memory", admin.spoil, "POST"),
            _route("/sim/stall", admin.stall, "POST"),
            _route("/sim/faults", admin.fault, "POST", "DELETE"),
            _route("/sim/end", admin.end, "POST"),
        ]
    app: ASGIApp = Starlette(
        routes=routes,
        exception_handlers={404: _detail("Not Found"), 405: _detail("Method Not Allowed")},
    )
    keys = context.settings.api_keys
    return _Authenticated(app, keys) if keys else app


def _route(path: str, endpoint: _Endpoint, *methods: str) -> Route:
    async def call(request: Request) -> Response:
        return await endpoint(request)

    return Route(path, call, methods=list(methods))


def _generating(context: ApiContext, endpoint: _Endpoint) -> _Endpoint:
    """Apply what hits before a request is looked at: draining, and planned faults."""

    async def call(request: Request) -> Response:
        slow = context.faults.take("slow-answer")
        if slow is not None:
            await asyncio.sleep(slow.seconds)
        fault = context.faults.take("status")
        if fault is not None:
            return _unavailable(fault.status, "a planned fault")
        if context.frontend.is_draining:
            return _unavailable(503, "The engine is shutting down")
        return await endpoint(request)

    return call


def _unavailable(status: int, message: str) -> Response:
    kind = "ServiceUnavailableError" if status == 503 else "InternalServerError"  # noqa: PLR2004
    error = {"message": message, "type": kind, "param": None, "code": status}
    return json_response({"error": error}, status=status)


def _detail(text: str) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Answer like FastAPI, which vLLM is built on."""

    async def handler(_request: Request, error: Exception) -> Response:
        response = json_response({"detail": text}, status=getattr(error, "status_code", 404))
        for name, value in (getattr(error, "headers", None) or {}).items():
            response.headers[name] = value
        return response

    return handler


class _Authenticated:
    """Asks for an API key on ``/v1`` routes, as vLLM does."""

    def __init__(self, app: ASGIApp, keys: frozenset[str]) -> None:
        self._app = app
        self._accepted = tuple(f"Bearer {key}".encode() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 401."""
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not any(hmac.compare_digest(given, each) for each in self._accepted):
                rejection = json_response({"error": "Unauthorized"}, status=401)
                await rejection(scope, receive, send)
                return
        await self._app(scope, receive, send)
