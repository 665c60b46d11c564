"""An engine whose every byte the test decides: a TCP server run by a script per connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from pdcluster_proxy.core.ports import Address


class Peer:
    """One connection as the engine sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def request(self) -> tuple[bytes, bytes]:
        """Read one request: (head, body)."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return head, await self._reader.readexactly(length)

    async def send(self, *parts: bytes, pause_s: float = 0.0) -> None:
        """Write parts, each in its own segment where a pause is given."""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            if pause_s:
                await asyncio.sleep(pause_s)

    async def until_closed(self) -> bytes:
        """Return what the proxy still sends until it closes its side."""
        rest = b""
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(65536):
                rest += data
        return rest

    def close(self) -> None:
        """Close in order."""
        self._writer.close()

    def reset(self) -> None:
        """Close with a reset."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class ScriptedEngine:
    """Where it listens, and what happened."""

    address: Address
    num_connections: int = 0
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)


@contextlib.asynccontextmanager
async def scripted_engine(script: Script) -> AsyncIterator[ScriptedEngine]:
    """Serve each connection by ``script`` until the block ends."""
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        engine.num_connections += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await script(Peer(reader, writer))
        except asyncio.CancelledError:
            pass
        finally:
            tasks.discard(task)
            writer.close()
            writers.append(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    engine = ScriptedEngine(Address(host, port))
    try:
        yield engine
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await server.wait_closed()


def replies(*answers: bytes) -> Script:
    """Answer each request of a connection with the next of ``answers``, the last one for ever."""

    async def script(peer: Peer) -> None:
        index = 0
        while True:
            await peer.request()
            await peer.send(answers[min(index, len(answers) - 1)])
            index += 1

    return script


def json_answer(body: bytes, *, status: int = 200) -> bytes:
    """A response with a length."""
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def chunk(payload: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


LAST_CHUNK = b"0\r\n\r\n"


async def eventually(condition: Callable[[], bool], *, within_s: float = 5.0) -> None:
    """Wait until ``condition`` holds; fail where it does not in time."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 (the condition may be on anything)
            await asyncio.sleep(0.005)
