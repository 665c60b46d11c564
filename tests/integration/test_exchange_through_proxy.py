"""Answers, leases and clients that leave, through the proxy, on both kinds of engine.

One cluster per kind: one P with few blocks, one D that runs one request at a time. The case that
kills D comes last. Deadlines of the protocol may be seen ``SLACK_S`` late and never early; anything
else is waited for as long as ``SETTLE_S``, and what must not have happened is told by counters.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from pdcluster_lease.timing import LeaseTiming
from tests.support.engines import BLOCK_BYTES, EngineKind, EngineSpec, RunningEngine
from tests.support.tcp_gate import TcpGate
from tests.support.up_cluster import (
    Engine,
    Proxy,
    UpCluster,
    completion,
    resource,
    up_cluster,
    wait_until,
)

LEASE_S = {"sim": 6, "vllm": 12}
"""By kind: real engines on a busy machine miss heartbeats, so theirs may come later."""
HAND_OFF_S = {"sim": 3, "vllm": 8}
SLACK_S = 5.0
"""How late a protocol deadline may be seen; never how early."""
SETTLE_S = 60.0
"""How long to wait for what has to happen but has no deadline."""
LONG_TOKENS = 3900
EXPIRED = "nixl_num_kv_expired_reqs_total"
WORDS = (
    "a prefill engine keeps what it has read until a decode engine has taken it over and the lease "
    "between them ends when the last block was read or when nobody renewed it in time "
)


@dataclass
class Scene:
    """What every case needs."""

    kind: EngineKind
    cluster: UpCluster
    reference: RunningEngine
    folder: Path
    timing: LeaseTiming
    hand_off_s: int

    @property
    def proxy(self) -> Proxy:
        return self.cluster.proxy

    @property
    def prefill(self) -> Engine:
        return self.cluster.only("prefill")

    @property
    def decode(self) -> Engine:
        return self.cluster.only("decode")

    def expected(self, prompt: str, *, max_tokens: int = 16) -> list[int]:
        """What an engine without connector answers."""
        body = completion(prompt, max_tokens=max_tokens)
        tokens = self.reference.post("/v1/completions", body).json()["choices"][0]["token_ids"]
        assert len(tokens) == max_tokens
        return list(tokens)

    def settle(self) -> None:
        """Wait until nothing is left of earlier cases."""
        for engine in (self.prefill, self.decode):
            wait_until(lambda e=engine: e.is_idle, within_s=SETTLE_S, what=f"{engine.name} is idle")  # type: ignore[misc]

    def second_folder(self) -> Path:
        """A folder for one more proxy."""
        return self.folder / f"proxy-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def scene(kind: EngineKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One cluster and the reference, for all cases of a kind."""
    folder = tmp_path_factory.mktemp(f"through-proxy-{kind.name}")
    lease_s, hand_off_s = LEASE_S[kind.name], HAND_OFF_S[kind.name]
    spec = resource(
        lease_s=lease_s,
        prefill_args=("--num-gpu-blocks-override=64", "--max-num-seqs=1", "--max-model-len=1900"),
        decode_args=("--num-gpu-blocks-override=512", "--max-num-seqs=1"),
        proxy={"handOffDeadlineSeconds": hand_off_s, "maxHoldSeconds": 600},
    )
    env = {"VLLM_LOGGING_LEVEL": "DEBUG"} if kind.name == "sim" else {}
    # Nobody reads from D, so it does without the thread that lets an idle engine serve reads.
    spec["spec"]["decode"]["env"] = [{"name": "NIXL_PROG_THREAD", "value": "0"}]
    with (
        kind.start(EngineSpec(name="single"), logs=folder) as (reference,),
        up_cluster(kind.name, folder / "up", spec, env=env) as cluster,
    ):
        timing = LeaseTiming.from_duration(lease_s)
        made = Scene(kind, cluster, reference, folder, timing, hand_off_s)
        # The pair meets first: its later hand-offs need no handshake.
        cluster.proxy.complete(fresh_prompt())
        yield made


@pytest.fixture(autouse=True)
def quiet(scene: Scene) -> None:
    """Each case begins with idle engines."""
    scene.settle()


def fresh_prompt(words: int = 60) -> str:
    """A prompt that no cache has seen, of several blocks."""
    return uuid.uuid4().hex + " " + " ".join((WORDS * 4).split()[:words])


def tokens_of(answer: dict[str, Any]) -> list[int]:
    """The token ids of a completion."""
    return list(answer["choices"][0]["token_ids"])


