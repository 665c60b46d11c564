"""Active checks: each engine is asked on its own, and what it says is passed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.scripted_engine import Peer, eventually, json_answer, scripted_engine

from pdcluster_api.proxy_config import EndpointConfig
from pdcluster_proxy.clients import Answer, HttpReader, make_client
from pdcluster_proxy.companion.checks import Checker, CheckTiming
from pdcluster_proxy.companion.exposition import EngineFigures
from pdcluster_proxy.core.messages import Load
from pdcluster_proxy.errors import ConnectError, ProxyError, UpstreamTimeoutError
from pdcluster_proxy.wire.engine_client import EngineClient

METRICS = b"vllm:num_requests_running 2\nprocess_start_time_seconds 5\n"
OK = Answer(status=200, body=b"")
TIMING = CheckTiming(interval_s=0.02, return_interval_s=0.01, timeout_s=1.0)


class Watcher:
    """Hears of checks."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: list[tuple[str, bool]] = []
        self.figures: dict[str, EngineFigures] = {}
        self.scrape_failures: list[str] = []

    def check_passed(self, endpoint: str) -> None:
        self.passed.append(endpoint)

    def check_failed(self, endpoint: str, reason: str, *, unreached: bool) -> None:
        assert reason
        self.failed.append((endpoint, unreached))

    def scraped(self, endpoint: str, figures: EngineFigures) -> None:
        self.figures[endpoint] = figures

    def scrape_failed(self, endpoint: str, reason: str) -> None:
        assert reason
        self.scrape_failures.append(endpoint)

    def is_serving(self, endpoint: str) -> bool:
        return endpoint in self.passed


