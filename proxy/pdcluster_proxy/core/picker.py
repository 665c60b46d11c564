"""Choosing an endpoint: filters, scorers, picker.

Pure. Prefill goes to the engine with the fewest outstanding prompt tokens; decode, chosen after
prefill, to the least loaded engine of P's revision and block size, among equals to one that has met
P before (its first heartbeat is not lost to a handshake). A figure that is missing makes an engine
neither better nor worse than its peers: it is judged by what we ourselves have open on it.

Source: ``routing.md`` section 14 of the design.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from pdcluster_proxy.core.messages import EndpointState, EndpointView, PoolSnapshot

__all__ = [
    "Lack",
    "Mine",
    "NoPick",
    "Pool",
    "Rng",
    "has_decode",
    "make_pool",
    "name_at",
    "pick_decode",
    "pick_prefill",
]

STALE_LOAD_S: Final = 2.0
"""An older scrape says nothing about now."""
KV_NEARLY_FULL: Final = 0.9
"""From here on the next hand-off waits for blocks; only chosen where all are as full."""


class Rng(Protocol):
    """Breaks ties; ``random.Random`` is one."""

    def random(self) -> float:
        """Draw from [0, 1)."""


class Mine(msgspec.Struct, gc=False):
    """This worker's open legs on one endpoint; ``exchange/legs.py`` owns and changes them.

    Attributes:
        legs: How many.
        prompt_tokens: Their estimated prompt tokens (prefill legs).
    """

    legs: int = 0
    prompt_tokens: int = 0


NOTHING: Final = Mine()


class Lack(StrEnum):
    """What is missing where nobody can be picked; the client's error code."""

    PREFILL = "no-prefill-engine"
    DECODE = "no-decode-engine"
    PAIR = "no-pair"


class NoPick(msgspec.Struct, frozen=True, gc=False):
    """Nobody can take it.

    Attributes:
        lack: What is missing.
        message: For people.
    """

    lack: Lack
    message: str


class Pool(msgspec.Struct, frozen=True, gc=False):
    """A snapshot made ready for picking, once per snapshot and not per request.

    Attributes:
        prefill: Prefill endpoints that take work, in their snapshot's order.
        decode: Decode endpoints that take work.
        by_name: Every endpoint.
        warm_pairs: (P engine id, D name, D incarnation) that exchanged KV before.
        revisions: Revisions in which both roles take work: only these may start an exchange.
    """

    prefill: tuple[EndpointView, ...] = ()
    decode: tuple[EndpointView, ...] = ()
    by_name: Mapping[str, EndpointView] = {}
    warm_pairs: frozenset[tuple[str, str, int]] = frozenset()
    revisions: frozenset[str] = frozenset()


def make_pool(snapshot: PoolSnapshot) -> Pool:
    """Sort a snapshot's endpoints by role and drop those that take no work.

    Where no endpoint of a role is ready, its ejected ones serve (panic): the record says that all
    are bad, which is more often a fault of the record. Those that drain or were never seen to work
    do not, for that is no fault of the record.
    """
    prefill = _serving(snapshot.endpoints, "prefill")
    decode = _serving(snapshot.endpoints, "decode")
    return Pool(
        prefill,
        decode,
        {e.name: e for e in snapshot.endpoints},
        frozenset(snapshot.warm_pairs),
        frozenset(e.revision for e in prefill) & frozenset(e.revision for e in decode),
    )


def name_at(snapshot: PoolSnapshot, address: tuple[str, int]) -> str:
    """Name the endpoint at an address; "" where it is known no more."""
    return next((e.name for e in snapshot.endpoints if (e.host, e.port) == address), "")


def _serving(endpoints: Sequence[EndpointView], role: str) -> tuple[EndpointView, ...]:
    mine = [e for e in endpoints if e.role == role]
    ready = tuple(e for e in mine if e.state is EndpointState.READY)
    return ready or tuple(e for e in mine if e.state is EndpointState.EJECTED)


