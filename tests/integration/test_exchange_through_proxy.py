"""Answers, leases and clients that leave, through the proxy, on both kinds of engine.

One cluster per kind: one P with few blocks, one D that runs one request at a time, lease 6 s,
hand-off deadline 3 s. The case that kills D comes last.
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

LEASE_S = 6
EXTENSION_S = 4
HAND_OFF_S = 3
SLACK_S = 5.0
"""How late a protocol deadline may be seen; never how early."""
QUEUE_HELD_S = 25.0
LONG_TOKENS = 3900
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
            wait_until(lambda e=engine: e.is_idle, within_s=30.0, what=f"{engine.name} is idle")  # type: ignore[misc]

    def second_folder(self) -> Path:
        """A folder for one more proxy."""
        return self.folder / f"proxy-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def scene(kind: EngineKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One cluster and the reference, for all cases of a kind."""
    folder = tmp_path_factory.mktemp(f"through-proxy-{kind.name}")
    spec = resource(
        lease_s=LEASE_S,
        prefill_args=("--num-gpu-blocks-override=64", "--max-num-seqs=1", "--max-model-len=1900"),
        decode_args=("--num-gpu-blocks-override=512", "--max-num-seqs=1"),
        proxy={"handOffDeadlineSeconds": HAND_OFF_S, "maxHoldSeconds": 60},
    )
    env = {"VLLM_LOGGING_LEVEL": "DEBUG"} if kind.name == "sim" else {}
    # Nobody reads from D, so it does without the thread that lets an idle engine serve reads.
    spec["spec"]["decode"]["env"] = [{"name": "NIXL_PROG_THREAD", "value": "0"}]
    with (
        kind.start(EngineSpec(name="single"), logs=folder) as (reference,),
        up_cluster(kind.name, folder / "up", spec, env=env) as cluster,
    ):
        made = Scene(kind, cluster, reference, folder)
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
            within_s=30.0,
            what=f"{engine.name} has a queue",
        )
        yield
    finally:
        for other in others:
            other.leave()


def grown(engine: Engine, name: str, before: float) -> float:
    """How much a counter has grown."""
    return engine.metrics().totals.get(f"vllm:{name}", 0.0) - before


def total(engine: Engine, name: str) -> float:
    """A counter that may not have been written yet."""
    return engine.metrics().totals.get(f"vllm:{name}", 0.0)


def heartbeats(scene: Scene) -> int:
    """Extensions that P has logged."""
    log = scene.cluster.run_dir / "logs" / f"{scene.prefill.name}.log"
    return log.read_text(errors="replace").count("Heartbeat extended lease for request")


# Answers --------------------------------------------------------------------------------------


def test_forty_answers_equal_a_single_engine_s_and_each_moved_its_blocks(scene: Scene) -> None:
    d = scene.decode
    for number in range(40):
        prompt = fresh_prompt(40 + number)
        before = d.metrics()
        if number % 2:
            tokens = scene.proxy.stream_tokens(prompt)
        else:
            tokens = tokens_of(scene.proxy.complete(prompt))
        assert scene.expected(prompt) == tokens, f"exchange {number}"
        after = d.metrics()
        wait_until(lambda n=number: len(scene.proxy.records()) >= n + 2, within_s=5.0, what="log")  # type: ignore[misc]
        record = scene.proxy.records()[-1]

        def moved(name: str) -> float:
            return after[name] - before.totals.get(f"vllm:{name}", 0.0)  # noqa: B023 (called in this pass)

        assert 1 == moved("nixl_bytes_transferred_count")
        assert record["num_blocks"] * BLOCK_BYTES == moved("nixl_bytes_transferred_sum")
        computed = "prompt_tokens_by_source_total"
        local = after.of(computed, source="local_compute") - before.of(
            computed, source="local_compute"
        )
        assert local <= 1, "D computes the last token of the prompt at most"
        assert 1 == record["prefill_legs"]


# Leases ---------------------------------------------------------------------------------------


def test_a_lease_lives_as_long_as_the_request_waits_in_d(scene: Scene) -> None:
    prompt = fresh_prompt()
    p = scene.prefill
    expired, beats = total(p, "nixl_num_kv_expired_reqs_total"), heartbeats(scene)
    with held_queue(scene.decode):
        client = Leaver(scene.proxy.url, completion(prompt, max_tokens=16))
        wait_until(lambda: p.usage > 0, within_s=10.0, what="P holds the blocks")
        until = time.monotonic() + QUEUE_HELD_S
        while time.monotonic() < until:
            assert p.usage > 0, "P holds the blocks all the time"
            time.sleep(0.1)
    client.finish()
    assert 200 == client.status
    assert scene.expected(prompt) == tokens_of(client.answer)
    assert 0 == grown(p, "nixl_num_kv_expired_reqs_total", expired)
    # One heartbeat a second; a loaded machine may be late, but the lease outlives 4 s only.
    assert heartbeats(scene) - beats >= QUEUE_HELD_S / EXTENSION_S
    record = scene.proxy.records()[-1]
    assert (1, 1) == (record["prefill_legs"], record["decode_tries"])
    scene.proxy.assert_nothing_is_open()


# Clients that leave ---------------------------------------------------------------------------


def assert_all_clear(scene: Scene, proxy: Proxy, *, within_s: float) -> None:
    """Blocks are free and nothing is open, at the proxy and at the engines."""
    wait_until(lambda: scene.prefill.is_idle, within_s=within_s, what="P's blocks are free")
    wait_until(lambda: scene.decode.is_idle, within_s=within_s, what="D is idle")
    proxy.assert_nothing_is_open()