class Leaver:
    """A client in a thread of its own that can leave at any moment.

    Args:
        url: Where it asks.
        body: What it asks.
    """

    def __init__(self, url: str, body: dict[str, object]) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=120.0)
        self._body = body
        self.events = 0
        self.status = 0
        self.answer: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._connection.connect()
        self._thread.start()

    def _run(self) -> None:
        headers = {"content-type": "application/json"}
        with (
            contextlib.closing(self._connection),
            contextlib.suppress(OSError, http.client.HTTPException, ValueError),
        ):
            self._connection.request(
                "POST", "/v1/completions", json.dumps(self._body), headers=headers
            )
            with self._connection.getresponse() as answer:
                self.status = answer.status
                if not self._body.get("stream"):
                    self.answer = json.loads(answer.read())
                    return
                for line in answer:
                    self.events += line.startswith(b"data: ")

    def leave(self) -> None:
        """Close the connection, wherever the exchange is."""
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self.finish()

    def finish(self) -> None:
        """Wait for its end."""
        self._thread.join(120.0)
        assert not self._thread.is_alive(), "the client has its answer"


@contextlib.contextmanager
def held_queue(engine: Engine, *, requests: int = 12, tokens: int = LONG_TOKENS) -> Iterator[None]:
    """Keep an engine that runs one request at a time busy with others until the block ends."""
    body = completion(fresh_prompt(20), max_tokens=tokens, stream=True)
    others = [Leaver(engine.url, dict(body)) for _ in range(requests)]
    try:
        wait_until(
            lambda: engine.metrics()["num_requests_waiting"] >= requests - 1,
            within_s=SETTLE_S,
            what=f"{engine.name} has a queue",
        )
        yield
    finally:
        for other in others:
            other.leave()


def total(engine: Engine, name: str) -> float:
    """A counter that may not have been written yet."""
    return engine.metrics().totals.get(f"vllm:{name}", 0.0)


def settled(engine: Engine, name: str, expected: float) -> float:
    """Wait until a counter, which vLLM writes some time later, has come to a value; return it."""
    until = time.monotonic() + SETTLE_S
    while (value := total(engine, name)) != expected and time.monotonic() < until:
        time.sleep(0.1)
    return value


def nudge(engine: Engine) -> None:
    """Let an engine step once: real ones report their figures only then."""
    body = completion(fresh_prompt(), max_tokens=1)
    httpx.post(f"{engine.url}/v1/completions", json=body, timeout=120.0).raise_for_status()


@contextlib.contextmanager
def nothing_expires(scene: Scene) -> Iterator[None]:
    """Demand that P counts no expiry: whatever frees a block in between is no lease's end."""
    nudge(scene.prefill)
    before = total(scene.prefill, EXPIRED)
    yield
    nudge(scene.prefill)
    assert before == total(scene.prefill, EXPIRED)


def wait_held(scene: Scene) -> None:
    """Wait until P pins something."""
    wait_until(lambda: scene.prefill.usage > 0, within_s=SETTLE_S, what="P holds the blocks")


def wait_freed(scene: Scene, *, within_s: float = SETTLE_S) -> float:
    """Wait until P pins nothing; return the instant at which that was seen."""
    wait_until(lambda: scene.prefill.is_idle, within_s=within_s, what="P's blocks are free")
    return time.monotonic()


def record_after(proxy: Proxy, num_seen: int) -> dict[str, Any]:
    """Wait for one more line of the exchange log and return it."""
    wait_until(lambda: len(proxy.records()) > num_seen, within_s=SETTLE_S, what="the log's line")
    return proxy.records()[-1]


def heartbeats(scene: Scene) -> int:
    """Extensions that P has logged."""
    log = scene.cluster.run_dir / "logs" / f"{scene.prefill.name}.log"
    return log.read_text(errors="replace").count("Heartbeat extended lease for request")


# Answers --------------------------------------------------------------------------------------


def test_forty_answers_equal_a_single_engine_s_and_each_moved_its_blocks(scene: Scene) -> None:
    d = scene.decode
    for number in range(40):
        prompt = fresh_prompt(40 + number)
        before, num_seen = d.metrics(), len(scene.proxy.records())
        if number % 2:
            tokens = scene.proxy.stream_tokens(prompt)
        else:
            tokens = tokens_of(scene.proxy.complete(prompt))
        assert scene.expected(prompt) == tokens, f"exchange {number}"
        record = record_after(scene.proxy, num_seen)
        num_moved = before.totals.get("vllm:nixl_bytes_transferred_count", 0.0) + 1
        assert num_moved == settled(d, "nixl_bytes_transferred_count", num_moved)
        after = d.metrics()

        def moved(name: str) -> float:
            return after[name] - before.totals.get(f"vllm:{name}", 0.0)  # noqa: B023 (called in this pass)

        assert record["num_blocks"] * BLOCK_BYTES == moved("nixl_bytes_transferred_sum")
        computed = "prompt_tokens_by_source_total"
        local = after.of(computed, source="local_compute") - before.of(
            computed, source="local_compute"
        )
        assert local <= 1, "D computes the last token of the prompt at most"
        assert 1 == record["prefill_legs"]


