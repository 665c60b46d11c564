"""Clients that stop reading: they cost their own answer, never a place, a leg or a connection."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from typing import cast

import pytest
from tests.support.exchange_rig import (
    DONE,
    Rig,
    config,
    decode_answer,
    prefill_answer,
    request_bytes,
    rig,
    token_event,
)
from tests.support.scripted_engine import (
    LAST_CHUNK,
    STREAM_HEAD,
    Peer,
    Script,
    chunk,
    eventually,
    replies,
)

from pdcluster_api.proxy_config import ProxyConfig, TimeoutsConfig
from pdcluster_proxy.core.messages import OutcomeKind

P_OK = replies(prefill_answer())
EVENT = chunk(token_event("x" * 1000))
SMALL_BUFFER = 4096
"""Bytes that the kernel keeps for a client that does not read; the transport's mark is 64 KiB."""


async def flood(peer: Peer) -> None:
    """Stream for ever."""
    await peer.request()
    await peer.send(STREAM_HEAD)
    while True:
        await peer.send(EVENT * 20)


async def burst(peer: Peer) -> None:
    """Send a whole stream that ends just above the transport's mark."""
    await peer.request()
    await peer.send(STREAM_HEAD + EVENT * 90 + chunk(DONE) + LAST_CHUNK)
    await peer.until_closed()


def bounded(*, request_s: float) -> ProxyConfig:
    return config(
        timeouts=TimeoutsConfig(
            connect_seconds=1.0,
            request_seconds=request_s,
            first_byte_seconds=min(20.0, request_s),
            idle_seconds=min(20.0, request_s),
        )
    )


class DeafClient:
    """A client that sends requests and reads nothing."""

    def __init__(self, made: Rig, connection: socket.socket) -> None:
        self._made = made
        self.connection = connection

    async def ask(self, **fields: object) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.connection, request_bytes(**fields))

    @property
    def is_cut(self) -> bool:
        return self._made.edge.num_connections == 0


async def deaf_client(made: Rig, *, flush_s: float = 0.2) -> DeafClient:
    """Connect with buffers so small that not reading is noticed at once."""
    made.worker.bounds = dataclasses.replace(made.worker.bounds, flush_s=flush_s)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (made.edge.host, made.edge.port))
    await eventually(lambda: made.edge.num_connections == 1)
    (protocol,) = made.edge.state.connections
    transport = cast("asyncio.Transport", protocol.transport)  # type: ignore[union-attr]
    server_side = transport.get_extra_info("socket")
    server_side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
    return DeafClient(made, connection)


def is_behind(made: Rig) -> bool:
    """The proxy has noticed that its client does not read."""
    return any(c.flow.write_paused for c in made.edge.state.connections)  # type: ignore[union-attr]


async def test_past_the_deadline_a_client_that_does_not_read_keeps_no_place() -> None:
    async with rig([P_OK], [flood], bounded(request_s=1.0)) as made:
        client = await deaf_client(made)
        await client.ask(stream=True)
        await eventually(lambda: is_behind(made))
        assert 1 == made.worker.gate.running
        await eventually(lambda: made.worker.gate.running == 0)
        await eventually(lambda: client.is_cut)
        made.assert_nothing_is_left()
        # Our deadline and our client are no fault of the engine.
        assert [] == [o for o in made.companion.outcomes if o.kind is not OutcomeKind.SUCCEEDED]
        client.connection.close()


async def test_a_client_that_does_not_read_the_end_of_its_stream_keeps_no_place() -> None:
    async with rig([P_OK], [burst], bounded(request_s=60.0)) as made:
        client = await deaf_client(made)
        await client.ask(stream=True)
        await eventually(lambda: is_behind(made))
        await eventually(lambda: made.worker.gate.running == 0)
        await eventually(lambda: client.is_cut)
        made.assert_nothing_is_left()
        client.connection.close()


async def test_a_client_that_does_not_read_the_error_at_the_end_is_cut_soon() -> None:
    async def break_off(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD + EVENT * 30)  # Below the mark: nobody waits for the client.
        await eventually(lambda: made.companion.lease_steps[-1:] == ["ended"])
        peer.reset()

    async with rig([P_OK], [break_off], bounded(request_s=60.0)) as made:
        client = await deaf_client(made)
        await client.ask(stream=True)
        await eventually(lambda: made.companion.lease_steps[-1:] == ["ended"])
        await eventually(lambda: made.worker.gate.running == 0)
        await eventually(lambda: client.is_cut, within_s=10.0)
        made.assert_nothing_is_left()
        client.connection.close()


async def test_a_graceful_stop_does_not_wait_for_a_client_that_does_not_read() -> None:
    async with rig([P_OK], [flood], bounded(request_s=60.0)) as made:
        client = await deaf_client(made)
        await client.ask(stream=True)
        await eventually(lambda: is_behind(made))
        (task,) = made.edge.state.tasks
        task.cancel()  # What the server does when its grace is over.
        await eventually(task.done)
        assert task.cancelled() or task.exception() is None
        await eventually(lambda: client.is_cut)
        made.assert_nothing_is_left()
        client.connection.close()


@pytest.mark.parametrize(
    ("second", "stream"), [(flood, True), (replies(decode_answer("b")), False)]
)
async def test_a_client_that_asks_again_without_reading_keeps_no_place(
    second: Script, stream: bool
) -> None:
    """Its earlier answer waits in the connection, and the next one would have to wait behind it."""
    first = decode_answer("a" * 200_000)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(first)
        await second(peer)

    async with rig([P_OK], [script], bounded(request_s=60.0)) as made:
        client = await deaf_client(made)
        await client.ask()
        await eventually(lambda: is_behind(made) and made.worker.gate.running == 0)
        await client.ask(stream=stream)
        await eventually(lambda: made.companion.lease_steps.count("granted") == 2)
        await eventually(lambda: made.worker.gate.running == 0)
        await eventually(lambda: client.is_cut)
        made.assert_nothing_is_left()
        client.connection.close()
