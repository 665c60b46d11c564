"""The peers: proxies of the same shape as ours, written the usual way on a stock HTTP client.

Two legs per request: a prefill leg with ``max_tokens`` 1, then a decode leg with the answer's
``kv_transfer_params``. Everything else of ours (leases, admission, fail-over, metrics) is missing.

Run: python -m benchmarks.peers CLIENT HOST PORT PREFILL_URL DECODE_URL     CLIENT: httpx | aiohttp
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Protocol

import aiohttp
import httpx
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

PATH = "/v1/chat/completions"
HEADERS = {"content-type": "application/json", "x-request-id": "bench-0123456789"}
ASK_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


class Client(Protocol):
    """What a peer needs of its HTTP client."""

    async def post(self, url: str, body: bytes) -> bytes:
        """POST and read the whole answer."""

    def stream(self, url: str, body: bytes) -> AsyncIterator[bytes]:
        """POST and give the answer as it comes."""


class HttpxClient:
    """Stock httpx, without limits."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)

    async def post(self, url: str, body: bytes) -> bytes:
        """POST and read the whole answer."""
        answer = await self._client.post(url, content=body, headers=HEADERS)
        return answer.content

    async def stream(self, url: str, body: bytes) -> AsyncIterator[bytes]:
        """POST and give the answer as it comes."""
        async with self._client.stream("POST", url, content=body, headers=HEADERS) as answer:
            async for part in answer.aiter_raw():
                yield part


class AiohttpClient:
    """aiohttp, tuned: no limit, no decompression, no cookies."""

    def __init__(self) -> None:
        self._known: aiohttp.ClientSession | None = None

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._known is None:  # It must be made on the running loop.
            self._known = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._known

    async def post(self, url: str, body: bytes) -> bytes:
        """POST and read the whole answer."""
        async with self._session.post(url, data=body, headers=HEADERS) as answer:
            return await answer.read()

    async def stream(self, url: str, body: bytes) -> AsyncIterator[bytes]:
        """POST and give the answer as it comes."""
        async with self._session.post(url, data=body, headers=HEADERS) as answer:
            async for part in answer.content.iter_any():
                yield part


def make_app(client: Client, prefill_url: str, decode_url: str) -> Starlette:
    """A proxy on one stock client."""

    async def chat(request: Request) -> Response:
        wanted = msgspec.json.decode(await request.body())
        first = {**wanted, "max_tokens": 1, "stream": False, "kv_transfer_params": ASK_PREFILL}
        reply = msgspec.json.decode(
            await client.post(prefill_url + PATH, msgspec.json.encode(first))
        )
        second = {**wanted, "kv_transfer_params": reply["kv_transfer_params"]}
        body = msgspec.json.encode(second)
        if wanted.get("stream"):
            events = client.stream(decode_url + PATH, body)
            return StreamingResponse(events, media_type="text/event-stream")
        return Response(await client.post(decode_url + PATH, body), media_type="application/json")

    return Starlette(routes=[Route(PATH, chat, methods=["POST"])])


def main() -> None:
    """Serve until killed."""
    name, host, port, prefill_url, decode_url = sys.argv[1:]
    client: Client = HttpxClient() if name == "httpx" else AiohttpClient()
    uvicorn.run(
        make_app(client, prefill_url, decode_url),
        host=host,
        port=int(port),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        backlog=4096,
    )


if __name__ == "__main__":
    main()
