"""Discovery on Kubernetes against an API server whose every byte the test decides."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from kubernetes.aio.client import ApiClient, Configuration
from tests.support.scripted_engine import (
    LAST_CHUNK,
    STREAM_HEAD,
    Peer,
    chunk,
    eventually,
    json_answer,
    scripted_engine,
)

from pdcluster_api.labels import (
    LEASE_ANNOTATION,
    REVISION_LABEL,
    ROLE_LABEL,
    SIDE_CHANNEL_ANNOTATION,
)
from pdcluster_api.proxy_config import EndpointsFile, KubernetesDiscovery
from pdcluster_proxy.companion.pod_watch import PodDiscovery

RETRY_S = 0.02


class Watcher:
    """Hears of endpoints."""

    def __init__(self) -> None:
        self.found: list[list[str]] = []
        self.failures: list[str] = []

    def discovered(self, endpoints: EndpointsFile) -> None:
        self.found.append([endpoint.name for endpoint in endpoints.endpoints])

    def discovery_failed(self, reason: str) -> None:
        self.failures.append(reason)


def pod(name: str, *, lease: str = "30", padding: int = 0) -> dict[str, object]:
    return {
        "metadata": {
            "name": name,
            "resourceVersion": "7",
            "labels": {ROLE_LABEL: name.split("-", maxsplit=1)[0], REVISION_LABEL: "r1"},
            "annotations": {
                SIDE_CHANNEL_ANNOTATION: "5600",
                LEASE_ANNOTATION: lease,
                "padding": "x" * padding,
            },
        },
        "spec": {
            "containers": [{"name": "engine", "ports": [{"name": "http", "containerPort": 8000}]}]
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def listed(*pods: dict[str, object]) -> bytes:
    return json_answer(json.dumps({"metadata": {"resourceVersion": "5"}, "items": pods}).encode())


def event(kind: str, raw: dict[str, object]) -> bytes:
    return chunk(json.dumps({"type": kind, "object": raw}).encode() + b"\n")


GONE = {"kind": "Status", "code": 410, "reason": "Expired"}
Answer = Callable[[Peer], Awaitable[None]]


def sends(*parts: bytes) -> Answer:
    async def answer(peer: Peer) -> None:
        await peer.send(*parts)

    return answer


async def stays_open(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.until_closed()


class Server:
    """An API server: the next of its answers to each list and to each watch, the last for ever."""

    def __init__(self) -> None:
        self.lists: list[Answer] = [sends(listed(pod("prefill-0")))]
        self.watches: list[Answer] = [stays_open]
        self.asked: list[str] = []

    async def serve(self, peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            target = head.split(b" ", 2)[1].decode()
            self.asked.append(target)
            answers = self.watches if "watch=true" in target else self.lists
            await (answers.pop(0) if len(answers) > 1 else answers[0])(peer)

    @property
    def num_lists(self) -> int:
        return sum("watch=true" not in target for target in self.asked)

    @property
    def num_watches(self) -> int:
        return len(self.asked) - self.num_lists


@contextlib.asynccontextmanager
async def following(server: Server, *, retry_s: float = RETRY_S) -> AsyncIterator[Watcher]:
    watcher = Watcher()
    where = KubernetesDiscovery(namespace="serving", cluster="qwen")
    async with scripted_engine(server.serve) as at:
        api = ApiClient(Configuration(host=f"http://{at.address.host}:{at.address.port}"))
        async with api:
            task = asyncio.create_task(PodDiscovery(api, where, watcher, retry_s=retry_s).run())
            try:
                yield watcher
                assert not task.done()
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def test_pods_are_listed_then_followed() -> None:
    server = Server()

    async def changes(peer: Peer) -> None:
        await peer.send(STREAM_HEAD, event("ADDED", pod("decode-0")))
        await peer.send(event("BOOKMARK", {"metadata": {"resourceVersion": "9"}}))
        await peer.send(event("DELETED", pod("prefill-0")))
        await peer.until_closed()

    server.watches = [changes]
    async with following(server) as watcher:
        await eventually(lambda: len(watcher.found) == 3)
        assert watcher.found == [["prefill-0"], ["decode-0", "prefill-0"], ["decode-0"]]
        assert "resourceVersion=5" in server.asked[1]


async def test_a_watch_that_ends_in_order_goes_on_from_where_it_was() -> None:
    server = Server()
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
    server.watches = [sends(STREAM_HEAD, bookmark, LAST_CHUNK), stays_open]
    async with following(server) as watcher:
        await eventually(lambda: server.num_watches == 2)
        assert "resourceVersion=9" in server.asked[-1]
        assert (server.num_lists, watcher.failures) == (1, [])


@pytest.mark.parametrize(
    "over",
    [
        sends(STREAM_HEAD, event("ERROR", GONE), LAST_CHUNK),
        sends(json_answer(json.dumps(GONE).encode(), status=410)),
    ],
    ids=["event", "status"],
)
async def test_a_watch_that_cannot_go_on_is_begun_anew_with_a_list(over: Answer) -> None:
    server = Server()
    server.lists = [sends(listed(pod("prefill-0"))), sends(listed(pod("prefill-1")))]
    server.watches = [over, stays_open]
    async with following(server) as watcher:
        await eventually(lambda: len(watcher.found) == 2)
        assert watcher.found == [["prefill-0"], ["prefill-1"]]
        assert watcher.failures == []


async def test_what_happened_while_the_server_was_away_is_not_missed() -> None:
    server = Server()

    async def breaks(peer: Peer) -> None:
        await peer.send(STREAM_HEAD, event("ADDED", pod("decode-0")))
        peer.reset()

    away = sends(json_answer(b"{}", status=503))
    server.lists = [sends(listed(pod("prefill-0"))), away, away, sends(listed(pod("decode-1")))]
    server.watches = [breaks, stays_open]
    async with following(server) as watcher:
        await eventually(lambda: watcher.found[-1:] == [["decode-1"]])
        # Meanwhile the last known ones were in force.
        assert watcher.found[:-1] == [["prefill-0"], ["decode-0", "prefill-0"]]
        assert len(watcher.failures) == 3


@pytest.mark.parametrize(
    "ended",
    [
        sends(STREAM_HEAD + LAST_CHUNK),
        sends(STREAM_HEAD, event("ERROR", GONE), LAST_CHUNK),
        sends(json_answer(b"forbidden", status=403)),
    ],
    ids=["ended", "gone", "forbidden"],
)
async def test_a_watch_that_never_lasts_is_not_asked_for_again_and_again(ended: Answer) -> None:
    server = Server()
    server.watches = [ended]
    async with following(server, retry_s=60.0):
        await eventually(lambda: server.num_watches == 1)
        for _ in range(200):  # Enough for many round trips.
            await asyncio.sleep(0.001)
        assert (server.num_lists, server.num_watches) == (1, 1)


async def test_watches_that_fail_after_good_lists_are_told_once_and_come_ever_rarer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    server.watches = [sends(json_answer(b"forbidden", status=403))]
    async with following(server, retry_s=0.001) as watcher:
        await eventually(lambda: len(watcher.failures) == 6)
        assert [r.message for r in caplog.records].count("discovery.failed") == 1


async def test_a_pod_may_be_larger_than_a_line_of_the_http_client() -> None:
    server = Server()

    async def grows(peer: Peer) -> None:
        await peer.send(STREAM_HEAD, event("ADDED", pod("decode-0", padding=1024 * 1024)))
        await peer.until_closed()

    server.watches = [grows]
    async with following(server) as watcher:
        await eventually(lambda: watcher.found[-1:] == [["decode-0", "prefill-0"]])
        assert watcher.failures == []


async def test_a_pod_that_can_be_no_endpoint_is_told_and_hides_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    server = Server()
    server.lists = [sends(listed(pod("prefill-0"), pod("decode-0", lease="1")))]
    async with following(server) as watcher:
        await eventually(lambda: server.num_watches == 1)
        assert watcher.found == [["prefill-0"]]
        assert len(watcher.failures) == 1
        assert [r.message for r in caplog.records] == ["discovery.pod.unusable"]


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b"null", b'{"items": [{}]}', b'{"items": [], "metadata": {}}', b"{"]
)
async def test_an_answer_that_is_none_is_a_failure_and_not_the_end(body: bytes) -> None:
    server = Server()
    server.lists = [sends(json_answer(body)), sends(listed(pod("prefill-0")))]
    async with following(server) as watcher:
        await eventually(lambda: watcher.found[-1:] == [["prefill-0"]])
        assert len(watcher.failures) == 1
