"""The side channel over real sockets: shaking hands, and surviving what is not a handshake."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import zmq
import zmq.asyncio

from pdcluster_lease.errors import (
    HandshakeTimeoutError,
    LocalProtocolError,
    RemoteProtocolError,
    SideChannelError,
)
from pdcluster_lease.side_channel import SideChannelAddress, SideChannelListener, handshake
from pdcluster_lease.wire import HandshakePayload, HandshakeRequest

PAYLOAD = HandshakePayload(compatibility_hash="hash", agent_metadata_bytes=b"\x80")
GOOD_REQUEST = msgspec.msgpack.encode((b"get_meta_msg", 0, 0))
NUM_MALFORMED = 100_000


def free_address() -> SideChannelAddress:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return SideChannelAddress("127.0.0.1", probe.getsockname()[1])


@asynccontextmanager
async def listening(
    at: SideChannelAddress, *, clock: float = 1000.0
) -> AsyncIterator[SideChannelListener]:
    def answer(request: HandshakeRequest) -> HandshakePayload | None:
        return PAYLOAD if (request.pp_rank, request.tp_rank) == (0, 0) else None

    listener = SideChannelListener(at, answer=answer, clock=lambda: clock)
    listener.bind()
    task = asyncio.create_task(listener.serve())
    try:
        yield listener
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listener.close()


async def test_an_address_that_is_none_is_the_peers_fault_and_no_surprise() -> None:
    at = SideChannelAddress("no such host;", 5600)
    with pytest.raises(RemoteProtocolError, match="can't be used as a side channel"):
        await handshake(at, timeout_s=0.5)


async def test_a_handshake_returns_payload_and_clock() -> None:
    at = free_address()
    async with listening(at) as listener:
        reply = await handshake(at)
        assert reply.payload == PAYLOAD
        assert reply.peer_clock == 1000.0
        assert 0 <= reply.round_trip_s
        assert listener.num_answered == 1


async def test_metadata_is_decoded_only_when_asked_for() -> None:
    at = free_address()
    async with listening(at):
        reply = await handshake(at)
        with pytest.raises(RemoteProtocolError, match="agent metadata"):
            reply.agent_metadata()


async def test_nobody_there_is_a_timeout() -> None:
    with pytest.raises(HandshakeTimeoutError, match=r"within 0\.2 s"):
        await handshake(free_address(), timeout_s=0.2)


async def test_a_rank_that_does_not_exist_is_not_even_asked() -> None:
    at = free_address()
    async with listening(at) as listener:
        with pytest.raises(LocalProtocolError):
            await handshake(at, tp_rank=1)
        assert (listener.num_answered, listener.num_rejected) == (0, 0)


async def test_a_rank_that_the_engine_denies_gets_no_reply() -> None:
    at = free_address()
    async with listening(at) as listener:
        with pytest.raises(HandshakeTimeoutError):
            await handshake(at, tp_rank=1, tp_size=2, timeout_s=0.2)
        assert listener.num_rejected == 1


async def test_a_taken_address_is_rejected_with_a_remedy() -> None:
    at = free_address()
    async with listening(at):
        other = SideChannelListener(at, answer=lambda _: PAYLOAD)
        with pytest.raises(SideChannelError, match="VLLM_NIXL_SIDE_CHANNEL_PORT"):
            other.bind()


async def test_an_address_of_another_machine_is_rejected() -> None:
    other = SideChannelListener(SideChannelAddress("192.0.2.1", 5600), answer=lambda _: PAYLOAD)
    with pytest.raises(SideChannelError, match=r"192\.0\.2\.1:5600"):
        other.bind()


def flood(at: SideChannelAddress, messages: list[list[bytes]], number: int) -> None:
    """Send a number of messages as fast as they are taken."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as attacker:
        attacker.setsockopt(zmq.LINGER, 60_000)
        attacker.connect(at.endpoint)
        for index in range(number):
            attacker.send_multipart(messages[index % len(messages)])


@pytest.mark.timeout(300)
async def test_the_listener_survives_a_hundred_thousand_malformed_messages() -> None:
    at = free_address()
    malformed = [
        [b""],
        [b"", b""],
        [b"", b"\xc1"],
        [b"", GOOD_REQUEST[:-1]],
        [b"", GOOD_REQUEST, b"more"],
        [b"x", GOOD_REQUEST],
        [b"", msgspec.msgpack.encode((b"get_meta_msg", 0))],
        [b"", msgspec.msgpack.encode((b"get_meta_msg", 7, 7))],
        [b"a", b"b", b"c", b"d"],
        [b"", b"\x91" * 500],
    ]
    async with listening(at) as listener:
        # A thread of its own, so that it need not wait for the listener's event loop.
        flooding = asyncio.create_task(asyncio.to_thread(flood, at, malformed, NUM_MALFORMED))
        while not listener.num_rejected:  # noqa: ASYNC110 - the listener counts, it has no event
            await asyncio.sleep(0.001)
        reply = await handshake(at, timeout_s=60.0)
        assert reply.payload == PAYLOAD
        await flooding
        async with asyncio.timeout(120.0):
            while listener.num_rejected < NUM_MALFORMED:  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.01)
        assert (await handshake(at, timeout_s=60.0)).payload == PAYLOAD
        assert (listener.num_answered, listener.num_rejected) == (2, NUM_MALFORMED)


async def test_an_oversized_message_closes_only_its_own_connection() -> None:
    at = free_address()
    async with listening(at):
        with zmq.asyncio.Context.instance().socket(zmq.DEALER) as attacker:
            attacker.setsockopt(zmq.LINGER, 0)
            attacker.connect(at.endpoint)
            await attacker.send_multipart([b"", b"x" * 1_000_000])
            assert (await handshake(at)).payload == PAYLOAD


async def test_a_slow_peer_delays_nobody_else() -> None:
    slow, quick = free_address(), free_address()
    async with listening(quick):
        waiting = asyncio.create_task(handshake(slow, timeout_s=2.0))
        assert (await handshake(quick, timeout_s=2.0)).payload == PAYLOAD
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize(
    "frames",
    [
        [b"only one"],
        [b"\x80", msgspec.msgpack.encode(1.0)],
        [msgspec.msgpack.encode(PAYLOAD), b"no clock"],
        [msgspec.msgpack.encode(PAYLOAD), msgspec.msgpack.encode(1.0), b"third"],
    ],
)
async def test_a_malformed_reply_is_the_peers_fault(frames: list[bytes]) -> None:
    at = free_address()
    with zmq.asyncio.Context.instance().socket(zmq.REP) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        peer.bind(at.endpoint)
        asking = asyncio.create_task(handshake(at))
        await peer.recv_multipart()
        await peer.send_multipart(frames)
        with pytest.raises(RemoteProtocolError):
            await asking
