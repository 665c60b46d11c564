"""One leg: heads, bodies in every framing, bounds in time and size, losses."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.scripted_engine import (
    LAST_CHUNK,
    STREAM_HEAD,
    Peer,
    Script,
    chunk,
    eventually,
    json_answer,
    replies,
    scripted_engine,
)

from pdcluster_proxy.core.ports import Address
from pdcluster_proxy.errors import (
    ConnectionLostError,
    ProxyError,
    UpstreamFailureError,
    UpstreamTimeoutError,
)
from pdcluster_proxy.wire.engine_client import EngineClient, request_head
from pdcluster_proxy.wire.engine_leg import HOLD_LIMIT_BYTES, EngineLeg

TIMEOUT_S = 5.0
EVENT = b'data: {"a": 1}\n\n'


async def ask(client: EngineClient, address: Address, body: bytes = b"{}") -> EngineLeg:
    leg = await client.connect(address, timeout_s=TIMEOUT_S)
    leg.send(request_head("POST", "/v1/completions", address, [], len(body)), body)
    return leg


async def whole_answer(leg: EngineLeg) -> bytes:
    await leg.head(timeout_s=TIMEOUT_S)
    return await leg.collect(100, timeout_s=TIMEOUT_S)


def drips(*parts: bytes) -> Script:
    """Answer in segments, then close."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*parts, pause_s=0.005)

    return script


async def silent(peer: Peer) -> None:
    await peer.until_closed()


async def test_the_engine_sees_head_and_body_as_given(client: EngineClient) -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def script(peer: Peer) -> None:
        seen.append(await peer.request())
        await peer.send(json_answer(b"{}"))

    big = b'"' + b"x" * 300_000 + b'"'
    async with scripted_engine(script) as engine:
        leg = await client.connect(engine.address, timeout_s=TIMEOUT_S)
        assert leg.bytes_accepted == 0
        head = request_head("POST", "/v1/x", engine.address, [(b"x-a", b"1")], len(big))
        leg.send(head, big)
        await leg.head(timeout_s=TIMEOUT_S)
        assert leg.bytes_accepted == len(head) + len(big)
        await leg.collect(10, timeout_s=TIMEOUT_S)
    assert seen == [(head, big)]
    assert head.startswith(b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:")


async def test_the_head_has_status_fields_and_media_type(client: EngineClient) -> None:
    async with scripted_engine(replies(STREAM_HEAD + LAST_CHUNK)) as engine:
        leg = await ask(client, engine.address)
        head = await leg.head(timeout_s=TIMEOUT_S)
        assert (head.status, head.is_event_stream) == (200, True)
        assert (b"transfer-encoding", b"chunked") in head.headers
        leg.abort()


async def test_interim_answers_are_skipped(client: EngineClient) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with scripted_engine(
        replies(b"".join(interim) + json_answer(b"{}", status=201))
    ) as engine:
        for _ in range(2):
            leg = await ask(client, engine.address)
            assert (await leg.head(timeout_s=TIMEOUT_S)).status == 201
            assert await leg.collect(10, timeout_s=TIMEOUT_S) == b"{}"
    assert client.connections_opened == {engine.address: 1}


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.1 200 OK\r\ncontent-le", b"ngth: 4\r\n\r\nab", b"cd"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\na",
            b"b\r\n2\r\ncd\r\n0\r\n\r\n",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nab", b"cd"),
        (b"HTTP/1.0 200 OK\r\n\r\nabcd",),
    ],
    ids=["by length", "by chunks", "until close", "until close, HTTP/1.0"],
)
async def test_a_body_is_read_in_every_framing(
    client: EngineClient, parts: tuple[bytes, ...]
) -> None:
    async with scripted_engine(drips(*parts)) as engine:
        leg = await ask(client, engine.address)
        await leg.head(timeout_s=TIMEOUT_S)
        assert await leg.collect(4, timeout_s=TIMEOUT_S) == b"abcd"


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_content_has_no_body(client: EngineClient, status: int) -> None:
    async with scripted_engine(replies(b"HTTP/1.1 %d X\r\n\r\n" % status)) as engine:
        for _ in range(2):
            leg = await ask(client, engine.address)
            await leg.head(timeout_s=TIMEOUT_S)
            assert await leg.collect(0, timeout_s=TIMEOUT_S) == b""
    assert client.connections_opened == {engine.address: 1}


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n",),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab",),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",),
        (b"SSH-2.0-OpenSSH_9.2\r\n",),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",),
        (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,),
    ],
    ids=[
        "nothing",
        "half a head",
        "half a body",
        "no last chunk",
        "ssh",
        "bad chunk",
        "upgrade",
        "huge",
    ],
)
async def test_a_broken_answer_is_a_lost_connection(
    client: EngineClient, parts: tuple[bytes, ...]
) -> None:
    async with scripted_engine(drips(*parts)) as engine:
        leg = await ask(client, engine.address)
        with pytest.raises(ConnectionLostError) as caught:
            await whole_answer(leg)
        assert caught.value.accepted is True
        await eventually(lambda: client.num_open == 0)


