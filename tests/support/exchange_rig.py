"""The proxy's application over scripted engines: real wire, a companion that only records."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from starlette.applications import Starlette
from starlette.routing import Route

from pdcluster_api.proxy_config import (
    AdmissionConfig,
    LeaseConfig,
    ListenConfig,
    ProxyConfig,
    TimeoutsConfig,
)
from pdcluster_proxy.api.openai import ExchangeEndpoint, UnfinishedBodies
from pdcluster_proxy.core.bodies import Api
from pdcluster_proxy.core.messages import (
    EndpointState,
    EndpointView,
    LeaseStep,
    Outcome,
    PoolSnapshot,
)
from pdcluster_proxy.core.ports import Address
from pdcluster_proxy.exchange.journal import Journal
from pdcluster_proxy.exchange.worker import Worker
from pdcluster_proxy.wire.engine_client import EngineClient
from pdcluster_proxy.wire.engine_leg import EngineLeg
from tests.support.edge import Edge, edge
from tests.support.scripted_engine import (
    LAST_CHUNK,
    STREAM_HEAD,
    Peer,
    Script,
    ScriptedEngine,
    chunk,
    json_answer,
    scripted_engine,
)

MODEL = "m"
SIDE_CHANNEL = ("127.0.0.9", 5600)


def params(request_id: str = "cmpl-1", **fields: object) -> dict[str, object]:
    """P's object."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2]],
        "remote_engine_id": "engine-p",
        "remote_request_id": request_id,
        "remote_host": SIDE_CHANNEL[0],
        "remote_port": SIDE_CHANNEL[1],
        "tp_size": 1,
        "remote_num_tokens": 20,
        "unknown_field": 1.5,
    } | fields


def prefill_answer(request_id: str = "cmpl-1", **fields: object) -> bytes:
    """P's whole HTTP answer."""
    body: dict[str, object] = {
        "choices": [{"index": 0, "text": "", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": 4}},
        "kv_transfer_params": params(request_id),
    }
    return json_answer(json.dumps(body | fields).encode())


def decode_answer(text: str = "hello") -> bytes:
    """D's whole HTTP answer to a request that is not streamed."""
    body = {
        "id": "cmpl-d",
        "choices": [{"index": 0, "text": text, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 20,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 20},
        },
        "kv_transfer_params": None,
    }
    return json_answer(json.dumps(body).encode())


def token_event(text: str) -> bytes:
    """One token of a completion stream."""
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text}]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def decode_stream(*tokens: str) -> bytes:
    """D's whole HTTP answer to a streamed request."""
    events = [chunk(token_event(token)) for token in tokens]
    return STREAM_HEAD + b"".join(events) + chunk(DONE) + LAST_CHUNK


async def hang(peer: Peer) -> None:
    """Take the request and never answer."""
    await peer.request()
    await peer.until_closed()


async def reset_after_accept(peer: Peer) -> None:
    """Take the request and reset."""
    await peer.request()
    peer.reset()


@dataclass
class Recorder:
    """A companion that keeps what it was told."""

    snapshot: PoolSnapshot = field(default_factory=lambda: PoolSnapshot(0))
    leases: list[LeaseStep] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    counts: list[tuple[str, tuple[str, ...], float]] = field(default_factory=list)
    began: list[tuple[str, int]] = field(default_factory=list)
    legs: int = 0
    is_draining: bool = False
    _callbacks: list[Callable[[PoolSnapshot], None]] = field(default_factory=list)

    def on_snapshot(self, callback: Callable[[PoolSnapshot], None]) -> None:
        self._callbacks.append(callback)

    def push(self, *endpoints: EndpointView) -> None:
        """Send the worker a new snapshot."""
        self.snapshot = PoolSnapshot(self.snapshot.seq + 1, endpoints)
        for callback in self._callbacks:
            callback(self.snapshot)

    def leg_began(self, endpoint: str, prompt_tokens: int) -> None:
        self.legs += 1
        self.began.append((endpoint, prompt_tokens))

    def leg_ended(self, endpoint: str, prompt_tokens: int, outcome: Outcome | None) -> None:
        self.legs -= 1
        self.began.remove((endpoint, prompt_tokens))
        if outcome is not None:
            self.outcomes.append(outcome)

    def lease(self, event: LeaseStep) -> None:
        self.leases.append(event)

    def count(self, name: str, labels: tuple[str, ...], amount: float = 1.0) -> None:
        self.counts.append((name, labels, amount))

    def observe(self, name: str, labels: tuple[str, ...], value: float) -> None:
        self.counts.append((name, labels, value))

    @property
    def lease_steps(self) -> list[str]:
        """The steps of all leases, in order."""
        return [event.kind.value for event in self.leases]


class Clock:
    """Monotonic seconds that a test may push forward."""

    def __init__(self) -> None:
        self.skew_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skew_s


class WatchedEngines:
    """The real engine client; a test may act before each connect."""

    def __init__(self) -> None:
        self.client = EngineClient(sweep_interval_s=0.02)
        self.before_connect: Callable[[Address], Awaitable[None]] | None = None

    async def connect(self, address: Address, *, timeout_s: float) -> EngineLeg:
        """Connect, after what the test wants to happen first."""
        if self.before_connect is not None:
            await self.before_connect(address)
        return await self.client.connect(address, timeout_s=timeout_s)


