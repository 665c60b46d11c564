"""Random streams through a leg and its relay: each event once, whole, in order, edited if marked.

No sockets: the transport is a fake, so thousands of cuts take seconds.
"""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest
from typing_extensions import override

from pdcluster_proxy.core.framing import ChunkDecoder
from pdcluster_proxy.core.ports import EDIT_MARKS, Address, RelayOutcome
from pdcluster_proxy.wire.engine_leg import EngineLeg
from pdcluster_proxy.wire.engine_socket import EngineSocket
from pdcluster_proxy.wire.leg_relay import LegRelay

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
DONE = b"data: [DONE]\n\n"


class Transport(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_paused = False
        self.is_aborted = False

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    @override
    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    @override
    def is_closing(self) -> bool:
        return self.is_aborted

    @override
    def get_write_buffer_size(self) -> int:
        return 0

    @override
    def pause_reading(self) -> None:
        assert not self.is_paused, "paused twice"
        self.is_paused = True

    @override
    def resume_reading(self) -> None:
        self.is_paused = False

    @override
    def abort(self) -> None:
        self.is_aborted = True


class Rig:
    """One connection to a fake engine."""

    def __init__(self) -> None:
        self.idle: list[EngineSocket] = []
        self.closed: list[EngineSocket] = []
        self.transport = Transport()
        self.socket = EngineSocket(
            Address("engine", 80),
            on_unsent=EngineSocket.flush,
            on_idle=self.idle.append,
            on_closed=self.closed.append,
        )
        self.socket.connection_made(self.transport)

    def ask(self) -> EngineLeg:
        leg = self.socket.begin()
        leg.send(b"POST / HTTP/1.1\r\n\r\n", b"")
        return leg


def mark(event: bytes) -> bytes:
    return b": edited\n" + event


def random_events(rng: random.Random) -> list[bytes]:
    events = []
    for number in range(rng.randrange(1, 25)):
        end = rng.choice([b"\n\n", b"\n\n", b"\r\n\r\n"])
        text = b'{"id": %d, "text": "%b"}' % (number, b"x" * rng.randrange(0, 300))
        if rng.random() < 0.2:
            text = b'{"id": %d, %b: {"a": [1, 2, "\\n\\n"]}}' % (
                number,
                rng.choice([b'"usage"', b'"kv_transfer_params"', b'"error"']),
            )
        events.append(b"data: " + text + end)
    return events


def random_cuts(rng: random.Random, wire: bytes) -> list[bytes]:
    largest = rng.choice([12, 300, 5000])
    parts = []
    while wire:
        size = rng.randrange(1, largest)
        parts.append(wire[:size])
        wire = wire[size:]
    return parts


def framed(rng: random.Random, body: bytes, events: list[bytes]) -> tuple[bytes, bool]:
    """The whole response, and whether it needs the connection's end."""
    kind = rng.choice(["events", "pieces", "length", "close"])
    if kind == "length":
        return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body, False
    if kind == "close":
        return HEAD + b"\r\n" + body, True
    chunks = events if kind == "events" else random_cuts(rng, body)
    wire = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return HEAD + b"transfer-encoding: chunked\r\n\r\n" + wire + b"0\r\n\r\n", False


@pytest.mark.parametrize("seed", range(40))
async def test_random_streams_come_out_whole_and_free_the_connection(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        rig = Rig()
        for _ in range(rng.randrange(1, 4)):  # Several streams on one connection.
            if rig.transport.is_aborted or rig.closed:
                break
            rig.idle.clear()
            await one_stream(rng, rig)


async def one_stream(rng: random.Random, rig: Rig) -> None:
    events = [*random_events(rng), DONE]
    body = b"".join(events)
    wire, ends_with_connection = framed(rng, body, events)
    frames = rng.random() < 0.8
    out: list[bytes] = []
    leg = rig.ask()
    relay = None
    starts_after = rng.randrange(0, 6)
    head = asyncio.ensure_future(leg.head(timeout_s=60))
    await asyncio.sleep(0)
    parts = random_cuts(rng, wire)
    for number, part in enumerate(parts):
        if relay is not None and number == len(parts) - 1 and rng.random() < 0.3:
            relay.pause()  # And never resumed: the client is slow to the end.
        rig.socket.data_received(part)
        if relay is None and leg._head is not None and number >= starts_after:
            await head
            relay = leg.prepare_relay(
                out.append, editor=mark, frames_output=frames, idle_timeout_s=60
            )
            relay.start()
        if relay is not None and number < len(parts) - 1 and rng.random() < 0.1:
            relay.pause()
            relay.resume()
    await head
    if ends_with_connection:
        rig.transport.is_aborted = True
        rig.socket.connection_lost(None)
    if relay is None:
        relay = leg.prepare_relay(out.append, editor=mark, frames_output=frames, idle_timeout_s=60)
        relay.start()
    end = await asyncio.wait_for(relay.done, 1)

    expected = [mark(e) if any(m in e for m in EDIT_MARKS) else e for e in events]
    got = b"".join(out)
    if frames:
        decoder = ChunkDecoder()
        got = decoder.feed(got + b"0\r\n\r\n")
        assert decoder.is_complete
    assert got == b"".join(expected)
    assert end.outcome is RelayOutcome.COMPLETE
    assert end.num_bytes == sum(map(len, out))
    assert ends_with_connection or not rig.transport.is_paused
    # Given back exactly once, unless the body ended with the connection.
    assert (rig.idle == [rig.socket]) != ends_with_connection


@pytest.mark.parametrize("seed", range(20))
async def test_random_streams_that_break_off_give_out_whole_events_only(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        rig = Rig()
        events = random_events(rng)
        wire, _ = framed(rng, b"".join(events), events)
        wire = wire[: rng.randrange(len(HEAD) + 40, len(wire) + 1) - 1]
        out: list[bytes] = []
        leg = rig.ask()
        head = asyncio.ensure_future(leg.head(timeout_s=60))
        await asyncio.sleep(0)
        for part in random_cuts(rng, wire):
            rig.socket.data_received(part)
        await head
        relay = leg.prepare_relay(out.append, editor=mark, frames_output=False, idle_timeout_s=60)
        relay.start()
        rig.transport.is_aborted = True
        rig.socket.connection_lost(ConnectionResetError("gone"))
        end = await asyncio.wait_for(relay.done, 1)
        assert end.outcome in {RelayOutcome.UPSTREAM_LOST, RelayOutcome.UNTERMINATED}
        expected = [mark(e) if any(m in e for m in EDIT_MARKS) else e for e in events]
        got = b"".join(out)
        assert any(got == b"".join(expected[:n]) for n in range(len(expected) + 1))
        assert rig.idle == []


@pytest.mark.parametrize("seed", range(20))
async def test_random_bodies_are_collected_as_sent(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        rig = Rig()
        body = rng.randbytes(rng.randrange(0, 3000))
        wire, ends_with_connection = framed(rng, body, [body] if body else [])
        if rng.random() < 0.3:
            wire = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + wire
        leg = rig.ask()

        async def receive(leg: EngineLeg = leg) -> bytes:
            await leg.head(timeout_s=60)
            return await leg.collect(5000, timeout_s=60)

        received = asyncio.ensure_future(receive())
        for part in random_cuts(rng, wire):
            rig.socket.data_received(part)
            if rng.random() < 0.5:
                await asyncio.sleep(0)
        if ends_with_connection:
            rig.socket.connection_lost(None)
        assert await asyncio.wait_for(received, 1) == body
        assert (rig.idle == [rig.socket]) != ends_with_connection
        leg.abort()
        assert not rig.transport.is_aborted


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_leg_that_is_over_is_freed_without_the_collector(is_stream: bool) -> None:
    stream = HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"e\r\n" + DONE + b"\r\n0\r\n\r\n"
    rig = Rig()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            leg = rig.ask()
            rig.socket.data_received(stream)
            await leg.head(timeout_s=60)
            if is_stream:
                relay = leg.prepare_relay(
                    lambda _: None,
                    editor=mark,
                    frames_output=True,
                    idle_timeout_s=60,
                )
                relay.start()
                await relay.done
                del relay
            else:
                await leg.collect(100, timeout_s=60)
            del leg
        await asyncio.sleep(0)
        left = [o for o in gc.get_objects() if isinstance(o, EngineLeg | LegRelay)]
        assert left == []
    finally:
        gc.enable()