async def test_a_reset_is_a_lost_connection(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    async with scripted_engine(script) as engine:
        leg = await ask(client, engine.address)
        with pytest.raises(ConnectionLostError):
            await leg.head(timeout_s=TIMEOUT_S)


async def test_a_silent_engine_times_out_and_its_connection_is_closed(client: EngineClient) -> None:
    async with scripted_engine(silent) as engine:
        leg = await ask(client, engine.address)
        with pytest.raises(UpstreamTimeoutError, match="begin its answer"):
            await leg.head(timeout_s=0.05)
        await eventually(lambda: client.num_open == 0)


async def test_a_body_that_stalls_times_out(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
        await peer.until_closed()

    async with scripted_engine(script) as engine:
        leg = await ask(client, engine.address)
        await leg.head(timeout_s=TIMEOUT_S)
        with pytest.raises(UpstreamTimeoutError, match="complete its answer"):
            await leg.collect(100, timeout_s=0.05)


async def test_a_body_over_its_limit_is_an_error(client: EngineClient) -> None:
    async with scripted_engine(replies(json_answer(b"x" * 101))) as engine:
        leg = await ask(client, engine.address)
        await leg.head(timeout_s=TIMEOUT_S)
        with pytest.raises(UpstreamFailureError, match="larger than 100 bytes"):
            await leg.collect(100, timeout_s=TIMEOUT_S)
        await eventually(lambda: client.num_open == 0)


async def test_a_large_body_is_collected_whole(client: EngineClient) -> None:
    large = b"x" * 3_000_000
    async with scripted_engine(replies(json_answer(large))) as engine:
        leg = await ask(client, engine.address)
        await leg.head(timeout_s=TIMEOUT_S)
        assert await leg.collect(len(large), timeout_s=TIMEOUT_S) == large
        assert client.num_idle == 1


async def test_the_first_event_is_peeked_at_across_chunks(client: EngineClient) -> None:
    parts = STREAM_HEAD, chunk(EVENT[:5]), chunk(EVENT[5:] + EVENT)
    async with scripted_engine(drips(*parts)) as engine:
        leg = await ask(client, engine.address)
        await leg.head(timeout_s=TIMEOUT_S)
        assert await leg.first_event(timeout_s=TIMEOUT_S, limit=1000) == EVENT
        assert await leg.first_event(timeout_s=TIMEOUT_S, limit=1000) == EVENT
        leg.abort()


async def test_a_body_without_any_event_has_no_first_event(client: EngineClient) -> None:
    async with scripted_engine(replies(STREAM_HEAD + LAST_CHUNK)) as engine:
        leg = await ask(client, engine.address)
        await leg.head(timeout_s=TIMEOUT_S)
        assert await leg.first_event(timeout_s=TIMEOUT_S, limit=1000) == b""
        leg.abort()


async def test_a_first_event_over_its_limit_is_an_error(client: EngineClient) -> None:
    async with scripted_engine(replies(STREAM_HEAD + chunk(b"x" * 200_000))) as engine:
        leg = await ask(client, engine.address)
        await leg.head(timeout_s=TIMEOUT_S)
        with pytest.raises(ConnectionLostError, match="larger than 1000 bytes"):
            await leg.first_event(timeout_s=TIMEOUT_S, limit=1000)


async def test_a_first_event_that_does_not_come_times_out(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD, chunk(EVENT[:5]))
        await peer.until_closed()

    async with scripted_engine(script) as engine:
        leg = await ask(client, engine.address)
        await leg.head(timeout_s=TIMEOUT_S)
        with pytest.raises(UpstreamTimeoutError, match="first event"):
            await leg.first_event(timeout_s=0.05, limit=1000)


async def test_a_body_that_nobody_wants_yet_is_held_within_bounds(client: EngineClient) -> None:
    sent = 0

    async def flood(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(STREAM_HEAD)
        for _ in range(4000):
            await peer.send(chunk(EVENT * 1000))
            sent += len(EVENT) * 1000

    async with scripted_engine(flood) as engine:
        leg = await ask(client, engine.address)
        await leg.head(timeout_s=TIMEOUT_S)
        before = -1
        while before != sent:  # Until the sockets are full and nothing moves any more.
            before = sent
            await asyncio.sleep(0.1)
        assert len(leg._body) < HOLD_LIMIT_BYTES + 512 * 1024
        leg.abort()


async def test_abort_closes_the_connection_and_may_be_repeated(client: EngineClient) -> None:
    closed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.until_closed()
        closed.set()

    async with scripted_engine(script) as engine:
        leg = await ask(client, engine.address)
        leg.abort()
        leg.abort()
        async with asyncio.timeout(TIMEOUT_S):
            await closed.wait()
        with pytest.raises(ProxyError):
            await leg.head(timeout_s=TIMEOUT_S)
    assert client.num_open == 0


async def test_cancelling_whoever_waits_closes_the_connection(client: EngineClient) -> None:
    async with scripted_engine(silent) as engine:
        leg = await ask(client, engine.address)
        waiting = asyncio.ensure_future(leg.head(timeout_s=TIMEOUT_S))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await eventually(lambda: client.num_open == 0)
