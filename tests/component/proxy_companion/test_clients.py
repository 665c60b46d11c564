"""httpx over the pool: what goes out, what comes back, what an error becomes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from tests.support.scripted_engine import Peer, json_answer, replies, scripted_engine

from pdcluster_proxy.clients import HttpReader, PooledTransport, make_client
from pdcluster_proxy.errors import (
    ConnectError,
    ConnectionLostError,
    UpstreamFailureError,
    UpstreamTimeoutError,
)
from pdcluster_proxy.wire.engine_client import EngineClient


@pytest.fixture
async def engines() -> AsyncIterator[EngineClient]:
    engines = EngineClient(sweep_interval_s=0.02)
    yield engines
    await engines.close()


async def test_requests_and_answers_pass_through_the_pool(engines: EngineClient) -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def serve(peer: Peer) -> None:
        while True:
            seen.append(await peer.request())
            await peer.send(json_answer(b'{"a": 1}', status=201))

    async with scripted_engine(serve) as engine, make_client(engines) as client:
        url = f"http://{engine.address.host}:{engine.address.port}/v1/x?y=1"
        for _ in range(2):
            await client.post(url, json={"b": 2}, headers={"x-a": "1"})
        answer = await client.post(url, json={"b": 2}, headers={"x-a": "1"})
        assert (answer.status_code, answer.json()) == (201, {"a": 1})
        assert answer.headers["content-type"] == "application/json"
        assert engine.num_connections == 1
    head, body = seen[0]
    assert head.startswith(b"POST /v1/x?y=1 HTTP/1.1\r\n")
    assert b"\r\nx-a: 1\r\n" in head.lower()
    assert head.lower().count(b"\r\nhost:") == 1
    assert body == b'{"b":2}'


async def test_an_answer_that_is_too_large_is_an_error(engines: EngineClient) -> None:
    transport = PooledTransport(engines, max_body_bytes=10)
    async with (
        scripted_engine(replies(json_answer(b"x" * 11))) as engine,
        httpx.AsyncClient(transport=transport) as client,
    ):
        with pytest.raises(UpstreamFailureError, match="larger than 10 bytes"):
            await client.get(f"http://127.0.0.1:{engine.address.port}/")


@pytest.mark.parametrize(
    ("url", "method"), [("https://127.0.0.1:1/", "GET"), ("http://127.0.0.1:1/", "HEAD")]
)
async def test_what_the_pool_cannot_do_is_an_error(
    engines: EngineClient, url: str, method: str
) -> None:
    async with make_client(engines) as client:
        with pytest.raises(httpx.UnsupportedProtocol):
            await client.request(method, url)


async def test_errors_of_the_pool_come_through_as_they_are(engines: EngineClient) -> None:
    async def silent(peer: Peer) -> None:
        await peer.until_closed()

    async def hang_up(peer: Peer) -> None:
        await peer.request()

    reader = HttpReader(make_client(engines))
    async with scripted_engine(silent) as engine:
        with pytest.raises(UpstreamTimeoutError):
            await reader.get(f"http://127.0.0.1:{engine.address.port}/", timeout_s=0.05)
    with pytest.raises(ConnectError):
        await reader.get(f"http://127.0.0.1:{engine.address.port}/", timeout_s=1)
    async with scripted_engine(hang_up) as engine:
        with pytest.raises(ConnectionLostError):
            await reader.get(f"http://127.0.0.1:{engine.address.port}/", timeout_s=1)
    with pytest.raises(UpstreamFailureError, match="GET"):
        await reader.get("gopher://a/", timeout_s=1)
    with pytest.raises(UpstreamFailureError, match="GET"):
        await reader.get("http://a:b/", timeout_s=1)