# Leases ---------------------------------------------------------------------------------------


def test_a_lease_lives_as_long_as_the_request_waits_in_d(scene: Scene) -> None:
    prompt, p = fresh_prompt(), scene.prefill
    held_s = 2 * scene.timing.duration_s + 1
    beats, num_seen = heartbeats(scene), len(scene.proxy.records())
    with nothing_expires(scene):
        with held_queue(scene.decode):
            client = Leaver(scene.proxy.url, completion(prompt, max_tokens=16))
            wait_held(scene)
            until = time.monotonic() + held_s
            while time.monotonic() < until:
                assert p.usage > 0, "P holds the blocks all the time"
                time.sleep(0.1)
        client.finish()
    assert 200 == client.status
    assert scene.expected(prompt) == tokens_of(client.answer)
    # A loaded machine may be late, but the lease outlives a heartbeat by its extension only.
    assert heartbeats(scene) - beats >= held_s // scene.timing.extension_s
    record = record_after(scene.proxy, num_seen)
    assert (1, 1) == (record["prefill_legs"], record["decode_tries"])
    scene.proxy.assert_nothing_is_open()


# Clients that leave ---------------------------------------------------------------------------


def assert_all_clear(scene: Scene, proxy: Proxy) -> None:
    """Blocks are free and nothing is open, at the proxy and at the engines."""
    wait_freed(scene)
    wait_until(lambda: scene.decode.is_idle, within_s=SETTLE_S, what="D is idle")
    proxy.assert_nothing_is_open()


def test_a_client_that_leaves_while_p_works_leaves_nothing(scene: Scene) -> None:
    with nothing_expires(scene):
        with held_queue(scene.prefill, tokens=1500):
            client = Leaver(scene.proxy.url, completion(fresh_prompt(), max_tokens=16))
            wait_until(
                lambda: scene.proxy.counter("legs_in_flight", endpoint=scene.prefill.name) == 1,
                within_s=SETTLE_S,
                what="the prefill leg is out",
            )
            client.leave()
            scene.proxy.assert_nothing_is_open()
        assert_all_clear(scene, scene.proxy)


def test_a_client_that_leaves_d_s_queue_frees_p_s_blocks(scene: Scene) -> None:
    with nothing_expires(scene), held_queue(scene.decode):
        client = Leaver(scene.proxy.url, completion(fresh_prompt(), max_tokens=16))
        wait_held(scene)
        wait_until(
            lambda: scene.proxy.counter("legs_in_flight", endpoint=scene.decode.name) == 1,
            within_s=SETTLE_S,
            what="the decode leg is out",
        )
        client.leave()
        wait_freed(scene)
        scene.proxy.assert_nothing_is_open()
    assert_all_clear(scene, scene.proxy)


def test_a_client_that_leaves_a_stream_stops_the_decode(scene: Scene) -> None:
    def num_complete() -> float:
        return scene.decode.metrics().of("request_success_total", finished_reason="length")

    complete = num_complete()
    client = Leaver(
        scene.proxy.url, completion(fresh_prompt(), max_tokens=LONG_TOKENS, stream=True)
    )
    wait_until(lambda: client.events > 3, within_s=SETTLE_S, what="the stream has begun")
    client.leave()
    assert_all_clear(scene, scene.proxy)
    assert complete == num_complete(), "D was stopped, not complete"


def test_a_client_that_leaves_between_the_legs_costs_one_lease(scene: Scene) -> None:
    nudge(scene.prefill)
    expired = total(scene.prefill, EXPIRED)
    with gated_proxy(scene, connect_s=600.0) as (proxy, gate):
        asked_at = time.monotonic()
        client = Leaver(proxy.url, completion(fresh_prompt(), max_tokens=16))
        wait_held(scene)
        held_at = time.monotonic()
        client.leave()
        freed_at = wait_freed(scene, within_s=scene.timing.duration_s + SLACK_S)
        assert freed_at - held_at <= scene.timing.duration_s + SLACK_S
        assert freed_at - asked_at >= scene.timing.duration_s, "nobody can release it yet"
        assert expired + 1 == settled(scene.prefill, EXPIRED, expired + 1)
        proxy.assert_nothing_is_open()
        gate.open()
    assert_all_clear(scene, scene.proxy)


# The lease clock ------------------------------------------------------------------------------


