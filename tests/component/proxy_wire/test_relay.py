"""Relayed streams, through our protocol class and as ordinary ASGI messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send
from tests.support.edge import Edge, edge
from tests.support.scripted_engine import (
    LAST_CHUNK,
    STREAM_HEAD,
    Peer,
    Script,
    ScriptedEngine,
    chunk,
    eventually,
    replies,
    scripted_engine,
)

from pdcluster_proxy.core.ports import RelayEnd, RelayOutcome
from pdcluster_proxy.wire.engine_client import EngineClient, request_head
from pdcluster_proxy.wire.relay import (
    answer,
    end_stream,
    relay_stream,
    take_body,
    watch_client,
)

EVENT = b'data: {"id": 1}\n\n'
MARKED = b'data: {"usage": 1}\n\n'
EDITED = b": edited\n" + MARKED
DONE = b"data: [DONE]\n\n"
WHOLE = STREAM_HEAD + chunk(EVENT) + chunk(MARKED) + chunk(DONE) + LAST_CHUNK
ERROR = b'data: {"error": {}}\n\n'
TIMEOUT_S = 5.0


def edit(event: bytes) -> bytes:
    return event.replace(b"data: {", b": edited\ndata: {") if b"usage" in event else event


class Proxy:
    """The smallest endpoint that relays, with a memory."""

    def __init__(self, client: EngineClient, engine: ScriptedEngine) -> None:
        self.client = client
        self.engine = engine
        self.ends: list[RelayEnd] = []
        self.idle_timeout_s = TIMEOUT_S
        self.peeks = False
        self.hides_extension = False
        self.is_over = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if self.hides_extension:
            scope["extensions"] = {}
        leg = await self.client.connect(self.engine.address, timeout_s=TIMEOUT_S)
        leg.send(request_head("POST", "/", self.engine.address, [], 0), b"")
        head = await leg.head(timeout_s=TIMEOUT_S)
        if self.peeks:
            await leg.first_event(timeout_s=TIMEOUT_S, limit=1 << 16)
        try:
            end = await relay_stream(
                scope,
                receive,
                send,
                leg,
                status=head.status,
                headers=[(b"content-type", b"text/event-stream")],
                editor=edit,
                idle_timeout_s=self.idle_timeout_s,
                flush_s=TIMEOUT_S,
            )
            self.ends.append(end)
            if end.outcome is RelayOutcome.COMPLETE:
                await end_stream(scope, send, flush_s=TIMEOUT_S)
            elif end.outcome is not RelayOutcome.CLIENT_GONE:
                await end_stream(scope, send, tail=ERROR, close=True, flush_s=TIMEOUT_S)
        finally:
            self.is_over.set()


@asynccontextmanager
async def relaying(client: EngineClient, script: Script) -> AsyncIterator[tuple[Edge, Proxy]]:
    async with scripted_engine(script) as engine:
        proxy = Proxy(client, engine)
        async with edge(proxy) as server:
            yield server, proxy


ASK = b"POST / HTTP/1.1\r\nHost: a\r\n\r\n"
ASK_CLOSE = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
ASK_1_0 = b"POST / HTTP/1.0\r\n\r\n"


def payload(answer: bytes) -> tuple[bytes, bool]:
    """The body of a chunked answer, and whether it came to its end."""
    _, _, wire = answer.partition(b"\r\n\r\n")
    out = b""
    while wire:
        size, _, wire = wire.partition(b"\r\n")
        if int(size, 16) == 0:
            return out, wire == b"\r\n"
        out, wire = out + wire[: int(size, 16)], wire[int(size, 16) + 2 :]
    return out, False


@pytest.mark.parametrize("hides_extension", [False, True], ids=["extension", "messages"])
@pytest.mark.parametrize("peeks", [False, True], ids=["no peek", "peek"])
async def test_a_stream_arrives_whole_and_edited(
    client: EngineClient,
    hides_extension: bool,
    peeks: bool,
) -> None:
    async with relaying(client, replies(WHOLE)) as (server, proxy):
        proxy.hides_extension, proxy.peeks = hides_extension, peeks
        answer = await server.exchange(ASK_CLOSE)
        assert payload(answer) == (EVENT + EDITED + DONE, True)
        assert [end.outcome for end in proxy.ends] == [RelayOutcome.COMPLETE]
        assert proxy.ends[0].num_bytes > 0
        assert proxy.ends[0].first_at is not None
        assert client.num_idle == 1


async def test_an_http_1_0_client_gets_bare_events(client: EngineClient) -> None:
    async with relaying(client, replies(WHOLE)) as (server, _):
        answer = await server.exchange(ASK_1_0)
        assert answer.endswith(b"\r\n\r\n" + EVENT + EDITED + DONE)


async def test_both_connections_live_on_after_a_whole_stream(client: EngineClient) -> None:
    async with relaying(client, replies(WHOLE)) as (server, proxy):
        answer = await server.exchange(ASK, ASK, ASK_CLOSE)
        assert answer.count(DONE) == 3
        assert client.connections_opened == {proxy.engine.address: 1}


@pytest.mark.parametrize(
    ("rest", "outcome"),
    [
        (LAST_CHUNK, RelayOutcome.UNTERMINATED),
        (b"", RelayOutcome.UPSTREAM_LOST),
        (chunk(EVENT)[:9], RelayOutcome.UPSTREAM_LOST),
        (b"zz\r\n", RelayOutcome.UPSTREAM_LOST),
        (chunk(DONE), RelayOutcome.UPSTREAM_LOST),
    ],
    ids=["no terminator", "no last chunk", "half an event", "bad chunk", "no last chunk after all"],
)
@pytest.mark.parametrize("hides_extension", [False, True], ids=["extension", "messages"])
async def test_a_truncated_stream_is_visibly_truncated(
    client: EngineClient,
    rest: bytes,
    outcome: RelayOutcome,
    hides_extension: bool,
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD, chunk(EVENT), rest, pause_s=0.01)

    async with relaying(client, script) as (server, proxy):
        proxy.hides_extension = hides_extension
        events, is_whole = payload(await server.exchange(ASK_CLOSE))
        assert [outcome] == [end.outcome for end in proxy.ends]
        assert events.startswith(EVENT)
        assert events.endswith(ERROR)
        # Without our server's hold on the connection only the error event tells.
        assert is_whole is hides_extension


async def test_a_reset_of_the_engine_ends_the_stream(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD, chunk(EVENT), pause_s=0.02)
        peer.reset()

    async with relaying(client, script) as (server, proxy):
        events, is_whole = payload(await server.exchange(ASK))
        assert (events, is_whole) == (EVENT + ERROR, False)
        assert [end.outcome for end in proxy.ends] == [RelayOutcome.UPSTREAM_LOST]


async def test_an_engine_that_falls_silent_ends_the_stream(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD, chunk(EVENT))
        await peer.until_closed()

    async with relaying(client, script) as (server, proxy):
        proxy.idle_timeout_s = 0.05
        events, is_whole = payload(await server.exchange(ASK))
        assert (events, is_whole) == (EVENT + ERROR, False)
        assert [end.outcome for end in proxy.ends] == [RelayOutcome.UPSTREAM_IDLE]
        await eventually(lambda: client.num_open == 0)


@pytest.mark.parametrize("framing", [b"content-length: %d\r\n" % len(EVENT + DONE), b""])
async def test_a_stream_without_chunks_is_relayed(client: EngineClient, framing: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + framing + b"\r\n"
        await peer.send(head, EVENT, DONE, pause_s=0.01)

    async with relaying(client, script) as (server, _):
        assert payload(await server.exchange(ASK_CLOSE)) == (EVENT + DONE, True)


@pytest.mark.parametrize("hides_extension", [False, True], ids=["extension", "messages"])
async def test_a_client_that_leaves_an_idle_stream_closes_the_engines_connection(
    client: EngineClient,
    hides_extension: bool,
) -> None:
    closed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD, chunk(EVENT))
        await peer.until_closed()
        closed.set()

    async with relaying(client, script) as (server, proxy):
        proxy.hides_extension = hides_extension
        reader, writer = await server.open()
        writer.write(ASK)
        await reader.readuntil(EVENT)
        writer.close()
        async with asyncio.timeout(TIMEOUT_S):
            await closed.wait()
            await proxy.is_over.wait()
        assert [end.outcome for end in proxy.ends] == [RelayOutcome.CLIENT_GONE]
        await eventually(lambda: server.num_tasks == 0 and client.num_open == 0)


@pytest.mark.parametrize("hides_extension", [False, True], ids=["extension", "messages"])
async def test_a_client_that_stops_reading_stops_the_engine(
    client: EngineClient,
    hides_extension: bool,
) -> None:
    sent = 0
    event = b"data: " + b"x" * 10_000 + b"\n\n"
    num_events = 3000

    async def flood(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(STREAM_HEAD)
        for _ in range(num_events):
            await peer.send(chunk(event))
            sent += 1
        await peer.send(chunk(DONE) + LAST_CHUNK)

    async with relaying(client, flood) as (server, proxy):
        proxy.hides_extension = hides_extension
        proxy.idle_timeout_s = 60.0
        reader, writer = await server.open()
        writer.write(ASK_CLOSE)
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < num_events
        async with asyncio.timeout(60):
            events, is_whole = payload(await reader.read())
        assert (num_events * len(event) + len(DONE), True) == (len(events), is_whole)
        assert [end.outcome for end in proxy.ends] == [RelayOutcome.COMPLETE]
        writer.close()


async def test_a_connection_that_ended_while_paused_is_pooled_reading(client: EngineClient) -> None:
    # The last write of a stream may meet a slow client: the pooled connection must still read.
    event = b"data: " + b"x" * 8_000_000 + b"\n\n"
    big = STREAM_HEAD + chunk(event)[:-1]

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(big, b"\n" + chunk(DONE) + LAST_CHUNK)
        await peer.request()
        await peer.send(WHOLE)

    async with relaying(client, script) as (server, proxy):
        reader, writer = await server.open()
        writer.write(ASK_CLOSE)
        await eventually(lambda: len(proxy.ends) == 1)
        second = await server.exchange(ASK_CLOSE)
        assert payload(second) == (EVENT + EDITED + DONE, True)
        assert client.connections_opened == {proxy.engine.address: 1}
        async with asyncio.timeout(20):
            events, is_whole = payload(await reader.read())
        assert (len(event) + len(DONE), True) == (len(events), is_whole)
        writer.close()


async def test_cancelling_a_relay_closes_the_engines_connection(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD, chunk(EVENT))
        await peer.until_closed()

    async with relaying(client, script) as (server, proxy):
        reader, writer = await server.open()
        writer.write(ASK)
        await reader.readuntil(EVENT)
        (task,) = server.state.tasks
        task.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            await proxy.is_over.wait()
        await eventually(lambda: client.num_open == 0)
        writer.close()


async def test_only_connections_of_the_client_can_be_relayed() -> None:
    async def nothing(*_args: object) -> None:
        return None

    with pytest.raises(TypeError, match="EngineClient"):
        await relay_stream(
            {},
            nothing,  # type: ignore[arg-type]  # Never called.
            nothing,
            object(),  # type: ignore[arg-type]  # The point of the test.
            status=200,
            headers=[],
            editor=edit,
            idle_timeout_s=1,
            flush_s=TIMEOUT_S,
        )


# Watching a client while nothing is relayed.


@pytest.mark.parametrize("hides_extension", [False, True], ids=["extension", "messages"])
async def test_a_client_that_leaves_is_noticed_at_once(hides_extension: bool) -> None:
    gone = asyncio.Event()
    waiting = asyncio.Event()
    order: list[str] = []
    seen: list[bool] = []

    async def app(scope: Scope, receive: Receive, _send: Send) -> None:
        await receive()
        if hides_extension:
            scope["extensions"] = {}
        watch = watch_client(scope, receive)
        watch.on_gone(lambda: order.append("first"))
        watch.on_gone(gone.set)
        seen.append(watch.gone)
        waiting.set()
        await gone.wait()
        seen.append(watch.gone)
        watch.on_gone(lambda: order.append("late"))
        watch.close()
        watch.close()

    async with edge(app) as server:
        _, writer = await server.open()
        writer.write(ASK)
        async with asyncio.timeout(TIMEOUT_S):
            await waiting.wait()
            writer.close()
            await gone.wait()
        await eventually(lambda: server.num_tasks == 0)
    assert order == ["first", "late"]
    assert seen == [False, True]


@pytest.mark.parametrize("hides_extension", [False, True], ids=["extension", "messages"])
async def test_a_closed_watch_is_silent(hides_extension: bool) -> None:
    called: list[str] = []
    is_over = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if hides_extension:
            scope["extensions"] = {}
        watch = watch_client(scope, receive)
        watch.on_gone(lambda: called.append("gone"))
        watch.close()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        is_over.set()

    async with edge(app) as server:
        reader, writer = await server.open()
        writer.write(ASK)
        await reader.readuntil(b"x\r\n")
        writer.close()
        async with asyncio.timeout(TIMEOUT_S):
            await is_over.wait()
        await eventually(lambda: server.num_tasks == 0)
    assert called == []


# Whole answers.


@pytest.mark.parametrize("hides_extension", [False, True], ids=["extension", "messages"])
@pytest.mark.parametrize("ask", [ASK_CLOSE, ASK_1_0], ids=["1.1", "1.0"])
async def test_a_whole_answer_arrives(
    hides_extension: bool,
    ask: bytes,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if hides_extension:
            scope["extensions"] = {}
        headers = [(b"content-length", b"3"), (b"x-a", b"1")]
        await answer(scope, send, status=201, headers=headers, body=b"abc", flush_s=TIMEOUT_S)

    async with edge(app) as server:
        head, _, body = (await server.exchange(ask)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 201 Created\r\n")
    assert b"\r\nx-a: 1" in head
    assert b"\r\nconnection: close" in head
    assert body == b"abc"


async def test_whole_answers_keep_the_connection_and_their_order() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        headers = [(b"content-length", b"2")]
        await answer(
            scope, send, status=200, headers=headers, body=scope["path"].encode(), flush_s=TIMEOUT_S
        )

    async with edge(app) as server:
        one = b"POST /1 HTTP/1.1\r\nHost: a\r\n\r\n"
        two = b"POST /2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        pipelined = await server.exchange(one + one + two)
        in_turn = await server.exchange(one, one, two)
    for got in (pipelined, in_turn):
        assert [part[-2:] for part in got.split(b"HTTP/1.1 200 OK")[1:]] == [b"/1", b"/1", b"/2"]


async def test_an_answer_with_a_line_end_in_a_field_is_not_sent() -> None:
    failures: list[BaseException] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        fields = [(b"content-length", b"0"), (b"x-a", b"1\r\nx-b: 2")]
        try:
            await answer(scope, send, status=200, headers=fields, body=b"", flush_s=TIMEOUT_S)
        except ValueError as error:
            failures.append(error)
            await answer(scope, send, status=500, headers=fields[:1], body=b"", flush_s=TIMEOUT_S)

    async with edge(app) as server:
        got = await server.exchange(ASK_CLOSE)
    assert got.startswith(b"HTTP/1.1 500 ")
    assert len(failures) == 1


async def test_an_answer_to_a_client_that_left_goes_nowhere() -> None:
    gone = asyncio.Event()
    is_over = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        watch_client(scope, receive).on_gone(gone.set)
        await gone.wait()
        await answer(
            scope,
            send,
            status=200,
            headers=[(b"content-length", b"0")],
            body=b"",
            flush_s=TIMEOUT_S,
        )
        is_over.set()

    async with edge(app) as server:
        _, writer = await server.open()
        writer.write(ASK)
        await eventually(lambda: server.num_tasks == 1)
        writer.close()
        async with asyncio.timeout(TIMEOUT_S):
            await is_over.wait()
        await eventually(lambda: server.num_tasks == 0)


# Request bodies.


def post(body: bytes, *fields: bytes) -> bytes:
    head = [b"POST / HTTP/1.1", b"Host: a", b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


async def test_a_body_that_is_here_is_taken_at_once_and_only_once() -> None:
    taken: list[bytes | None] = []
    steps: list[str] = []
    is_over = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        taken.append(take_body(scope))
        watch = watch_client(scope, receive)
        left = asyncio.Event()
        watch.on_gone(left.set)
        following = asyncio.ensure_future(receive())
        await asyncio.sleep(0.01)
        assert not following.done(), "nothing follows a body but the client's departure"
        steps.append("taken")
        await left.wait()
        taken.append(take_body(scope))
        taken.append((await following)["type"].encode())
        is_over.set()

    async with edge(app) as server:
        _, writer = await server.open()
        writer.write(post(b"x" * 20_000))
        await eventually(lambda: steps == ["taken"])
        writer.close()
        async with asyncio.timeout(TIMEOUT_S):
            await is_over.wait()
        await eventually(lambda: server.num_tasks == 0)
    assert taken == [b"x" * 20_000, None, b"http.disconnect"]


@pytest.mark.parametrize(
    "parts",
    [
        (post(b"abc", b"Expect: 100-continue")[:-3], b"abc"),
        (post(b"abc")[:-1], b"c"),
        (post(b"x" * 300_000),),
    ],
    ids=["100-continue", "half", "large"],
)
async def test_a_body_that_is_not_here_yet_is_received(parts: tuple[bytes, ...]) -> None:
    taken: list[bytes | None] = []
    received: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        taken.append(take_body(scope))
        while True:
            message = await receive()
            received.append(message["body"])
            if not message["more_body"]:
                break
        await answer(
            scope,
            send,
            status=200,
            headers=[(b"content-length", b"0")],
            body=b"",
            flush_s=TIMEOUT_S,
        )

    async with edge(app) as server:
        reader, writer = await server.open()
        for part in parts:
            writer.write(part)
            await eventually(lambda: bool(taken))
        async with asyncio.timeout(TIMEOUT_S):
            await reader.readuntil(b"HTTP/1.1 200 OK")
        writer.close()
    assert taken == [None]
    assert b"".join(received) == b"".join(parts).partition(b"\r\n\r\n")[2]


# Servers that are not ours.


class Foreign:
    """An ASGI server of another kind: messages only, and it may take its time or break off."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.breaks_after: int | None = None
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, object]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, object]) -> None:
        await self.may_take.wait()
        if self.breaks_after is not None and len(self.sent) >= self.breaks_after:
            raise OSError("the client is gone")
        body = message.get("body", b"")
        assert isinstance(body, bytes)
        self.sent.append(body)


