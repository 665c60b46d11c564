"""The probes on the clients' port."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from tests.support.edge import Edge, edge
from tests.support.exchange_rig import Recorder, WatchedEngines, config

from pdcluster_proxy.app import create_app
from pdcluster_proxy.core.messages import EndpointState, EndpointView


def endpoint(name: str, **fields: object) -> EndpointView:
    facts: dict[str, object] = {
        "name": name,
        "role": "prefill" if name.startswith("p") else "decode",
        "host": "127.0.0.1",
        "port": 8000,
        "side_channel_host": "127.0.0.1",
        "side_channel_port": 5600,
        "revision": "r1",
        "state": EndpointState.READY,
        "incarnation": 1,
        "lease_duration_s": 30,
    }
    return EndpointView(**(facts | fields))  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def served(*endpoints: EndpointView) -> AsyncIterator[tuple[Edge, Recorder]]:
    companion, engines = Recorder(), WatchedEngines()
    app = create_app(config(), engines, companion)
    companion.push(*endpoints)
    async with edge(app) as server:
        yield server, companion
    await engines.client.close()


async def get(server: Edge, path: str) -> tuple[int, dict[str, object]]:
    raw = await server.exchange(
        f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
    )
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head[9:12]), json.loads(body)


async def test_a_worker_with_a_pair_is_ready() -> None:
    async with served(endpoint("p1"), endpoint("d1"), endpoint("d2")) as (server, _):
        ready = {"status": "ready", "prefill": 1, "decode": 2}
        assert (200, ready) == await get(server, "/readyz")


async def test_a_worker_without_a_pair_of_one_revision_is_not_ready() -> None:
    async with served(endpoint("p1"), endpoint("d1", revision="r2")) as (server, _):
        status, body = await get(server, "/readyz")
        assert (503, "no-pair") == (status, body["status"])


async def test_vllm_s_name_of_the_probe_is_known() -> None:
    async with served(endpoint("p1"), endpoint("d1")) as (server, companion):
        assert await get(server, "/health") == await get(server, "/readyz")
        companion.is_draining = True
        assert 503 == (await get(server, "/health"))[0]


@pytest.mark.parametrize(
    "line", ["GET /nothing", "GET /v1/completions", "GET /v1/models", "GET /v1/models/nobody"]
)
async def test_answers_of_the_proxy_itself_have_a_request_id(line: str) -> None:
    async with served() as (server, _):
        heads = []
        for field in ("X-Request-Id: mine\r\n", ""):
            request = f"{line} HTTP/1.1\r\nHost: a\r\n{field}Connection: close\r\n\r\n"
            heads.append((await server.exchange(request.encode())).partition(b"\r\n\r\n")[0])
        assert b"\r\nx-request-id: mine\r\n" in heads[0] + b"\r\n"
        assert b"\r\nx-request-id: " in heads[1]


async def test_a_draining_worker_is_not_ready_but_alive() -> None:
    async with served(endpoint("p1"), endpoint("d1")) as (server, companion):
        assert 200 == (await get(server, "/readyz"))[0]
        companion.is_draining = True
        assert (503, {"status": "draining"}) == await get(server, "/readyz")
        assert 200 == (await get(server, "/healthz"))[0]


@pytest.mark.parametrize(
    "path",
    [
        "/healthz/",
        "/v1/completions/",
        "/v1%2Fmodels",
        "/%76%31/models",
        "/v1%2Fcompletions",
        "//v1/models",
        "/healthz%00",
    ],
)
async def test_only_a_path_as_it_is_written_down_is_a_route(path: str) -> None:
    async with served(endpoint("p1"), endpoint("d1")) as (server, _):
        status, body = await get(server, path)
        error = body["error"]
        assert isinstance(error, dict)
        assert (404, "unknown-route") == (status, error["code"])


async def test_a_model_s_name_may_be_quoted() -> None:
    async with served() as (server, _):
        assert 200 == (await get(server, "/v1/models/%6d"))[0]
        assert 404 == (await get(server, "/v1/models/%256d"))[0]