@contextlib.contextmanager
def gated_proxy(
    scene: Scene, *, connect_s: float, lease: dict[str, object] | None = None
) -> Iterator[tuple[Proxy, TcpGate]]:
    """A second proxy whose way to D leads through a gate, closed once the proxy is ready."""
    host, port = scene.decode.url.removeprefix("http://").split(":")
    with TcpGate((host, int(port))) as gate:

        def endpoint(each: dict[str, Any]) -> dict[str, Any]:
            if each["role"] == "decode":
                each = {**each, "url": f"http://127.0.0.1:{gate.port}"}
            if lease is not None:
                each = {**each, "leaseDurationSeconds": lease["durationSeconds"]}
            return each

        changes: dict[str, Any] = {"timeouts": {"connectSeconds": connect_s}}
        if lease is not None:
            changes["lease"] = lease
        with scene.cluster.second_proxy(
            scene.second_folder(), config=changes, endpoint=endpoint
        ) as proxy:
            # The proxy has seen D through the open gate; from here on connects to it hang.
            gate.close()
            yield proxy, gate


def through_the_gate(
    proxy: Proxy, gate: TcpGate, prompt: str, meanwhile: Callable[[], None]
) -> Leaver:
    """Send a request, do something while its hand-off hangs, then let it through."""
    client = Leaver(proxy.url, completion(prompt, max_tokens=16))
    meanwhile()
    gate.open()
    client.finish()
    assert 200 == client.status, client.answer
    return client


def test_a_hand_off_past_its_deadline_is_prefilled_again(scene: Scene) -> None:
    prompt = fresh_prompt()
    with gated_proxy(scene, connect_s=600.0) as (proxy, gate):

        def let_it_grow_late() -> None:
            wait_held(scene)
            time.sleep(scene.hand_off_s + 1)

        client = through_the_gate(proxy, gate, prompt, let_it_grow_late)
        assert scene.expected(prompt) == tokens_of(client.answer)
        assert 2 == record_after(proxy, 0)["prefill_legs"]
        assert 1 == proxy.counter("re_prefills_total")
        proxy.assert_nothing_is_open()


def test_without_the_clock_the_same_delay_gives_a_wrong_answer(scene: Scene) -> None:
    """So that the case above can fail: a proxy that is told a lease of 600 s hands over late."""
    prompt = fresh_prompt()
    unclocked: dict[str, object] = {
        "durationSeconds": 600,
        "handOffDeadlineSeconds": None,
        "maxHoldSeconds": 600,
    }
    with gated_proxy(scene, connect_s=600.0, lease=unclocked) as (proxy, gate):

        def reuse_the_blocks() -> None:
            wait_held(scene)
            wait_freed(scene, within_s=scene.timing.duration_s + SLACK_S)
            for _ in range(30):
                body = completion(fresh_prompt(120), max_tokens=1)
                httpx.post(f"{scene.prefill.url}/v1/completions", json=body, timeout=120.0)

        client = through_the_gate(proxy, gate, prompt, reuse_the_blocks)
        assert scene.expected(prompt) != tokens_of(client.answer)
        assert 1 == record_after(proxy, 0)["prefill_legs"]


# Connections, and an engine that dies ----------------------------------------------------------


def test_no_connection_to_an_engine_outlives_its_use_for_long(scene: Scene) -> None:
    scene.proxy.complete(fresh_prompt())
    ports = {int(e.url.rpartition(":")[2]) for e in (scene.prefill, scene.decode)}

    def open_ones() -> int:
        count = 0
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if "pdcluster_proxy.worker" in line:
                with contextlib.suppress(psutil.Error):
                    count += sum(
                        bool(c.raddr) and c.raddr.port in ports and c.status == "ESTABLISHED"
                        for c in process.net_connections("inet4")
                    )
        return count

    wait_until(lambda: open_ones() == 0, within_s=SETTLE_S, what="idle connections are closed")


def test_the_blocks_of_a_dead_d_are_free_after_one_extension(scene: Scene) -> None:
    p, timing = scene.prefill, scene.timing
    asked_at = time.monotonic()
    with held_queue(scene.decode):
        client = Leaver(scene.proxy.url, completion(fresh_prompt(), max_tokens=16))
        wait_held(scene)
        time.sleep(timing.duration_s)
        assert p.usage > 0, "D's heartbeats hold the lease past its first grant"
        scene.decode.kill9()
        killed_at = time.monotonic()
    freed_at = wait_freed(scene, within_s=timing.extension_s + SLACK_S)
    assert freed_at - asked_at > timing.duration_s
    assert freed_at - killed_at <= timing.extension_s + SLACK_S
    client.finish()
    # There is no other D: the client is told, and not left to wait.
    assert 502 == client.status
    scene.proxy.assert_nothing_is_open()
