"""The server of one worker: it runs the lifespan, serves, sweeps, and stops in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send
from tests.support.scripted_engine import eventually

from pdcluster_proxy.wire.edge_guard import EdgeLimits
from pdcluster_proxy.wire.server import EdgeServer, serve_worker

TIMEOUT_S = 20.0


class App:
    """An application that notes its lifespan and answers when the test lets it."""

    def __init__(self) -> None:
        self.life: list[str] = []
        self.num_running = 0
        self.may_answer = asyncio.Event()
        self.begins_at_once = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for word in ("startup", "shutdown"):
                await receive()
                self.life.append(word)
                await send({"type": f"lifespan.{word}.complete"})
            return
        await receive()
        self.num_running += 1
        if self.begins_at_once:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            await self.may_answer.wait()
            await send({"type": "http.response.body", "body": b"ok"})
            self.num_running -= 1
            return
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        self.num_running -= 1


@asynccontextmanager
async def serving(
    app: App, server: EdgeServer
) -> AsyncIterator[tuple[tuple[str, int], asyncio.Task[None]]]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    address = listener.getsockname()
    task = asyncio.create_task(serve_worker(server, [listener]))
    await eventually(lambda: server.started, within_s=TIMEOUT_S)
    try:
        yield address, task
    finally:
        app.may_answer.set()
        server.stop()
        async with asyncio.timeout(TIMEOUT_S):
            await task


async def test_a_request_is_served_between_startup_and_shutdown() -> None:
    app = App()
    app.may_answer.set()
    async with serving(app, EdgeServer(app)) as (address, _):
        assert app.life == ["startup"]
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 204 ")
        assert b"\r\ndate: " in head
        assert b"\r\nserver:" not in head
    assert app.life == ["startup", "shutdown"]


async def test_stopping_finishes_what_runs_and_takes_nothing_new() -> None:
    app = App()
    server = EdgeServer(app, grace_s=TIMEOUT_S)
    async with serving(app, server) as (address, task):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await eventually(lambda: app.num_running == 1)
        server.stop()

        async def is_closed() -> bool:
            try:
                _, late = await asyncio.open_connection(*address)
            except ConnectionError:  # Refused, or reset where it still was in the queue.
                return True
            late.close()
            return False

        async with asyncio.timeout(TIMEOUT_S):
            while not await is_closed():  # noqa: ASYNC110 (no event tells of it)
                await asyncio.sleep(0.01)
        assert not task.done()
        app.may_answer.set()
        async with asyncio.timeout(TIMEOUT_S):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")
            await task
        writer.close()


REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_answers_announce_the_close_while_the_server_is_to_leave() -> None:
    app = App()
    app.may_answer.set()
    leaving = False
    server = EdgeServer(app, is_leaving=lambda: leaving)
    async with serving(app, server) as (address, _):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST)
        assert b"connection: close" not in await reader.readuntil(b"\r\n\r\n")
        leaving = True
        writer.write(REQUEST)
        assert b"connection: close" in await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(TIMEOUT_S):
            assert await reader.read() == b""
        writer.close()


async def test_an_idle_client_may_ask_once_more_in_the_moment_of_the_stop() -> None:
    app = App()
    app.may_answer.set()
    server = EdgeServer(app, grace_s=TIMEOUT_S, limits=EdgeLimits(farewell_s=0.5))
    async with serving(app, server) as (address, task):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        server.stop()
        await asyncio.sleep(0.2)
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 204 ")
        assert b"connection: close" in head
        async with asyncio.timeout(TIMEOUT_S):
            assert await reader.read() == b""
            await task
        writer.close()


async def test_a_client_whose_answer_began_before_the_stop_may_ask_once_more() -> None:
    app = App()
    app.begins_at_once = True
    server = EdgeServer(app, grace_s=TIMEOUT_S, limits=EdgeLimits(farewell_s=0.5))
    async with serving(app, server) as (address, task):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST)
        assert b"connection: close" not in await reader.readuntil(b"\r\n\r\n")
        server.stop()
        await asyncio.sleep(0.2)
        app.may_answer.set()
        assert await reader.readuntil(b"0\r\n\r\n") == b"2\r\nok\r\n0\r\n\r\n"
        writer.write(REQUEST)
        assert b"connection: close" in await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(TIMEOUT_S):
            await reader.read()
            await task
        writer.close()


async def test_an_idle_client_holds_the_server_up_for_its_farewell_alone() -> None:
    app = App()
    app.may_answer.set()
    server = EdgeServer(app, grace_s=TIMEOUT_S, limits=EdgeLimits(farewell_s=0.1))
    async with serving(app, server) as (address, task):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        server.stop()
        async with asyncio.timeout(TIMEOUT_S / 2):
            assert await reader.read() == b""
            await task
        writer.close()


async def test_what_runs_longer_than_its_grace_is_cancelled() -> None:
    app = App()
    server = EdgeServer(app, grace_s=1.0)
    async with serving(app, server) as (address, task):
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await eventually(lambda: app.num_running == 1)
        server.stop()
        async with asyncio.timeout(TIMEOUT_S):
            await task
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HT"])
async def test_the_server_sweeps_its_connections(sent: bytes) -> None:
    app = App()
    async with serving(app, EdgeServer(app, limits=EdgeLimits(head_timeout_s=0.05))) as (
        address,
        _,
    ):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        async with asyncio.timeout(TIMEOUT_S):
            answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 408 ") == bool(sent)
