"""The admin page over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from tests.support.edge import edge

from pdcluster_api.proxy_config import Role
from pdcluster_api.proxy_state import EngineLedger, ProxyState
from pdcluster_proxy.companion.admin import PAGES, create_admin_app

ROW: dict[str, object] = {"name": "p-0", "role": "prefill", "state": "unproven"}
STATE = ProxyState(
    cluster="demo",
    in_flight=2,
    engines=(EngineLedger(name="p-0", role=Role.PREFILL, in_flight=2, held=1),),
)


class Source:
    """What the page shows."""

    def __init__(self, *hindrances: str) -> None:
        self._hindrances = hindrances
        self.figures = SimpleNamespace(render=lambda: b"pdcluster_proxy_workers 1.0\n")

    def hindrances(self) -> tuple[str, ...]:
        return self._hindrances

    def endpoint_rows(self) -> tuple[Mapping[str, object], ...]:
        return (ROW,)

    def state(self) -> ProxyState:
        return STATE


async def get(path: str, *hindrances: str, method: str = "GET") -> tuple[int, bytes, bytes]:
    async with edge(create_admin_app(Source(*hindrances))) as server:
        answer = await server.exchange(
            f"{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
        )
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head[9:12]), head.lower(), body


async def test_a_ready_proxy_says_so() -> None:
    status, _, body = await get("/readyz")
    assert (status, json.loads(body)) == (200, {"status": "ready"})


async def test_a_proxy_that_is_not_ready_says_why() -> None:
    status, _, body = await get("/readyz", "draining", "no worker")
    assert status == 503
    assert json.loads(body) == {"status": "not ready", "reasons": ["draining", "no worker"]}


async def test_liveness_does_not_depend_on_readiness() -> None:
    assert (await get("/healthz", "draining"))[0] == 200


async def test_metrics_have_prometheus_media_type() -> None:
    status, head, body = await get("/metrics")
    assert (status, body) == (200, b"pdcluster_proxy_workers 1.0\n")
    assert b"content-type: text/plain" in head
    assert b"version=" in head


async def test_the_ledger_is_the_operators_model() -> None:
    status, _, body = await get("/ledger")
    assert status == 200
    assert ProxyState.model_validate_json(body) == STATE
    assert b'"inFlight":2' in body


async def test_endpoints_are_listed() -> None:
    _, _, body = await get("/endpoints")
    assert json.loads(body) == [ROW]


async def test_the_index_lists_every_page_with_a_line_each() -> None:
    status, head, body = await get("/")
    assert status == 200
    assert b"content-type: text/plain" in head
    lines = [line.split(maxsplit=1) for line in body.decode().splitlines()[2:]]
    assert dict(lines) == PAGES
    for path in PAGES:
        assert (await get(path))[0] == 200


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/nothing", "GET", 404), ("/ledger", "POST", 405)]
)
async def test_there_is_nothing_else(path: str, method: str, status: int) -> None:
    assert (await get(path, method=method))[0] == status
