"""The engines a contract case talks to, and the words it uses with them.

How late something may come is stated in two ways. A deadline of the protocol may be seen
``SLACK_S`` late, and never early: instants are taken before the question and after the answer, so
that a slow machine can only make a lease look longer. What has no deadline is waited for as long as
``SETTLE_S``, which only tells slow from never; what must not have happened in the meantime is told
by counters, not by the time it took.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from pdcluster_lease.params import PREFILL_REQUEST_RAW
from pdcluster_lease.timing import LeaseTiming
from tests.support.engines import EngineKind, EngineSpec, RunningEngine

LEASE_S = {"sim": 6, "vllm": 12}
"""By kind: real engines on a busy machine miss heartbeats, so theirs may come later."""
SLACK_S = 5.0
"""How late a protocol deadline may be seen; never how early."""
SETTLE_S = 60.0
"""How long to wait for what has to happen but has no deadline."""
NUM_LONG_REQUESTS = 12
EXPIRED = "nixl_num_kv_expired_reqs_total"
LATE_READS = "nixl_num_notifications_after_expiry_total"

_FILLER = (
    "the quick brown fox jumps over a lazy dog while prefill and decode engines exchange blocks "
    "and the lazy fox watches a brown river under the old bridge near a quiet garden wall "
)


def _specs(lease_s: int) -> dict[str, EngineSpec]:
    specs = (
        # Few blocks, so that freed ones are soon reused.
        EngineSpec(
            name="prefill", role="prefill", num_blocks=64, max_model_len=1900, lease_s=lease_s
        ),
        # One request at a time, so that others queue.
        EngineSpec(name="decode", role="decode", max_num_seqs=1, lease_s=lease_s),
        EngineSpec(name="recompute", role="decode", policy="recompute", lease_s=lease_s),
        EngineSpec(name="single"),
    )
    return {spec.name: spec for spec in specs}


class Engines:
    """The engines that all cases of one kind share, started together at first use."""

    def __init__(self, kind: EngineKind, *, logs: Path) -> None:
        self.kind = kind
        self.logs = logs
        self.timing = LeaseTiming.from_duration(LEASE_S[kind.name])
        self._specs = _specs(self.timing.duration_s)
        self._running: dict[str, RunningEngine] = {}
        self._failure: str | None = None

    @property
    def prefill(self) -> RunningEngine:
        """P: 64 blocks."""
        return self._get("prefill")

    @property
    def decode(self) -> RunningEngine:
        """D: one request at a time, load failure policy ``fail``."""
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

    def settle(self) -> None:
        """Wait until nothing is left of earlier cases: no request, no lease."""
        for engine in (self.prefill, self.decode):
            eventually(
                lambda e=engine: is_idle(e),  # type: ignore[misc]
                within_s=self.timing.duration_s + SETTLE_S,
                why=f"{engine.spec.name} is not idle",
            )

    def _get(self, name: str) -> RunningEngine:
        # Real engines take long to start, so they start together; one that a case ended is
        # replaced when it is next asked for.
        if self._failure is not None:
            pytest.fail(self._failure)
        missing = [
            each
            for each in self._specs
            if each not in self._running
            or (each == name and self._running[each].process.poll() is not None)
        ]
        for each in missing:
            if each in self._running:
                self._running[each].stop()
            self._running[each] = self.kind.launch(self._specs[each], logs=self.logs)
        try:
            for each in missing:
                self._running[each].wait()
        except AssertionError as error:
            # The other cases shall not wait for them again.
            self._failure = f"the engines did not start: {error}"
            raise
        return self._running[name]

    def stop(self) -> None:
        """Stop all of them."""
        for engine in self._running.values():
            engine.stop()


# --- asking -----------------------------------------------------------------------------------


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


@dataclass(frozen=True, kw_only=True)
class Grant:
    """A lease that P was seen to hold; P granted it between the two instants."""

    prompt: str
    params: dict[str, object]
    asked_at: float
    answered_at: float


def granted(engine: RunningEngine, prompt: str | None = None) -> Grant:
    """Run the prefill leg and wait until P shows the blocks that it pins."""
    prompt = fresh_prompt() if prompt is None else prompt
    asked_at = time.monotonic()
    params = prefill(engine, prompt)
    answered_at = time.monotonic()
    eventually(lambda: not is_free(engine), within_s=SETTLE_S, why="P shows no pinned block")
    return Grant(prompt=prompt, params=params, asked_at=asked_at, answered_at=answered_at)


def nudge(engine: RunningEngine) -> None:
    """Let an engine step once: real ones look at notifications and report figures only then."""
    tokens_of(ask(engine, fresh_prompt(), max_tokens=1))


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


@contextmanager
def busy(engine: RunningEngine) -> Iterator[None]:
    """Keep a one-at-a-time engine busy with long requests, until left."""
    held = [
        engine.open_request("/v1/completions", long_request()) for _ in range(NUM_LONG_REQUESTS)
    ]
    try:
        wait_queued(engine, NUM_LONG_REQUESTS - 1)
        yield
    finally:
        for connection in held:
            connection.close()


# --- looking and waiting ----------------------------------------------------------------------


def eventually(
    condition: Callable[[], bool],
    *,
    within_s: float,
    why: str,
    meanwhile: Callable[[], object] = lambda: None,
) -> float:
    """Poll until ``condition`` holds; return the instant at which it was seen to hold."""
    until = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > until:
            pytest.fail(f"not within {within_s} s: {why}")
        meanwhile()
        time.sleep(0.05)
    return time.monotonic()


def is_free(engine: RunningEngine) -> bool:
    """Say whether no block is in use: no request runs and no lease is held."""
    return engine.metrics()["kv_cache_usage_perc"] == 0.0


def is_idle(engine: RunningEngine) -> bool:
    """Say whether nothing runs, waits or is pinned."""
    seen = engine.metrics()
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return not any(seen[name] for name in names)


def wait_free(
    engine: RunningEngine,
    *,
    within_s: float = SETTLE_S,
    meanwhile: Callable[[], object] = lambda: None,
) -> float:
    """Wait until no block is in use; return the instant at which that was seen."""
    return eventually(
        lambda: is_free(engine),
        within_s=within_s,
        why=f"{engine.spec.name} holds blocks",
        meanwhile=meanwhile,
    )


def wait_queued(engine: RunningEngine, num_waiting: float) -> None:
    """Wait until an engine has a queue."""
    eventually(
        lambda: engine.metrics()["num_requests_waiting"] >= num_waiting,
        within_s=SETTLE_S,
        why=f"{engine.spec.name} has no {num_waiting} requests in its queue",
    )


def hold(
    engine: RunningEngine, seconds: float, *, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Look all the time: the blocks must stay pinned."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert not is_free(engine)
        meanwhile()
        time.sleep(0.1)


def settled(
    engine: RunningEngine, name: str, expected: float, *, within_s: float = SETTLE_S
) -> float:
    """Wait until a counter, which vLLM logs about once a second, has come to a value; return it."""
    until = time.monotonic() + within_s
    while (value := engine.metrics()[name]) != expected and time.monotonic() < until:
        time.sleep(0.1)
    return value


def num_complete(engine: RunningEngine) -> float:
    """Return how many requests ran to their caps."""
    return engine.metrics().of("request_success_total", finished_reason="length")


@contextmanager
def nothing_expires(engine: RunningEngine) -> Iterator[None]:
    """Demand that P counts no expiry: whatever frees a block in between is no lease's end."""
    nudge(engine)
    before = engine.metrics()[EXPIRED]
    yield
    nudge(engine)
    assert before == engine.metrics()[EXPIRED]


@contextmanager
def lasts_unrenewed(engines: Engines) -> Iterator[Grant]:
    """Demand that a lease of P lasts as long as it was granted for: nobody renews or releases it.

    It is granted before the block, which says what is done about it, and awaited after.
    """
    engine, lease_s = engines.prefill, engines.timing.duration_s
    nudge(engine)
    wait_free(engine)
    expired = engine.metrics()[EXPIRED]
    grant = granted(engine)
    yield grant
    latest = max(time.monotonic(), grant.answered_at + lease_s) + SLACK_S
    freed_at = wait_free(engine, within_s=lease_s + SLACK_S)
    # P grants between the question and the answer, so its clock starts in between.
    assert freed_at - grant.asked_at >= lease_s
    assert freed_at <= latest
    assert expired + 1 == settled(engine, EXPIRED, expired + 1)
