"""The pool: what is kept, what is closed, what is opened anew."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.support.scripted_engine import (
    LAST_CHUNK,
    STREAM_HEAD,
    Peer,
    chunk,
    eventually,
    json_answer,
    replies,
    scripted_engine,
)
from typing_extensions import override

from pdcluster_proxy.core.ports import Address
from pdcluster_proxy.errors import ConnectError, ConnectionLostError
from pdcluster_proxy.wire.engine_client import EngineClient, request_head
from pdcluster_proxy.wire.engine_leg import EngineLeg
from pdcluster_proxy.wire.engine_socket import EngineSocket

TIMEOUT_S = 5.0


async def ask(client: EngineClient, address: Address, body: bytes = b"{}") -> EngineLeg:
    leg = await client.connect(address, timeout_s=TIMEOUT_S)
    leg.send(request_head("POST", "/v1/completions", address, [], len(body)), body)
    return leg


async def answer(client: EngineClient, address: Address) -> bytes:
    leg = await ask(client, address)
    await leg.head(timeout_s=TIMEOUT_S)
    return await leg.collect(1 << 20, timeout_s=TIMEOUT_S)


async def test_one_connection_carries_requests_one_after_the_other(client: EngineClient) -> None:
    async with scripted_engine(replies(json_answer(b"1"), json_answer(b"2"))) as engine:
        bodies = [await answer(client, engine.address) for _ in range(2)]
    assert bodies == [b"1", b"2"]
    assert client.connections_opened == {engine.address: 1}


async def test_requests_of_one_moment_go_out_together_once_it_is_over(
    client: EngineClient,
) -> None:
    async with scripted_engine(replies(json_answer(b"{}"))) as engine:
        legs = [await client.connect(engine.address, timeout_s=TIMEOUT_S) for _ in range(3)]
        head = request_head("POST", "/v1/completions", engine.address, [], 2)
        for leg in legs:
            leg.send(head, b"{}")
        assert [leg.bytes_accepted for leg in legs] == [0, 0, 0]
        await asyncio.sleep(0)
        assert [leg.bytes_accepted for leg in legs] == [len(head) + 2] * 3
        for leg in legs:
            assert (await leg.head(timeout_s=TIMEOUT_S)).status == 200
            await leg.collect(100, timeout_s=TIMEOUT_S)


async def test_a_leg_given_up_in_the_moment_of_its_request_sends_nothing(
    client: EngineClient,
) -> None:
    heard: list[bytes] = []

    async def script(peer: Peer) -> None:
        heard.append(await peer.until_closed())

    async with scripted_engine(script) as engine:
        leg = await ask(client, engine.address)
        leg.abort()
        assert leg.bytes_accepted == 0
        await eventually(lambda: len(heard) == 1)
    assert heard == [b""]


async def test_one_fault_of_a_request_does_not_keep_the_others() -> None:
    class Broken(EngineSocket):
        faults = 1

        @override
        def flush(self) -> None:
            if Broken.faults:
                Broken.faults -= 1
                raise RuntimeError("a bug")
            super().flush()

    seen: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: seen.append(context["exception"]))
    client = EngineClient(socket=Broken)
    async with scripted_engine(replies(json_answer(b"{}"))) as engine:
        unlucky, lucky = [await ask(client, engine.address) for _ in range(2)]
        assert (await lucky.head(timeout_s=TIMEOUT_S)).status == 200
        unlucky.abort()
        await client.close()
    assert len(seen) == 1


async def test_an_answer_that_comes_before_its_request_is_nobodys(client: EngineClient) -> None:
    async def hasty(peer: Peer) -> None:
        await peer.send(json_answer(b"{}"))
        await peer.until_closed()

    async with scripted_engine(hasty) as engine:
        leg = await client.connect(engine.address, timeout_s=TIMEOUT_S)
        await eventually(lambda: client.num_open == 0)
        leg.send(request_head("POST", "/v1/completions", engine.address, [], 2), b"{}")
        with pytest.raises(ConnectionLostError):
            await leg.head(timeout_s=TIMEOUT_S)
        assert leg.bytes_accepted == 0


async def test_the_warmest_idle_connection_is_taken_first(client: EngineClient) -> None:
    async with scripted_engine(replies(json_answer(b"{}"))) as engine:
        legs = [await ask(client, engine.address) for _ in range(3)]
        for leg in legs:
            await leg.head(timeout_s=TIMEOUT_S)
            await leg.collect(100, timeout_s=TIMEOUT_S)
        assert client.num_idle == 3
        for _ in range(5):
            await answer(client, engine.address)
        assert client.connections_opened == {engine.address: 3}
        assert client.num_idle == 3


async def test_a_connection_idle_for_too_long_is_closed_by_the_sweep() -> None:
    client = EngineClient(idle_limit_s=0.05, sweep_interval_s=0.01)
    async with scripted_engine(replies(json_answer(b"{}"))) as engine:
        await answer(client, engine.address)
        assert client.num_idle == 1
        await eventually(lambda: client.num_open == 0)
    await client.close()


async def test_one_fault_of_the_sweep_does_not_end_it() -> None:
    class Broken(EngineSocket):
        faults = 1

        @override
        def check(self, *, now: float, idle_limit_s: float) -> None:
            if self.faults:
                self.faults -= 1
                raise RuntimeError("a bug")
            super().check(now=now, idle_limit_s=idle_limit_s)

    seen: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: seen.append(context["exception"]))
    client = EngineClient(idle_limit_s=0.05, sweep_interval_s=0.01, socket=Broken)
    async with scripted_engine(replies(json_answer(b"{}"))) as engine:
        await answer(client, engine.address)
        await eventually(lambda: client.num_open == 0)
    assert len(seen) == 1
    await client.close()


async def test_a_connection_past_its_idle_limit_is_not_used_even_before_the_sweep() -> None:
    client = EngineClient(idle_limit_s=0.0, sweep_interval_s=60)
    async with scripted_engine(replies(json_answer(b"{}"))) as engine:
        await answer(client, engine.address)
        await answer(client, engine.address)
        assert client.connections_opened == {engine.address: 2}
    await client.close()


async def test_a_connection_that_the_engine_closed_is_not_used_again(client: EngineClient) -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(json_answer(b"{}"))

    async with scripted_engine(once) as engine:
        await answer(client, engine.address)
        await eventually(lambda: client.num_open == 0)
        await answer(client, engine.address)
        assert client.connections_opened == {engine.address: 2}


async def test_a_response_that_says_close_is_not_pooled(client: EngineClient) -> None:
    closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
    async with scripted_engine(replies(closing)) as engine:
        assert await answer(client, engine.address) == b"{}"
        assert client.num_idle == 0
        await eventually(lambda: client.num_open == 0)


async def test_bytes_after_the_body_close_the_connection(client: EngineClient) -> None:
    for excess in (json_answer(b"{}"), b"garbage"):
        async with scripted_engine(replies(json_answer(b"{}") + excess)) as engine:
            assert await answer(client, engine.address) == b"{}"
            assert client.num_idle == 0


async def test_bytes_after_the_last_chunk_close_the_connection(client: EngineClient) -> None:
    stream = STREAM_HEAD + chunk(b"x") + LAST_CHUNK + b"HTTP/1.1 200 OK\r\n"
    async with scripted_engine(replies(stream)) as engine:
        assert await answer(client, engine.address) == b"x"
        assert client.num_idle == 0


async def test_bytes_that_nobody_asked_for_close_an_idle_connection(client: EngineClient) -> None:
    async def chatty(peer: Peer) -> None:
        await peer.request()
        await peer.send(json_answer(b"{}"), json_answer(b"{}"), pause_s=0.05)
        await peer.until_closed()

    async with scripted_engine(chatty) as engine:
        await answer(client, engine.address)
        await eventually(lambda: client.num_open == 0)


async def test_a_late_abort_does_not_hit_the_next_user(client: EngineClient) -> None:
    async with scripted_engine(replies(json_answer(b"1"), json_answer(b"2"))) as engine:
        first = await ask(client, engine.address)
        await first.head(timeout_s=TIMEOUT_S)
        await first.collect(100, timeout_s=TIMEOUT_S)
        second = await ask(client, engine.address)
        first.abort()
        await second.head(timeout_s=TIMEOUT_S)
        assert await second.collect(100, timeout_s=TIMEOUT_S) == b"2"
        assert client.connections_opened == {engine.address: 1}


async def test_a_failed_connect_names_the_address(client: EngineClient) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = Address(*free.getsockname())
        with pytest.raises(ConnectError, match=f"127.0.0.1:{address.port}") as caught:
            await client.connect(address, timeout_s=TIMEOUT_S)
    assert caught.value.accepted is False


async def test_a_connect_that_hangs_ends_at_its_timeout(client: EngineClient) -> None:
    # A listener whose accept queue is full leaves the next connect unanswered.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = Address(*full.getsockname())
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex((address.host, address.port))
        with pytest.raises(ConnectError, match=r"within 0\.1 s"):
            await client.connect(address, timeout_s=0.1)
        for filler in fillers:
            filler.close()
    assert client.num_open == 0


async def test_many_legs_at_once_open_one_connection_each(client: EngineClient) -> None:
    async with scripted_engine(replies(json_answer(b"{}"))) as engine:
        for _ in range(3):
            await asyncio.gather(*(answer(client, engine.address) for _ in range(20)))
        assert client.connections_opened == {engine.address: 20}
        assert client.num_idle == 20


async def test_close_leaves_nothing_open_and_fails_whoever_waits(client: EngineClient) -> None:
    async def silent(peer: Peer) -> None:
        await peer.until_closed()

    async with scripted_engine(silent) as engine:
        leg = await ask(client, engine.address)
        waiting = asyncio.ensure_future(leg.head(timeout_s=TIMEOUT_S))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(Exception, match="The engine"):
            await waiting
    assert client.num_open == 0


async def test_a_request_that_met_a_closing_connection_was_not_accepted(
    client: EngineClient,
) -> None:
    async with scripted_engine(replies(json_answer(b"{}"))) as engine:
        await answer(client, engine.address)
        leg = await ask(client, engine.address)
        # The engine has closed the idle connection in this very moment.
        [connection] = client._open
        connection.abort()
        with pytest.raises(ConnectionLostError) as lost:
            await leg.head(timeout_s=TIMEOUT_S)
        assert leg.bytes_accepted == 0
        assert not lost.value.accepted