class Reader:
    """Engines that answer as the test says; by address and page."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer | ProxyError | asyncio.Event] = {}
        self.asked: list[str] = []

    async def get(self, url: str, *, timeout_s: float) -> Answer:
        assert timeout_s == TIMING.timeout_s
        self.asked.append(url)
        answer = self.answers.get(url, OK)
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return OK
        if isinstance(answer, ProxyError):
            raise answer
        return answer


def engine(name: str, url: str, **fields: object) -> EndpointConfig:
    return EndpointConfig.model_validate(
        {
            "name": name,
            "role": "prefill",
            "url": url,
            "sideChannel": "10.0.0.1:5600",
            "revision": "r1",
            **fields,
        }
    )


ONE, TWO = engine("p-0", "http://10.0.0.1:1"), engine("p-1", "http://10.0.0.1:2/")


class Rig:
    """A checker of fake engines."""

    def __init__(self, timing: CheckTiming = TIMING) -> None:
        self.watcher = Watcher()
        self.reader = Reader()
        self.checker = Checker(self.reader, self.watcher, lease_duration_s=30, timing=timing)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.checker.close()


async def test_a_healthy_engine_passes_and_is_scraped(rig: Rig) -> None:
    rig.reader.answers["http://10.0.0.1:1/metrics"] = Answer(status=200, body=METRICS)
    rig.checker.follow([ONE])
    await eventually(lambda: "p-0" in rig.watcher.figures)
    assert rig.watcher.figures["p-0"] == EngineFigures(load=Load(running=2.0), started_at=5.0)
    assert rig.watcher.passed
    assert rig.watcher.failed == []


@pytest.mark.parametrize(
    ("answer", "unreached"),
    [
        (ConnectError("nobody listens"), True),
        (UpstreamTimeoutError("slow"), False),
        (Answer(status=503, body=b""), False),
    ],
)
async def test_a_failure_is_told_with_its_kind(
    rig: Rig,
    answer: Answer | ProxyError,
    unreached: bool,
) -> None:
    rig.reader.answers["http://10.0.0.1:1/health"] = answer
    rig.checker.follow([ONE])
    await eventually(lambda: len(rig.watcher.failed) >= 2)
    assert rig.watcher.failed[0] == ("p-0", unreached)
    assert rig.watcher.figures == {}


@pytest.mark.parametrize("answer", [UpstreamTimeoutError("slow"), Answer(status=404, body=b"")])
async def test_metrics_that_cannot_be_read_are_told_and_health_goes_on(
    rig: Rig, answer: Answer | ProxyError
) -> None:
    rig.reader.answers["http://10.0.0.1:1/metrics"] = answer
    rig.checker.follow([ONE])
    await eventually(lambda: len(rig.watcher.passed) >= 3)
    assert "p-0" in rig.watcher.scrape_failures
    assert rig.watcher.failed == []


async def test_an_engine_that_hangs_delays_no_other(rig: Rig) -> None:
    rig.reader.answers["http://10.0.0.1:1/health"] = asyncio.Event()
    rig.checker.follow([ONE, TWO])
    await eventually(lambda: len(rig.watcher.passed) >= 3)
    assert set(rig.watcher.passed) == {"p-1"}


async def test_only_listed_engines_are_checked(rig: Rig) -> None:
    rig.checker.follow([ONE, TWO])
    await eventually(lambda: {"p-0", "p-1"} <= set(rig.watcher.passed))
    rig.checker.follow([engine("p-1", "http://10.0.0.1:9")])
    await asyncio.sleep(0)
    rig.reader.asked.clear()
    await eventually(lambda: len(rig.reader.asked) >= 4)
    assert {url.rsplit("/", 1)[0] for url in rig.reader.asked} == {"http://10.0.0.1:9"}


async def test_an_engine_can_be_checked_at_once() -> None:
    rig = Rig(CheckTiming(interval_s=60, return_interval_s=60, timeout_s=1.0))
    rig.checker.follow([ONE])
    await eventually(lambda: len(rig.watcher.passed) == 1)
    rig.checker.check_soon("p-0")
    rig.checker.check_soon("unknown")
    await eventually(lambda: len(rig.watcher.passed) == 2)
    await rig.checker.close()


async def test_the_real_reader_over_the_pool() -> None:
    async def serve(peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            await peer.send(json_answer(METRICS if head.startswith(b"GET /metrics") else b""))

    engines = EngineClient()
    watcher = Watcher()
    async with scripted_engine(serve) as found:
        checker = Checker(
            HttpReader(make_client(engines)), watcher, lease_duration_s=30, timing=TIMING
        )
        checker.follow([engine("p-0", f"http://{found.address.host}:{found.address.port}")])
        await eventually(lambda: len(watcher.passed) >= 3 and "p-0" in watcher.figures)
        assert found.num_connections == 1
    await eventually(lambda: ("p-0", True) in watcher.failed)
    await checker.close()
    await engines.close()


async def test_a_check_that_ends_by_itself_is_told_to_whoever_keeps_the_checks(rig: Rig) -> None:
    class Broken(Watcher):
        def check_passed(self, endpoint: str) -> None:
            raise RuntimeError(f"a bug with {endpoint}")

    rig.checker = Checker(rig.reader, Broken(), lease_duration_s=30, timing=TIMING)
    kept = asyncio.create_task(rig.checker.run())
    rig.checker.follow([ONE, TWO])
    rig.checker.follow([TWO])  # What is not followed any more has not failed.
    with pytest.raises(RuntimeError, match="a bug with p-1"):
        async with asyncio.timeout(10):
            await kept


async def test_checks_that_are_replaced_or_closed_have_not_failed(rig: Rig) -> None:
    kept = asyncio.create_task(rig.checker.run())
    rig.checker.follow([ONE, TWO])
    await eventually(lambda: {"p-0", "p-1"} <= set(rig.watcher.passed))
    rig.checker.follow([ONE])
    await rig.checker.close()
    assert not kept.done()
    kept.cancel()


async def test_answers_are_bounded_by_the_shortest_lease_of_all_that_are_checked() -> None:
    bounds: list[float] = []

    class Slow:
        async def get(self, url: str, *, timeout_s: float) -> Answer:
            assert url
            bounds.append(timeout_s)
            return OK

    checker = Checker(Slow(), Watcher(), lease_duration_s=30)
    checker.follow([ONE, engine("p-1", "http://10.0.0.1:2", leaseDurationSeconds=6)])
    await eventually(lambda: len(bounds) >= 2)
    await checker.close()
    assert set(bounds) == {1.0}