@dataclass
class Rig:
    """A worker's application on a loopback port, its engines and what it reported."""

    worker: Worker
    edge: Edge
    companion: Recorder
    engines: WatchedEngines
    clock: Clock
    prefill: list[ScriptedEngine]
    decode: list[ScriptedEngine]
    log: io.BytesIO
    unfinished: UnfinishedBodies

    def endpoint(self, name: str, engine: ScriptedEngine, **fields: object) -> EndpointView:
        """One engine as a snapshot shows it."""
        facts: dict[str, object] = {
            "name": name,
            "role": "prefill" if name.startswith("p") else "decode",
            "host": engine.address.host,
            "port": engine.address.port,
            "side_channel_host": SIDE_CHANNEL[0],
            "side_channel_port": SIDE_CHANNEL[1],
            "revision": "r1",
            "state": EndpointState.READY,
            "incarnation": 1,
            "lease_duration_s": 30,
        }
        return EndpointView(**(facts | fields))  # type: ignore[arg-type]

    def publish(self, *, decode: bool = True) -> None:
        """Push a snapshot with all engines, or with the prefill engines only."""
        views = [self.endpoint(f"p{n}", e) for n, e in enumerate(self.prefill, 1)]
        if decode:
            views += [self.endpoint(f"d{n}", e) for n, e in enumerate(self.decode, 1)]
        self.companion.push(*views)

    def pass_time(self, seconds: float) -> None:
        """Let time pass while the loop goes on ticking."""
        self.clock.skew_s += seconds
        self.worker.last_tick_at = self.clock()

    @property
    def num_open(self) -> int:
        """Engine connections that carry a leg now."""
        return self.engines.client.num_open - self.engines.client.num_idle

    def records(self) -> list[dict[str, object]]:
        """The exchange log so far."""
        self.worker.journal.flush()
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def assert_nothing_is_left(self) -> None:
        """No leg, place, count or lease outlives its exchange."""
        assert self.num_open == 0
        assert self.companion.legs == 0
        assert self.worker.legs.by_endpoint == {}
        assert (self.worker.gate.running, self.worker.gate.waiting) == (0, 0)
        granted = self.companion.lease_steps.count("granted")
        assert granted == self.companion.lease_steps.count("ended")


def config(**fields: object) -> ProxyConfig:
    """A configuration with short bounds."""
    facts: dict[str, object] = {
        "cluster": "demo",
        "model": MODEL,
        "listen": ListenConfig(host="127.0.0.1", port=8080),
        "admin": ListenConfig(host="127.0.0.1", port=9090),
        "lease": LeaseConfig(duration_seconds=30, max_hold_seconds=120),
        "timeouts": TimeoutsConfig(
            connect_seconds=1.0, request_seconds=600.0, first_byte_seconds=20.0, idle_seconds=5.0
        ),
        "admission": AdmissionConfig(max_in_flight=64, max_queue=8, queue_timeout_seconds=5.0),
        "endpoints_file": "unused",
        "grace_seconds": 5.0,
    }
    return ProxyConfig(**(facts | fields))  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def rig(
    prefill: list[Script], decode: list[Script], settings: ProxyConfig | None = None
) -> AsyncIterator[Rig]:
    """Run the application over engines that follow ``prefill`` and ``decode``."""
    async with contextlib.AsyncExitStack() as stack:
        ps = [await stack.enter_async_context(scripted_engine(s)) for s in prefill]
        ds = [await stack.enter_async_context(scripted_engine(s)) for s in decode]
        companion, engines, clock, log = Recorder(), WatchedEngines(), Clock(), io.BytesIO()
        stack.push_async_callback(engines.client.close)
        worker = Worker(
            settings or config(),
            workers=1,
            engines=engines,
            companion=companion,
            journal=Journal(log),
            rng=Random(7),
            nonce="n",
            clock=clock,
        )
        for background in (worker.tick, worker.write_journal):
            stack.callback(asyncio.create_task(background()).cancel)
        unfinished = UnfinishedBodies()
        app = Starlette(
            routes=[
                Route("/v1/completions", ExchangeEndpoint(worker, Api.COMPLETIONS, unfinished)),
                Route("/v1/chat/completions", ExchangeEndpoint(worker, Api.CHAT, unfinished)),
            ]
        )
        served = await stack.enter_async_context(edge(app))
        made = Rig(worker, served, companion, engines, clock, ps, ds, log, unfinished)
        made.publish()
        yield made


@dataclass
class Answer:
    """What a client got."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool
    """The body ended by its framing."""

    @property
    def json(self) -> dict[str, object]:
        parsed = json.loads(self.body)
        assert isinstance(parsed, dict)
        return parsed

    @property
    def code(self) -> object:
        error = self.json["error"]
        assert isinstance(error, dict)
        return error["code"]


def request_bytes(path: str = "/v1/completions", **fields: object) -> bytes:
    """One client request."""
    body = json.dumps({"model": MODEL, "prompt": "once upon a time"} | fields).encode()
    return (
        b"POST %b HTTP/1.1\r\nhost: h\r\nx-request-id: client-1\r\ncontent-length: %d\r\n\r\n%b"
        % (
            path.encode(),
            len(body),
            body,
        )
    )


async def ask(rig: Rig, *, raw: bytes | None = None, **fields: object) -> Answer:
    """Send one request and read its whole answer."""
    reader, writer = await rig.edge.open()
    try:
        writer.write(raw or request_bytes(**fields))
        async with asyncio.timeout(10):
            return await read_answer(reader)
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read one HTTP answer, as far as it goes."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status = int(head.split(" ", 2)[1])
    lines = [line.partition(": ") for line in head.split("\r\n")[1:] if line]
    headers = {name.lower(): value for name, _, value in lines}
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
        return Answer(status, headers, body, is_whole=True)
    body = b""
    while True:
        size_line = await reader.readline()
        if not size_line:
            return Answer(status, headers, body, is_whole=False)
        size = int(size_line, 16)
        part = await reader.read(size + 2) if size == 0 else await reader.readexactly(size + 2)
        if size == 0:
            return Answer(status, headers, body, is_whole=True)
        body += part[:-2]
