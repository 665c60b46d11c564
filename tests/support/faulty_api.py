"""A real API server behind a door that can be told to misbehave, request by request.

What it does can't be provoked in a healthy server at will: 429 with a Retry-After, a watch that
ends in 410, connections that break. Everything else passes through untouched.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web
from tools.kubernetes.cluster.layout import Layout

__all__ = ["Answer", "FaultyApi", "Seen"]

_GONE = {
    "type": "ERROR",
    "object": {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Expired",
        "message": "too old resource version",
        "code": 410,
    },
}
_HOP_BY_HOP = {"transfer-encoding", "content-length", "connection", "content-encoding"}


@dataclass(frozen=True, slots=True)
class Seen:
    """One request.

    Attributes:
        method: Its method.
        path: With the query.
        at: When it came, monotonic seconds.
        status: What it was answered; 0 for a broken connection.
    """

    method: str
    path: str
    at: float
    status: int

    @property
    def is_write(self) -> bool:
        """Whether it would change something."""
        return self.method != "GET"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets instead of the server's answer; status 0 breaks the connection."""

    status: int
    retry_after_s: int | None = None


class FaultyApi:
    """The door; a thread of its own.

    Args:
        layout: The cluster behind it.
        folder: For a kubeconfig that leads here.

    Attributes:
        fault: Decides what a request gets instead, None for the server's own answer.
        seen: Every request so far.
    """

    def __init__(self, layout: Layout, folder: Path) -> None:
        self._layout = layout
        self.kubeconfig = folder / "faulty.kubeconfig"
        self.fault: Callable[[Seen], Answer | None] = lambda _seen: None
        self.seen: list[Seen] = []
        self._expired = 0
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._end: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        self._loop.close()

    def expire_watches(self) -> None:
        """End every running watch as a server does whose history is gone: with 410."""
        self._expired += 1

    def writes(self) -> list[Seen]:
        """Requests that would change something."""
        return [seen for seen in self.seen if seen.is_write]

    async def _run(self) -> None:
        self._end = asyncio.Event()
        pki = self._layout.pki
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        async with aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
        ) as session:
            app = web.Application(client_max_size=64 * 1024 * 1024)

            async def answer(request: web.Request) -> web.StreamResponse:
                return await self._pass(session, request)

            app.router.add_route("*", "/{path:.*}", answer)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            self.kubeconfig.write_text(_kubeconfig(f"http://{host}:{port}"))
            self._is_up.set()
            await self._end.wait()
            await runner.cleanup()
        # Closed connections let go of their sockets in a later pass of the loop.
        await asyncio.sleep(0.05)

    async def _pass(
        self, session: aiohttp.ClientSession, request: web.Request
    ) -> web.StreamResponse:
        at = time.monotonic()
        answer = self.fault(Seen(request.method, request.path_qs, at, -1))
        if answer is not None:
            self.seen.append(Seen(request.method, request.path_qs, at, answer.status))
            if not answer.status:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            wait = answer.retry_after_s
            headers = {} if wait is None else {"Retry-After": str(wait)}
            status = {"kind": "Status", "apiVersion": "v1", "code": answer.status, "message": "no"}
            return web.json_response(status, status=answer.status, headers=headers)
        headers = {k: v for k, v in request.headers.items() if k.lower() != "host"}
        url = self._layout.api_url + request.path_qs
        began, body = self._expired, await request.read()
        async with session.request(
            request.method,
            url,
            headers=headers,
            data=body or None,
            skip_auto_headers=("Content-Type", "Accept-Encoding"),
        ) as real:
            self.seen.append(Seen(request.method, request.path_qs, at, real.status))
            kept = {k: v for k, v in real.headers.items() if k.lower() not in _HOP_BY_HOP}
            passed = web.StreamResponse(status=real.status, headers=kept)
            await passed.prepare(request)
            is_watch = "watch=true" in request.path_qs
            while True:
                try:
                    async with asyncio.timeout(0.1 if is_watch else None):
                        data = await real.content.readany()
                except TimeoutError:
                    if self._expired != began:
                        await passed.write(json.dumps(_GONE).encode() + b"\n")
                        break
                    continue
                if not data:
                    break
                await passed.write(data)
            await passed.write_eof()
            return passed


def _kubeconfig(url: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )
