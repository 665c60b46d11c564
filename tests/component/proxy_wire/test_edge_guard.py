"""The guard at the client's edge: what is rejected below any application code, and how."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.support.edge import SWEEP_S, edge
from tests.support.scripted_engine import eventually

from pdcluster_proxy.wire.edge_guard import EdgeLimits
from pdcluster_proxy.wire.relay import answer

OK = b"HTTP/1.1 200 OK\r\n"
HOST = b"Host: a\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the whole body, answer with its length and the path."""
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        if not message["more_body"]:
            break
    body = f"{scope['path']} {size}".encode()
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def echo_nothing(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def request(
    *fields: bytes, line: bytes = b"POST /x HTTP/1.1", body: bytes = b"", host: bytes = HOST
) -> bytes:
    return line + b"\r\n" + host + b"".join(f + b"\r\n" for f in fields) + b"\r\n" + body


def status_and_body(answer: bytes) -> tuple[int, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head[9:12]), body


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (request(host=b""), 400, "malformed-request"),
        (request(host=HOST + HOST), 400, "malformed-request"),
        (request(host=HOST + b"hOST: b\r\n"), 400, "malformed-request"),
        (request(host=b"Host: a/?x\r\n"), 400, "malformed-request"),
        (request(host=b"Host: u@a\r\n"), 400, "malformed-request"),
        (request(host=b"Host: \r\n"), 400, "malformed-request"),
        (request(host=b"Host: a:port\r\n"), 400, "malformed-request"),
        (
            request(b"Content-Length: 3", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
            400,
            "malformed-request",
        ),
        (
            request(b"Transfer-Encoding: chunked", line=b"POST /x HTTP/1.0", body=b"0\r\n\r\n"),
            400,
            "malformed-request",
        ),
        (request(b"Content-Length: 3", b"Content-Length: 4"), 400, "malformed-request"),
        (request(b"Content-Length: +3"), 400, "malformed-request"),
        (request(b"Content-Length: 18446744073709551619"), 400, "malformed-request"),
        (request(b"Transfer-Encoding: chunked", body=b"0x3\r\nabc\r\n"), 400, "malformed-request"),
        (request(b"Transfer-Encoding: chunked", body=b"3\nabc\r\n"), 400, "malformed-request"),
        (request(b" folded: x"), 400, "malformed-request"),
        (request(b"a: b\r\n c"), 400, "malformed-request"),
        (request(b"name : x"), 400, "malformed-request"),
        (request(b"a: b\x00c"), 400, "malformed-request"),
        (b"GET /x HTTP/1.1\nHost: a\n\n", 400, "malformed-request"),
        (request(line=b"GET @evil HTTP/1.1"), 400, "malformed-request"),
        (request(line=b"GET x HTTP/1.1"), 400, "malformed-request"),
        (request(line=b"GET ftp://a/x HTTP/1.1"), 400, "malformed-request"),
        (request(line=b"OPTIONS * HTTP/1.1"), 400, "malformed-request"),
        (request(line=b"GET http:///x HTTP/1.1"), 400, "malformed-request"),
        (request(line=b"GET http://a@b:99999/x HTTP/1.1"), 400, "malformed-request"),
        (request(line=b"GET /x#y HTTP/1.1"), 400, "malformed-request"),
        (request(line=b"GET /x HTTP/0.9"), 505, "version-unsupported"),
        (request(line=b"GET /x HTTP/1.2"), 505, "version-unsupported"),
        (request(line=b"GET /x HTTP/2.0"), 505, "version-unsupported"),
        (request(line=b"GET /x HTTP/3.1"), 505, "version-unsupported"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "version-unsupported"),
        (
            request(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
            501,
            "transfer-coding",
        ),
        (
            request(b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
            501,
            "transfer-coding",
        ),
        (request(line=b"TRACE /x HTTP/1.1"), 501, "method-rejected"),
        (request(line=b"CONNECT a:80 HTTP/1.1"), 501, "method-rejected"),
        (request(line=b"BREW /x HTTP/1.1"), 501, "method-unknown"),
        (request(*[b"x: y"] * 100), 431, "head-too-large"),
        (request(b"x: " + b"y" * 66_000), 431, "head-too-large"),
        (request(line=b"GET /" + b"y" * 66_000 + b" HTTP/1.1"), 431, "head-too-large"),
        (
            request(b"Connection: upgrade", b"Upgrade: h2c", b"Content-Length: 1", body=b"x"),
            400,
            "malformed-request",
        ),
    ],
)
async def test_a_request_that_breaks_a_rule_is_rejected_in_the_apis_shape(
    sent: bytes, status: int, code: str
) -> None:
    async with edge(echo) as server:
        answer = await server.exchange(sent)
        got, body = status_and_body(answer)
        error = json.loads(body)["error"]
        assert (status, code) == (got, error["code"])
        assert set(error) == {"message", "type", "param", "code"}
        assert b"\r\nconnection: close\r\n" in answer
        assert b"\r\nx-request-id: " in answer
        assert [code] == server.rejected
        await eventually(lambda: server.num_connections == 0)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (request(b"Content-Length: 3", body=b"abc"), b"/x 3"),
        (request(b"Transfer-Encoding: chunked", body=b"3\r\nabc\r\n0\r\n\r\n"), b"/x 3"),
        (request(b"Transfer-Encoding: Chunked ", body=b"3\r\nabc\r\n0\r\n\r\n"), b"/x 3"),
        (request(line=b"GET http://b/y?q HTTP/1.1"), b"/y 0"),
        (request(line=b"GET http://b HTTP/1.1"), b"/ 0"),
        (request(line=b"GET /%78%2Fy HTTP/1.1"), b"/%78%2Fy 0"),
        (request(host=b"Host: [::1]:8000\r\n"), b"/x 0"),
        (request(host=b"Host: a.b-c:80\r\n"), b"/x 0"),
        (request(*[b"x: y"] * 98), b"/x 0"),
        (request(b"x: " + b"y" * 60_000), b"/x 0"),
        (request(b"Content-Length: 200000", body=b"z" * 200_000), b"/x 200000"),
        (b"\r\n" + request(), b"/x 0"),
        (request(line=b"GET /x HTTP/1.0", host=b""), b"/x 0"),
        (request(b"Connection: upgrade", b"Upgrade: h2c", line=b"GET /x HTTP/1.1"), b"/x 0"),
    ],
)
async def test_a_request_that_keeps_the_rules_is_served(sent: bytes, expected: bytes) -> None:
    async with edge(echo) as server:
        reader, writer = await server.open()
        writer.write(sent)
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(len(expected))
        writer.close()
        assert head.startswith(OK)
        assert expected == body
        assert server.rejected == []


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with edge(echo) as server:
        sent = [request(line=b"GET /%d HTTP/1.1" % n) for n in range(3)]
        sent.append(request(b"Connection: close", line=b"GET /3 HTTP/1.1"))
        answer = await server.exchange(b"".join(sent))
        assert [part.split(b"\r\n\r\n")[1].split(b" ")[0] for part in answer.split(OK)[1:]] == [
            b"/0",
            b"/1",
            b"/2",
            b"/3",
        ]


@pytest.mark.parametrize(
    "bad",
    [
        request(host=b""),
        request(line=b"GET http:///x HTTP/1.1"),
        request(b"Transfer-Encoding: chunked", body=b"zz\r\n"),
    ],
    ids=["head", "target", "body"],
)
async def test_a_bad_request_behind_good_ones_is_rejected_in_turn(bad: bytes) -> None:
    release = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await release.wait()
        await echo(scope, receive, send)

    async with edge(slow) as server:
        reader, writer = await server.open()
        writer.write(request() + request() + bad + request())
        await eventually(lambda: server.rejected == ["malformed-request"])
        release.set()
        async with asyncio.timeout(5):
            answer = await reader.read()
        writer.close()
        assert [200, 200, 400] == [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
        assert answer.count(b"/x 0") == 2
        await eventually(lambda: server.num_tasks == 0)


async def test_a_bad_target_leaves_the_request_before_it_its_answer() -> None:
    release = asyncio.Event()
    seen: list[str] = []

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((await receive())["type"])
        await release.wait()
        await echo_nothing(scope, receive, send)

    async with edge(slow) as server:
        reader, writer = await server.open()
        writer.write(request() + request(line=b"GET http:///x HTTP/1.1"))
        await eventually(lambda: seen == ["http.request"])
        writer.write(request())  # Behind what is rejected: dropped, and not rejected once more.
        parsed = server.num_sweeps
        await eventually(lambda: server.num_sweeps > parsed + 5)
        release.set()
        async with asyncio.timeout(5):
            answer = await reader.read()
        assert [204, 400] == [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
        assert server.rejected == ["malformed-request"]


async def test_a_bad_target_on_a_kept_connection_is_answered() -> None:
    async with edge(echo) as server:
        answer = await server.exchange(request(), request(line=b"GET http:///x HTTP/1.1"))
        assert [200, 400] == [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


CHUNKED = request(b"Transfer-Encoding: chunked", b"Connection: close")


async def test_trailers_never_become_fields_of_the_request() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await echo(scope, receive, send)
        seen.extend(scope["headers"])

    async with edge(app) as server:
        trailer = b"x-request-id: t\r\nHost: evil\r\nauthorization: Bearer t\r\n"
        answer = await server.exchange(CHUNKED + b"3;a=b\r\nabc\r\n0\r\n" + trailer + b"\r\n")
        assert status_and_body(answer) == (200, b"/x 3")
        assert [name for name, _ in seen] == [b"host", b"transfer-encoding", b"connection"]


@pytest.mark.parametrize(
    "parts",
    [
        [b"0\r\n" + b"a: b\r\n" * 101 + b"\r\n"],
        [b"0\r\na: " + b"b" * 66_000 + b"\r\n\r\n"],
        [b"0\r\na: ", *[b"b" * 10_000] * 8],
        [b"3;", *[b"a" * 10_000] * 8],
    ],
    ids=["fields", "bytes", "endless trailer", "endless extension"],
)
async def test_what_frames_a_body_is_bounded(parts: list[bytes]) -> None:
    async with edge(echo) as server:
        answer = await server.exchange(CHUNKED, b"3\r\nabc\r\n", *parts)
        assert status_and_body(answer)[0] == 431
        assert server.rejected == ["head-too-large"]
        await eventually(lambda: server.num_tasks == 0)


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_in_many_reads_is_taken(is_chunked: bool) -> None:
    async with edge(echo) as server:
        head, part = request(b"Content-Length: 200000", b"Connection: close"), b"x" * 20_000
        if is_chunked:
            head, part = CHUNKED, b"4e20\r\n" + part + b"\r\n"
        answer = await server.exchange(head, *[part] * 10, b"0\r\n\r\n" * is_chunked)
        assert status_and_body(answer) == (200, b"/x 200000")


async def test_a_cut_is_told_to_the_running_request_where_others_wait() -> None:
    seen: list[str] = []

    async def patient(_scope: Scope, receive: Receive, _send: Send) -> None:
        while seen[-1:] != ["http.disconnect"]:
            seen.append((await receive())["type"])

    async with edge(patient) as server:
        _, writer = await server.open()
        writer.write(request() * 3)
        await eventually(lambda: seen == ["http.request"])
        (connection,) = server.state.connections
        connection.transport.abort()  # type: ignore[union-attr]
        await eventually(lambda: server.num_tasks == 0)
        assert seen == ["http.request", "http.disconnect"]


async def test_one_pipelined_request_too_many_is_rejected_in_turn() -> None:
    async with edge(echo, EdgeLimits(num_waiting=2)) as server:
        answer = await server.exchange(request() * 5)
        statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
        assert statuses == [200, 200, 200, 429]
        assert server.rejected == ["pipeline-full"]


async def test_nothing_is_read_while_pipelined_requests_wait() -> None:
    places = asyncio.Semaphore(0)
    num_begun = 0

    async def gated(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_begun
        num_begun += 1
        await receive()  # Asks for more to read, where there is none of its own.
        await places.acquire()
        await echo_nothing(scope, receive, send)

    async with edge(gated, EdgeLimits(head_timeout_s=0.05)) as server:
        reader, writer = await server.open()
        writer.write(request() * 4 + b"POST /x HT")
        await eventually(lambda: num_begun == 1)
        writer.write(b"TP/1.1\r\n" + HOST + b"\r\n" + request() * 3)
        (connection,) = server.state.connections
        for begun in (2, 3):
            places.release()
            await eventually(lambda begun=begun: num_begun == begun)  # type: ignore[misc]
            swept = server.num_sweeps
            await eventually(lambda swept=swept: server.num_sweeps > swept + 10)  # type: ignore[misc]
            assert len(connection.pipeline) == 4 - begun  # type: ignore[union-attr]
        for _ in range(6):
            places.release()
        async with asyncio.timeout(5):
            for _ in range(8):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")
        assert server.rejected == []


async def test_a_client_that_half_closes_gets_the_answer_of_a_get() -> None:
    release = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await release.wait()
        await echo(scope, receive, send)

    async with edge(slow) as server:
        reader, writer = await server.open()
        writer.write(request(line=b"GET /x HTTP/1.1"))
        writer.write_eof()
        await eventually(lambda: server.num_tasks == 1)
        swept = server.num_sweeps
        await eventually(lambda: server.num_sweeps > swept + 5)
        release.set()
        async with asyncio.timeout(5):
            assert status_and_body(await reader.read()) == (200, b"/x 0")
        await eventually(lambda: server.num_connections == 0)


@pytest.mark.parametrize(
    "sent", [request(), b"GET /x HT", request(b"Content-Length: 3", line=b"PUT /x HTTP/1.1"), b""]
)
async def test_a_client_that_half_closes_otherwise_has_left(sent: bytes) -> None:
    async def patient(_scope: Scope, receive: Receive, _send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with edge(patient) as server:
        _, writer = await server.open()
        writer.write(sent)
        await eventually(lambda: server.num_connections == 1)
        writer.write_eof()
        await eventually(lambda: server.num_connections == 0)
        await eventually(lambda: server.num_tasks == 0)


async def test_a_bad_chunk_in_the_body_tells_the_application_that_the_client_is_gone() -> None:
    seen: list[str] = []

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        while True:
            message = await receive()
            seen.append(message["type"])
            if message["type"] == "http.disconnect":
                return

    async with edge(app) as server:
        head = request(b"Transfer-Encoding: chunked")
        answer = await server.exchange(head, b"1\r\nx\r\n", b"zz\r\n")
        assert status_and_body(answer)[0] == 400
        assert seen[-1] == "http.disconnect"
        assert server.num_tasks == 0


@pytest.mark.parametrize(
    ("limits", "parts", "status"),
    [
        ({"head_timeout_s": 0.05}, [b"GET /x HT"], 408),
        ({"head_timeout_s": 0.05}, [request(), b"GET /x HT"], 408),
        (
            {"body_grace_s": 0.05},
            [request(b"Content-Length: 3", body=b"a")],
            408,
        ),
        ({"body_timeout_s": 0.05}, [request(b"Content-Length: 3", body=b"a")], 408),
    ],
    ids=["head", "second head", "body", "whole body"],
)
async def test_a_dripping_request_is_rejected_at_its_deadline(
    limits: Mapping[str, float], parts: list[bytes], status: int
) -> None:
    async with edge(echo, EdgeLimits(**limits)) as server:  # type: ignore[arg-type]  # Only floats are varied.
        answer = await server.exchange(*parts)
        assert b"HTTP/1.1 %d " % status in answer
        assert server.rejected == ["request-too-slow"]
        await eventually(lambda: server.num_connections == 0)


async def test_a_connection_that_says_nothing_is_closed_without_an_answer() -> None:
    async with edge(echo, EdgeLimits(head_timeout_s=0.05)) as server:
        assert await server.exchange() == b""
        assert server.rejected == []


async def test_an_idle_connection_is_closed_after_its_keep_alive() -> None:
    async with edge(echo, EdgeLimits(keep_alive_s=0.05)) as server:
        answer = await server.exchange(request())
        assert answer.startswith(OK)
        assert server.rejected == []


async def test_a_body_that_we_do_not_read_is_not_too_slow() -> None:
    release = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await release.wait()
        await echo(scope, receive, send)

    # What has been read when reading stops would be too little after a fifth of a second.
    limits = EdgeLimits(body_grace_s=0.05, body_bytes_per_s=4e6)
    async with edge(slow, limits) as server:
        reader, writer = await server.open()
        writer.write(request(b"Content-Length: 2000000", body=b"x" * 2_000_000))
        await eventually(lambda: any(c.flow.read_paused for c in server.state.connections))  # type: ignore[union-attr]
        seen = server.num_sweeps
        await eventually(lambda: server.num_sweeps > seen + 0.25 / SWEEP_S)
        release.set()
        async with asyncio.timeout(5):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(OK)
            assert await reader.readexactly(10) == b"/x 2000000"
        writer.close()


async def test_an_answer_before_the_body_is_read_closes_the_connection() -> None:
    async def hasty(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": b"no"})

    async with edge(hasty, EdgeLimits(linger_s=0.05)) as server:
        answer = await server.exchange(request(b"Content-Length: 100000"), b"x" * 1000)
        assert status_and_body(answer) == (413, b"no")
        await eventually(lambda: server.num_connections == 0)


async def test_a_rejected_client_that_goes_on_sending_is_cut_off() -> None:
    async with edge(echo, EdgeLimits(linger_s=0.05)) as server:
        _, writer = await server.open()
        writer.write(request(host=b""))

        async def go_on() -> None:
            while True:
                writer.write(b"x" * 1000)
                await writer.drain()
                await asyncio.sleep(0.005)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(go_on(), 5)
        assert server.rejected == ["malformed-request"]


async def test_an_http_1_0_client_gets_no_chunks() -> None:
    async def stream(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"ab", b"cd", b""):
            await send({"type": "http.response.body", "body": part, "more_body": bool(part)})

    async with edge(stream) as server:
        answer = await server.exchange(request(line=b"GET /x HTTP/1.0"))
        assert status_and_body(answer) == (200, b"abcd")
        assert b"transfer-encoding" not in answer


async def test_hot_paths_reach_their_endpoint_without_the_application() -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with edge(app, hot={"/hot": echo}) as server:

        async def status(line: bytes) -> int:
            return status_and_body(await server.exchange(request(b"Connection: close", line=line)))[
                0
            ]

        assert await status(b"POST /hot HTTP/1.1") == 200
        assert await status(b"POST http://a/hot?x=1 HTTP/1.1") == 200
        assert await status(b"GET /hot HTTP/1.1") == 404
        assert await status(b"POST /hot/ HTTP/1.1") == 404
        assert await status(b"POST /cold HTTP/1.1") == 404
        answer = await server.exchange(
            request(line=b"POST /hot HTTP/1.1")
            + request(b"Connection: close", line=b"POST /cold HTTP/1.1")
        )
        assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404"]


LARGE = 24 * 1024 * 1024
"""More than kernels buffer."""
PATIENCE = EdgeLimits(keep_alive_s=0.2, read_grace_s=0.3, read_bytes_per_s=64 * 1024)


async def large(scope: Scope, _receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"%d" % LARGE)]
    await answer(scope, send, status=200, headers=headers, body=bytes(LARGE), flush_s=0.1)


async def large_in_parts(_scope: Scope, _receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"%d" % LARGE)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for left in reversed(range(24)):
        body = bytes(LARGE // 24)
        await send({"type": "http.response.body", "body": body, "more_body": left > 0})


async def test_a_client_that_does_not_read_keeps_no_answer_waiting() -> None:
    async with edge(large_in_parts, PATIENCE) as server:
        _, writer = await server.open()
        writer.write(request(line=b"GET / HTTP/1.1") * 3)
        await eventually(lambda: server.num_tasks == 1)
        await eventually(lambda: server.num_connections == 0)
        await eventually(lambda: server.num_tasks == 0)
        assert server.num_unread == 1


@pytest.mark.parametrize("fields", [(), (b"Connection: close",)])
async def test_a_client_that_does_not_read_its_answer_keeps_no_memory(
    fields: tuple[bytes, ...],
) -> None:
    async with edge(large, PATIENCE) as server:
        _, writer = await server.open()
        writer.write(request(*fields, line=b"GET / HTTP/1.1"))
        await eventually(lambda: server.num_connections == 1)
        await eventually(lambda: server.num_connections == 0)
        assert server.num_unread == 1


@pytest.mark.parametrize("app", [large, large_in_parts])
@pytest.mark.parametrize("fields", [(), (b"Connection: close",)])
async def test_a_client_that_reads_its_answer_slowly_gets_it_whole(
    fields: tuple[bytes, ...], app: ASGIApp
) -> None:
    async with edge(app, PATIENCE) as server:
        reader, writer = await server.open()
        writer.write(request(*fields, line=b"GET / HTTP/1.1"))
        await reader.readuntil(b"\r\n\r\n")
        began, got = time.monotonic(), 0
        async with asyncio.timeout(30):
            while got < LARGE:
                got += len(await reader.read(LARGE // 20))
                await asyncio.sleep(0.02)  # Paces the reader: several graces for the whole.
        assert (got, server.num_unread) == (LARGE, 0)
        assert time.monotonic() - began > PATIENCE.read_grace_s


async def test_what_was_read_is_forgotten_before_the_next_answer() -> None:
    async with edge(large, EdgeLimits(read_grace_s=0.1, read_bytes_per_s=64 * 1024)) as server:
        reader, writer = await server.open()
        for _ in range(3):
            writer.write(request(line=b"GET / HTTP/1.1"))
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(LARGE)
            seen = server.num_sweeps
            await eventually(lambda seen=seen: server.num_sweeps > seen + 1)  # type: ignore[misc]
            assert head.startswith(OK)
