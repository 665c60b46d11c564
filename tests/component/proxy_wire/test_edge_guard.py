"""The guard at the client's edge: what is rejected below any application code, and how."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest
from starlette.types import Receive, Scope, Send
from tests.support.edge import SWEEP_S, edge
from tests.support.scripted_engine import eventually

from pdcluster_proxy.wire.edge_guard import EdgeLimits

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
        (request(line=b"GET http://b/y?q HTTP/1.1"), b"/y 0"),
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
    [request(host=b""), request(b"Transfer-Encoding: chunked", body=b"zz\r\n")],
    ids=["head", "body"],
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
    ],
    ids=["head", "second head", "body"],
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
