"""A client that leaves, an engine that dies, a shutdown: nothing keeps running, nobody waits."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from tests.support.engines import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.component.simulator.conftest import Served

LONG = {"model": "tiny", "prompt": "hello", "max_tokens": 8000, "ignore_eos": True}
"""Takes many seconds; a machine so slow that it is complete by then is told by the counters."""
WITHIN_S = 30.0
"""Tells a hang from progress."""


def assert_nothing_is_complete(served: Served) -> None:
    """Whatever has ended was stopped, and did not run to its cap."""
    seen = Metrics.parse(served.context.metrics.exposition().decode())
    assert seen.of("request_success_total", finished_reason="length") == 0


class Connection:
    """One HTTP request at ASGI's level, whose client can leave."""

    def __init__(self, served: Served, path: str, body: dict[str, object]) -> None:
        self._body = json.dumps(body).encode()
        self._left = asyncio.Event()
        self._asked = False
        self.sent: list[dict[str, object]] = []
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self.task = asyncio.ensure_future(served.app(scope, self._receive, self._send))  # type: ignore[arg-type]  # ASGI's own types

    def leave(self) -> None:
        self._left.set()

    async def _receive(self) -> dict[str, object]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, object]) -> None:
        self.sent.append(message)

    async def until_sent(self, number: int, *, within_s: float = WITHIN_S) -> None:
        async with asyncio.timeout(within_s):
            while len(self.sent) < number:  # noqa: ASYNC110 - a list is filled, no event is set
                await asyncio.sleep(0.002)


PATHS = ("/v1/completions", "/v1/chat/completions")


def body_for(path: str, **changes: object) -> dict[str, object]:
    if path.endswith("chat/completions"):
        messages = [{"role": "user", "content": "hello"}]
        return {**LONG, "messages": messages, **changes}
    return {**LONG, **changes}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS)
async def test_a_client_that_leaves_while_it_runs_ends_the_request(
    served: Served, path: str, stream: bool
) -> None:
    connection = Connection(served, path, body_for(path, stream=stream))
    await served.running()
    connection.leave()
    await asyncio.wait_for(connection.task, WITHIN_S)
    await served.idle()
    assert_nothing_is_complete(served)


async def test_a_client_that_leaves_in_the_middle_of_a_stream_ends_the_request(
    served: Served,
) -> None:
    connection = Connection(served, "/v1/completions", body_for("/v1/completions", stream=True))
    await connection.until_sent(10)
    connection.leave()
    await asyncio.wait_for(connection.task, WITHIN_S)
    await served.idle()
    assert_nothing_is_complete(served)
    assert served.frontend.gauges is not None
    assert served.frontend.gauges.kv_usage == 0.0


async def test_a_client_that_leaves_while_queued_ends_the_request(
    serve: Callable[..., Served],
) -> None:
    served = serve("--max-num-seqs", "1")
    running = Connection(served, "/v1/completions", LONG)
    await served.running()
    queued = Connection(served, "/v1/completions", LONG)
    async with asyncio.timeout(WITHIN_S):
        # The engine's thread sets figures, no event.
        while served.frontend.gauges is None or not served.frontend.gauges.num_waiting:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.005)
    queued.leave()
    await asyncio.wait_for(queued.task, WITHIN_S)
    running.leave()
    await asyncio.wait_for(running.task, WITHIN_S)
    await served.idle()


async def test_a_client_that_leaves_ends_all_choices(served: Served) -> None:
    connection = Connection(served, "/v1/completions", {**LONG, "n": 5, "stream": True})
    await connection.until_sent(10)
    connection.leave()
    await asyncio.wait_for(connection.task, WITHIN_S)
    await served.idle()
    assert_nothing_is_complete(served)


def kill(served: Served) -> None:
    """End the engine's core as an error inside it would."""
    served.frontend.post(object())  # type: ignore[arg-type]  # what no engine understands


async def test_when_the_engine_dies_whoever_waits_gets_a_500(served: Served) -> None:
    waiting = asyncio.create_task(served.client.post("/v1/completions", json=LONG))
    await served.running()
    kill(served)
    answer = await asyncio.wait_for(waiting, WITHIN_S)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "InternalServerError"
    assert served.frontend.died.is_set()
    assert (await served.client.get("/health")).status_code == 503
    assert (await served.client.post("/v1/completions", json=LONG)).status_code == 500


async def test_when_the_engine_dies_a_stream_ends_with_an_error_event(served: Served) -> None:
    connection = Connection(served, "/v1/completions", {**LONG, "stream": True})
    await connection.until_sent(5)
    kill(served)
    await asyncio.wait_for(connection.task, WITHIN_S)
    text = b"".join(bytes(each.get("body", b"")) for each in connection.sent)  # type: ignore[arg-type]  # bytes
    assert b'data: {"error":{"message":"Internal server error"' in text
    assert text.endswith(b"data: [DONE]\n\n")


async def test_a_drain_without_time_aborts_at_once(served: Served) -> None:
    waiting = asyncio.create_task(served.client.post("/v1/completions", json=LONG))
    await served.running()
    assert not await served.frontend.drain(timeout_s=0.0)
    assert (await asyncio.wait_for(waiting, WITHIN_S)).status_code == 500
    await served.idle()


async def test_a_drain_with_time_lets_what_runs_finish_and_takes_nothing_new(
    served: Served,
) -> None:
    body = {**LONG, "max_tokens": 200}
    waiting = asyncio.create_task(served.client.post("/v1/completions", json=body))
    await served.running()
    draining = asyncio.create_task(served.frontend.drain(timeout_s=20.0))
    await asyncio.sleep(0)
    rejected = await served.client.post("/v1/completions", json=body)
    assert rejected.status_code == 503
    assert (await served.client.get("/health")).status_code == 200
    assert (await waiting).status_code == 200
    assert await draining


async def test_a_drain_that_takes_too_long_aborts(served: Served) -> None:
    waiting = asyncio.create_task(served.client.post("/v1/completions", json=LONG))
    await served.running()
    assert not await served.frontend.drain(timeout_s=0.1)
    assert (await waiting).status_code == 500


async def test_an_idle_engine_is_drained_at_once(served: Served) -> None:
    async with asyncio.timeout(10.0):
        assert await served.frontend.drain(timeout_s=20.0)
