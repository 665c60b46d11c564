"""The engines a contract case talks to, and the words it uses with them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from pdcluster_lease.params import PREFILL_REQUEST_RAW
from tests.support.engines import EngineKind, EngineSpec, RunningEngine

LEASE_S = 6
INTERVAL_S = 1
EXTENSION_S = 4
NUM_LONG_REQUESTS = 3
SLACK_S = 5.0
"""How late a protocol deadline may be seen; never how early."""

SPECS = {
    spec.name: spec
    for spec in (
        # Few blocks, so that freed ones are soon reused.
        EngineSpec(name="prefill", role="prefill", num_blocks=64, max_model_len=1024),
        # One request at a time, so that others queue.
        EngineSpec(name="decode", role="decode", max_num_seqs=1),
        EngineSpec(name="recompute", role="decode", policy="recompute"),
        EngineSpec(name="single"),
    )
}

_FILLER = (
    "the quick brown fox jumps over a lazy dog while prefill and decode engines exchange blocks "
    "and the lazy fox watches a brown river under the old bridge near a quiet garden wall "
)


class Fleet:
    """Engines of one kind, started together at first use."""

    def __init__(self, kind: EngineKind, *, logs: Path) -> None:
        self.kind = kind
        self._logs = logs
        self._running: dict[str, RunningEngine] = {}

    @property
    def prefill(self) -> RunningEngine:
        """P: lease 6 s, 64 blocks."""
        return self._get("prefill")

    @property
    def decode(self) -> RunningEngine:
        """D: lease 6 s, one request at a time, load failure policy ``fail``."""
        return self._get("decode")

    @property
    def recompute(self) -> RunningEngine:
        """D with load failure policy ``recompute``."""
        return self._get("recompute")

    @property
    def single(self) -> RunningEngine:
        """An engine without connector: the reference."""
        return self._get("single")

    def decoder(self, policy: str) -> RunningEngine:
        """Return the D with this load failure policy."""
        return self.decode if policy == "fail" else self.recompute

    def _get(self, name: str) -> RunningEngine:
        # Real engines take long to start, so they start together; one that a case ended is
        # replaced when it is next asked for.
        missing = [
            each
            for each in SPECS
            if each not in self._running
            or (each == name and self._running[each].process.poll() is not None)
        ]
        for each in missing:
            if each in self._running:
                self._running[each].stop()
            self._running[each] = self.kind.launch(SPECS[each], logs=self._logs)
        for each in missing:
            self._running[each].wait()
        return self._running[name]

    def launch(self, *specs: EngineSpec) -> tuple[RunningEngine, ...]:
        """Start engines together, for cases that stop them."""
        engines = tuple(self.kind.launch(spec, logs=self._logs) for spec in specs)
        for engine in engines:
            engine.wait()
        return engines

    def stop(self) -> None:
        """Stop all of them."""
        for engine in self._running.values():
            engine.stop()


def fresh_prompt(words: int = 40) -> str:
    """Return a prompt that no cache has seen, of several blocks."""
    return uuid.uuid4().hex + " " + " ".join((_FILLER * 3).split()[:words])


def ask(
    engine: RunningEngine,
    prompt: str,
    *,
    params: object = None,
    max_tokens: int = 16,
    timeout_s: float = 120.0,
    model: str = "tiny",
) -> httpx.Response:
    """Complete a prompt greedily, token ids included."""
    body: dict[str, object] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    if params is not None:
        body["kv_transfer_params"] = params
    return engine.post("/v1/completions", body, timeout_s=timeout_s)


def tokens_of(answer: httpx.Response) -> list[int]:
    """Return the token ids of an answer."""
    assert answer.status_code == httpx.codes.OK, answer.text
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return tokens


def prefill(engine: RunningEngine, prompt: str) -> dict[str, object]:
    """Run the prefill leg and return the params of its grant."""
    answer = ask(engine, prompt, params=json.loads(PREFILL_REQUEST_RAW), max_tokens=1)
    assert answer.status_code == httpx.codes.OK, answer.text
    params: dict[str, object] = answer.json()["kv_transfer_params"]
    assert params is not None
    return params


def eventually(condition: Callable[[], bool], *, within_s: float, why: str) -> float:
    """Poll until ``condition`` holds; return how long that took."""
    started_at = time.monotonic()
    while not condition():
        if time.monotonic() - started_at > within_s:
            pytest.fail(f"not within {within_s} s: {why}")
        time.sleep(0.05)
    return time.monotonic() - started_at


def is_free(engine: RunningEngine) -> bool:
    """Say whether no block is in use: no request runs and no lease is held."""
    return engine.metrics()["kv_cache_usage_perc"] == 0.0


def wait_free(engine: RunningEngine, *, within_s: float = SLACK_S) -> float:
    """Wait until no block is in use; return how long that took."""
    return eventually(
        lambda: is_free(engine), within_s=within_s, why=f"{engine.spec.name} holds blocks"
    )


def settled(engine: RunningEngine, name: str, expected: float) -> float:
    """Wait until a counter, which vLLM logs about once a second, has come to a value; return it."""
    until = time.monotonic() + SLACK_S
    while time.monotonic() < until:
        value = engine.metrics()[name]
        if value == expected:
            break
        time.sleep(0.1)
    return engine.metrics()[name]


@contextmanager
def busy(engine: RunningEngine) -> Iterator[None]:
    """Keep a one-at-a-time engine busy with long requests, until left."""
    held = [
        engine.open_request("/v1/completions", long_request()) for _ in range(NUM_LONG_REQUESTS)
    ]
    try:
        eventually(
            lambda: engine.metrics()["num_requests_running"] >= 1, within_s=30.0, why="D is idle"
        )
        yield
    finally:
        for connection in held:
            connection.close()


def long_request(max_tokens: int = 3900) -> dict[str, object]:
    """Return the body of a request that runs for many seconds."""
    return {
        "model": "tiny",
        "prompt": uuid.uuid4().hex,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