def test_a_client_that_leaves_while_p_works_leaves_nothing(scene: Scene) -> None:
    with held_queue(scene.prefill, requests=3, tokens=1500):
        client = Leaver(scene.proxy.url, completion(fresh_prompt(), max_tokens=16))
        wait_until(
            lambda: scene.proxy.counter("legs_in_flight", endpoint=scene.prefill.name) == 1,
            within_s=10.0,
            what="the prefill leg is out",
        )
        client.leave()
        scene.proxy.assert_nothing_is_open()
    assert_all_clear(scene, scene.proxy, within_s=SLACK_S)


def test_a_client_that_leaves_d_s_queue_frees_p_s_blocks(scene: Scene) -> None:
    expired = total(scene.prefill, "nixl_num_kv_expired_reqs_total")
    with held_queue(scene.decode):
        client = Leaver(scene.proxy.url, completion(fresh_prompt(), max_tokens=16))
        wait_until(lambda: scene.prefill.usage > 0, within_s=10.0, what="P holds the blocks")
        wait_until(
            lambda: scene.proxy.counter("legs_in_flight", endpoint=scene.decode.name) == 1,
            within_s=10.0,
            what="the decode leg is out",
        )
        client.leave()
        wait_until(lambda: scene.prefill.is_idle, within_s=SLACK_S, what="P's blocks are free")
        assert 0 == grown(scene.prefill, "nixl_num_kv_expired_reqs_total", expired)
        scene.proxy.assert_nothing_is_open()
    assert_all_clear(scene, scene.proxy, within_s=SLACK_S)


def test_a_client_that_leaves_a_stream_stops_the_decode(scene: Scene) -> None:
    client = Leaver(
        scene.proxy.url, completion(fresh_prompt(), max_tokens=LONG_TOKENS, stream=True)
    )
    wait_until(lambda: client.events > 3, within_s=30.0, what="the stream has begun")
    client.leave()
    assert_all_clear(scene, scene.proxy, within_s=SLACK_S)


def test_a_client_that_leaves_between_the_legs_costs_one_lease(scene: Scene) -> None:
    with gated_proxy(scene, connect_s=60.0) as (proxy, gate):
        client = Leaver(proxy.url, completion(fresh_prompt(), max_tokens=16))
        wait_until(lambda: scene.prefill.usage > 0, within_s=10.0, what="P holds the blocks")
        granted_by = time.monotonic()
        client.leave()
        proxy.assert_nothing_is_open()
        held_s = wait_until(
            lambda: scene.prefill.is_idle, within_s=LEASE_S + SLACK_S, what="the lease has ended"
        )
        assert time.monotonic() - granted_by <= LEASE_S + SLACK_S
        assert held_s >= LEASE_S - 2, "nobody can release it yet, so it lasts to its end"
        gate.open()
    assert_all_clear(scene, scene.proxy, within_s=SLACK_S)


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
    with gated_proxy(scene, connect_s=60.0) as (proxy, gate):

        def let_it_grow_late() -> None:
            wait_until(lambda: scene.prefill.usage > 0, within_s=10.0, what="P holds the blocks")
            time.sleep(HAND_OFF_S + 1)

        client = through_the_gate(proxy, gate, prompt, let_it_grow_late)
        assert scene.expected(prompt) == tokens_of(client.answer)
        wait_until(lambda: bool(proxy.records()), within_s=5.0, what="log")
        assert 2 == proxy.records()[-1]["prefill_legs"]
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
    with gated_proxy(scene, connect_s=120.0, lease=unclocked) as (proxy, gate):

        def reuse_the_blocks() -> None:
            p = scene.prefill
            wait_until(lambda: p.usage > 0, within_s=10.0, what="P holds the blocks")
            wait_until(lambda: p.is_idle, within_s=LEASE_S + SLACK_S, what="the lease has ended")
            for _ in range(30):
                body = completion(fresh_prompt(120), max_tokens=1)
                httpx.post(f"{p.url}/v1/completions", json=body, timeout=60.0)

        client = through_the_gate(proxy, gate, prompt, reuse_the_blocks)
        assert scene.expected(prompt) != tokens_of(client.answer)
        assert 1 == proxy.records()[-1]["prefill_legs"]


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

    wait_until(lambda: open_ones() == 0, within_s=15.0, what="idle connections are closed")


def test_the_blocks_of_a_dead_d_are_free_after_one_extension(scene: Scene) -> None:
    p = scene.prefill
    with held_queue(scene.decode):
        client = Leaver(scene.proxy.url, completion(fresh_prompt(), max_tokens=16))
        wait_until(lambda: p.usage > 0, within_s=10.0, what="P holds the blocks")
        granted_at = time.monotonic()
        time.sleep(LEASE_S)
        assert p.usage > 0, "D's heartbeats hold the lease past its first grant"
        scene.decode.kill9()
        killed_at = time.monotonic()
    wait_until(lambda: p.is_idle, within_s=EXTENSION_S + SLACK_S, what="P's blocks are free")
    freed_at = time.monotonic()
    assert freed_at - granted_at > LEASE_S
    assert freed_at - killed_at <= EXTENSION_S + SLACK_S
    client.finish()
    # There is no other D: the client is told, and not left to wait.
    assert 502 == client.status
    scene.proxy.assert_nothing_is_open()
