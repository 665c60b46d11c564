"""httpx for everything that is not hot, over the same pool as the hot path.

Shell, and the only module of the proxy that imports httpx. Errors of the pool come through as they
are: this project's own.

Source:
    ``performance.md`` 3.2 of the design.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
from typing_extensions import override

from pdcluster_proxy.core.ports import Address
from pdcluster_proxy.errors import UpstreamFailureError
from pdcluster_proxy.wire.engine_client import request_head

if TYPE_CHECKING:
    from pdcluster_proxy.core.ports import Engines

__all__ = ["Answer", "HttpReader", "PooledTransport", "make_client"]

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Largest answer taken, in bytes: an engine's metrics are below 1 MiB."""

_OURS = (b"host", b"content-length", b"connection", b"accept-encoding", b"transfer-encoding")
_DEFAULT_TIMEOUT_S = 5.0


class PooledTransport(httpx.AsyncBaseTransport):
    """Sends httpx's requests through the pooled engine client; answers are read whole.

    Args:
        engines: The pool.
        max_body_bytes: Largest answer taken.
    """

    def __init__(self, engines: Engines, *, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._engines = engines
        self._max_body_bytes = max_body_bytes

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request.

        Raises:
            LocalFailureError: The server could not be reached or heard.
            UpstreamFailureError: Its answer is larger than the bound.
            httpx.UnsupportedProtocol: Not plain HTTP; or HEAD, whose answer states a body that
                does not come.
        """
        if request.url.scheme != "http" or request.method == "HEAD":
            raise httpx.UnsupportedProtocol(f"{request.method} {request.url} is not supported.")
        timeouts = request.extensions.get("timeout", {})
        address = Address(request.url.host, request.url.port or 80)
        body = await request.aread()
        head = request_head(
            request.method,
            request.url.raw_path.decode("ascii"),
            address,
            [(k, v) for k, v in request.headers.raw if k.lower() not in _OURS],
            len(body),
        )
        connection = await self._engines.connect(
            address, timeout_s=timeouts.get("connect") or _DEFAULT_TIMEOUT_S
        )
        try:
            connection.send(head, body)
            read_s = timeouts.get("read") or _DEFAULT_TIMEOUT_S
            answer = await connection.head(timeout_s=read_s)
            content = await connection.collect(self._max_body_bytes, timeout_s=read_s)
        finally:
            connection.abort()
        headers = [(k, v) for k, v in answer.headers if k not in _OURS]
        return httpx.Response(answer.status, headers=headers, content=content, request=request)


def make_client(engines: Engines, *, timeout_s: float = _DEFAULT_TIMEOUT_S) -> httpx.AsyncClient:
    """Make a client whose every request goes through the pool; close it when done."""
    return httpx.AsyncClient(transport=PooledTransport(engines), timeout=timeout_s, trust_env=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a GET gave.

    Attributes:
        status: HTTP status.
        body: Decoded content.
    """

    status: int
    body: bytes


class HttpReader:
    """GETs, for code that should not know of httpx.

    Args:
        client: Made by :func:`make_client`.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def get(self, url: str, *, timeout_s: float) -> Answer:
        """Read one resource.

        Raises:
            LocalFailureError: The server could not be reached or heard in time.
            UpstreamFailureError: What came is no usable answer, or the address is none.
        """
        try:
            answer = await self._client.get(url, timeout=timeout_s)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UpstreamFailureError(f"GET {url}: {error}") from error
        return Answer(status=answer.status_code, body=answer.content)