def pick_prefill(
    pool: Pool,
    *,
    mine: Mapping[str, Mine],
    excluded: frozenset[str],
    rng: Rng,
) -> EndpointView | NoPick:
    """Choose a prefill engine whose revision also has a decode engine.

    Args:
        pool: The current pool.
        mine: This worker's open legs by endpoint name.
        excluded: Endpoints this exchange has failed on.
        rng: Breaks ties.
    """
    if not pool.prefill:
        return NoPick(Lack.PREFILL, "No prefill engine is ready.")
    if not pool.decode:
        return NoPick(Lack.DECODE, "No decode engine is ready.")
    paired = [e for e in pool.prefill if e.revision in pool.revisions and e.name not in excluded]
    if not paired:
        if not pool.revisions:
            return NoPick(Lack.PAIR, "No prefill and decode engine of one revision are ready.")
        return NoPick(Lack.PREFILL, "No other prefill engine is ready.")

    def score(endpoint: EndpointView) -> float:
        own = mine.get(endpoint.name, NOTHING)
        return own.prompt_tokens + endpoint.prompt_tokens_elsewhere

    return _least(paired, score, rng)


def pick_decode(
    pool: Pool,
    *,
    mine: Mapping[str, Mine],
    excluded: frozenset[str],
    prefill: EndpointView | None,
    engine_id: str | None,
    rng: Rng,
) -> EndpointView | NoPick:
    """Choose a decode engine, with the load of this moment.

    Args:
        pool: The current pool.
        mine: This worker's open legs by endpoint name.
        excluded: Endpoints this exchange has failed on.
        prefill: The engine that granted, or None for a request without a prefill leg.
        engine_id: Its engine id, to prefer pairs that have met.
        rng: Breaks ties.
    """
    if not pool.decode:
        return NoPick(Lack.DECODE, "No decode engine is ready.")
    fitting = [e for e in pool.decode if e.name not in excluded and _may_pair(prefill, e)]
    if not fitting:
        return NoPick(Lack.DECODE, "No decode engine of the prefill engine's revision is ready.")

    def score(endpoint: EndpointView) -> float:
        legs = mine.get(endpoint.name, NOTHING).legs + endpoint.in_flight_elsewhere
        full, waiting = 0.0, 0.0
        load = endpoint.load
        if load is not None and (endpoint.load_age_s or 0.0) <= STALE_LOAD_S:
            waiting = load.waiting or 0.0
            full = 1e6 if (load.kv_usage or 0.0) >= KV_NEARLY_FULL else 0.0
        met = (engine_id, endpoint.name, endpoint.incarnation) in pool.warm_pairs
        # A met pair wins among equals only; half a leg is never worth a queue.
        return full + legs + waiting - (0.5 if met else 0.0)

    return _least(fitting, score, rng)


def has_decode(pool: Pool, *, excluded: frozenset[str], prefill: EndpointView | None) -> bool:
    """Tell whether :func:`pick_decode` would find anybody, without choosing."""
    return any(e.name not in excluded and _may_pair(prefill, e) for e in pool.decode)


def _may_pair(prefill: EndpointView | None, decode: EndpointView) -> bool:
    """Only within one revision; unequal block sizes give wrong tokens (vLLM on CPU, measured)."""
    if prefill is None:
        return True
    if prefill.revision != decode.revision:
        return False
    sizes = {prefill.block_size, decode.block_size} - {None}
    return len(sizes) <= 1


def _least(
    endpoints: Sequence[EndpointView], score: Callable[[EndpointView], float], rng: Rng
) -> EndpointView:
    """Pick the lowest score; among equals at random, so that proxies don't herd."""
    if len(endpoints) == 1:
        return endpoints[0]
    scores = [score(e) for e in endpoints]
    lowest = min(scores)
    best = [e for e, s in zip(endpoints, scores, strict=True) if s == lowest]
    return best[0] if len(best) == 1 else best[int(rng.random() * len(best))]