async def relayed(client: EngineClient, engine: ScriptedEngine, server: Foreign) -> RelayEnd:
    leg = await client.connect(engine.address, timeout_s=TIMEOUT_S)
    leg.send(request_head("POST", "/", engine.address, [], 0), b"")
    await leg.head(timeout_s=TIMEOUT_S)
    return await relay_stream(
        {"type": "http"},
        server.receive,
        server.send,
        leg,
        status=200,
        headers=[],
        editor=edit,
        idle_timeout_s=60,
        flush_s=TIMEOUT_S,
    )


async def test_a_foreign_server_gets_bare_payload(client: EngineClient) -> None:
    server = Foreign()
    async with scripted_engine(replies(WHOLE)) as engine:
        end = await relayed(client, engine, server)
    assert b"".join(server.sent) == EVENT + EDITED + DONE
    assert end.outcome is RelayOutcome.COMPLETE


async def test_a_foreign_server_that_breaks_off_is_a_client_that_left(client: EngineClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD, chunk(EVENT), chunk(EVENT), pause_s=0.01)
        await peer.until_closed()

    server = Foreign()
    server.breaks_after = 2  # The head and the first event.
    async with scripted_engine(script) as engine:
        end = await relayed(client, engine, server)
        assert end.outcome is RelayOutcome.CLIENT_GONE
        await eventually(lambda: client.num_open == 0)


async def test_a_foreign_server_that_takes_its_time_stops_the_engine(client: EngineClient) -> None:
    event = b"data: " + b"x" * 10_000 + b"\n\n"
    sent = 0

    async def flood(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(STREAM_HEAD)
        for _ in range(2000):
            await peer.send(chunk(event))
            sent += 1
        await peer.send(chunk(DONE) + LAST_CHUNK)

    server = Foreign()
    async with scripted_engine(flood) as engine:
        relaying_on = asyncio.ensure_future(relayed(client, engine, server))
        await eventually(lambda: len(server.sent) > 1)
        server.may_take.clear()
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 2000
        server.may_take.set()
        end = await asyncio.wait_for(relaying_on, 60)
    assert end.outcome is RelayOutcome.COMPLETE
    assert sum(map(len, server.sent)) == 2000 * len(event) + len(DONE)
