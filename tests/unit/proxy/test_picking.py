"""Choosing endpoints: filters first, then the least load, ties by the generator handed in."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_proxy.core.messages import EndpointState, EndpointView, Load, PoolSnapshot
from pdcluster_proxy.core.picker import (
    Mine,
    NoPick,
    Pool,
    has_decode,
    make_pool,
    name_at,
    pick_decode,
    pick_prefill,
)

EJECTED, DRAINING = EndpointState.EJECTED, EndpointState.DRAINING


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


def pool(*endpoints: EndpointView, warm: tuple[tuple[str, str, int], ...] = ()) -> Pool:
    return make_pool(PoolSnapshot(1, endpoints, warm))


def prefill(
    of: Pool, mine: dict[str, Mine] | None = None, excluded: frozenset[str] = frozenset()
) -> EndpointView | NoPick:
    return pick_prefill(of, mine=mine or {}, excluded=excluded, rng=Random(1))


def decode(
    of: Pool,
    p: EndpointView | None,
    mine: dict[str, Mine] | None = None,
    excluded: frozenset[str] = frozenset(),
    engine_id: str | None = None,
) -> EndpointView | NoPick:
    return pick_decode(
        of, mine=mine or {}, excluded=excluded, prefill=p, engine_id=engine_id, rng=Random(1)
    )


def name_of(picked: EndpointView | NoPick) -> str:
    return picked.name if isinstance(picked, EndpointView) else picked.lack.value


def test_prefill_goes_to_the_fewest_outstanding_prompt_tokens() -> None:
    of = pool(endpoint("p1", prompt_tokens_elsewhere=50), endpoint("p2"), endpoint("d1"))
    assert "p2" == name_of(prefill(of))
    assert "p1" == name_of(prefill(of, {"p2": Mine(1, 51)}))


def test_legs_without_tokens_do_not_count_for_prefill() -> None:
    of = pool(endpoint("p1"), endpoint("p2"), endpoint("d1"))
    assert "p2" == name_of(prefill(of, {"p1": Mine(1, 10), "p2": Mine(9, 0)}))


@pytest.mark.parametrize(
    ("endpoints", "reason"),
    [
        ((), "no-prefill-engine"),
        ((endpoint("d1"),), "no-prefill-engine"),
        ((endpoint("p1"),), "no-decode-engine"),
        ((endpoint("p1", state=DRAINING), endpoint("d1")), "no-prefill-engine"),
        ((endpoint("p1"), endpoint("d1", revision="r2")), "no-pair"),
    ],
)
def test_who_cannot_start_is_told_what_is_missing(
    endpoints: tuple[EndpointView, ...], reason: str
) -> None:
    assert reason == name_of(prefill(pool(*endpoints)))


def test_a_prefill_engine_without_a_decode_engine_of_its_revision_is_left_out() -> None:
    of = pool(endpoint("p1", revision="r2"), endpoint("p2"), endpoint("d1"))
    assert "p2" == name_of(prefill(of, {"p2": Mine(5, 500)}))


def test_excluded_engines_are_not_chosen_again() -> None:
    of = pool(endpoint("p1"), endpoint("d1"), endpoint("d2"))
    assert "no-prefill-engine" == name_of(prefill(of, excluded=frozenset({"p1"})))
    assert "d2" == name_of(decode(of, of.by_name["p1"], excluded=frozenset({"d1"})))


def test_decode_never_crosses_revisions() -> None:
    of = pool(endpoint("p1"), endpoint("d1", revision="r2"), endpoint("d2", revision="r1"))
    assert "d2" == name_of(decode(of, of.by_name["p1"], {"d2": Mine(100)}))


@pytest.mark.parametrize(
    ("p_size", "d_size", "fits"),
    [(32, 32, True), (32, 64, False), (None, 64, True), (32, None, True), (None, None, True)],
)
def test_unequal_block_sizes_are_never_paired(
    p_size: int | None, d_size: int | None, fits: bool
) -> None:
    of = pool(endpoint("p1", block_size=p_size), endpoint("d1", block_size=d_size))
    assert fits == isinstance(decode(of, of.by_name["p1"]), EndpointView)


def test_decode_goes_to_the_least_loaded_with_ours_and_everybody_s_legs() -> None:
    of = pool(endpoint("p1"), endpoint("d1", in_flight_elsewhere=3), endpoint("d2"))
    assert "d2" == name_of(decode(of, None, {"d2": Mine(2)}))
    assert "d1" == name_of(decode(of, None, {"d2": Mine(4)}))


def test_a_queue_on_the_engine_counts_and_a_stale_one_does_not() -> None:
    queue = Load(running=1, waiting=9, kv_usage=0.1)
    fresh = pool(endpoint("d1", load=queue, load_age_s=0.2), endpoint("d2"))
    assert "d2" == name_of(decode(fresh, None, {"d2": Mine(5)}))
    stale = pool(endpoint("d1", load=queue, load_age_s=60.0), endpoint("d2"))
    assert "d1" == name_of(decode(stale, None, {"d2": Mine(5)}))


def test_a_missing_figure_is_neither_good_nor_bad() -> None:
    of = pool(endpoint("d1", load=Load(), load_age_s=0.1), endpoint("d2", load=None))
    assert "d1" == name_of(decode(of, None, {"d2": Mine(1)}))
    assert "d2" == name_of(decode(of, None, {"d1": Mine(1)}))


def test_an_engine_whose_cache_is_nearly_full_is_the_last_choice() -> None:
    of = pool(endpoint("d1", load=Load(kv_usage=0.95), load_age_s=0.1), endpoint("d2"))
    assert "d2" == name_of(decode(of, None, {"d2": Mine(50)}))
    alone = pool(endpoint("d1", load=Load(kv_usage=0.95), load_age_s=0.1))
    assert "d1" == name_of(decode(alone, None))


def test_a_pair_that_has_met_wins_among_equals_only() -> None:
    of = pool(endpoint("d1"), endpoint("d2"), endpoint("p1"), warm=(("e1", "d2", 1),))
    p1 = of.by_name["p1"]
    assert "d2" == name_of(decode(of, p1, engine_id="e1"))
    assert "d1" == name_of(decode(of, p1, {"d2": Mine(1)}, engine_id="e1"))


def test_a_restarted_engine_has_not_met_anybody() -> None:
    warm = (("e1", "d2", 1),)
    of = pool(endpoint("d1"), endpoint("d2", incarnation=2), endpoint("p1"), warm=warm)
    picks = {
        name_of(
            pick_decode(
                of,
                mine={},
                excluded=frozenset(),
                prefill=of.by_name["p1"],
                engine_id="e1",
                rng=Random(seed),
            )
        )
        for seed in range(20)
    }
    assert {"d1", "d2"} == picks


def test_ties_are_broken_by_the_generator_so_that_proxies_do_not_herd() -> None:
    of = pool(endpoint("p1"), endpoint("p2"), endpoint("d1"))
    picks = {
        name_of(pick_prefill(of, mine={}, excluded=frozenset(), rng=Random(seed)))
        for seed in range(20)
    }
    assert {"p1", "p2"} == picks


def test_a_role_that_is_ejected_whole_serves_nevertheless() -> None:
    of = pool(endpoint("p1", state=EJECTED), endpoint("d1"), endpoint("d2", state=EJECTED))
    assert "p1" == name_of(prefill(of))
    assert ("d1",) == tuple(e.name for e in of.decode)


def test_an_address_is_named_by_the_endpoint_that_is_there_now() -> None:
    found = PoolSnapshot(1, (endpoint("p1"), endpoint("p2", port=8001)))
    named = [name_at(found, ("127.0.0.1", port)) for port in (8000, 8001, 8002)]
    assert ["p1", "p2", ""] == named


@pytest.mark.parametrize("state", [DRAINING, EndpointState.UNPROVEN])
def test_whom_nobody_has_ejected_serves_not_even_in_a_panic(state: EndpointState) -> None:
    of = pool(endpoint("p1", state=EJECTED), endpoint("p2", state=state), endpoint("d1"))
    assert ("p1",) == tuple(e.name for e in of.prefill)
    of = pool(endpoint("p2", state=state), endpoint("d1"))
    assert "no-prefill-engine" == name_of(prefill(of))
    assert not of.revisions


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_nobody_with_less_load_is_passed_over(loads: list[int], rng: Random) -> None:
    names = [f"d{n}" for n in range(len(loads))]
    of = pool(*(endpoint(n) for n in names))
    mine = {n: Mine(load) for n, load in zip(names, loads, strict=True)}
    picked = pick_decode(of, mine=mine, excluded=frozenset(), prefill=None, engine_id=None, rng=rng)
    assert isinstance(picked, EndpointView)
    assert min(loads) == mine[picked.name].legs


ENDPOINTS = st.builds(
    endpoint,
    st.sampled_from(["d1", "d2", "d3"]),
    revision=st.sampled_from(["r1", "r2"]),
    block_size=st.sampled_from([None, 16, 32]),
    state=st.sampled_from(EndpointState),
)


@given(
    st.lists(ENDPOINTS, max_size=4, unique_by=lambda e: e.name),
    st.frozensets(st.sampled_from(["d1", "d2", "d3"])),
    st.none() | st.builds(endpoint, st.just("p1"), block_size=st.sampled_from([None, 16])),
)
def test_somebody_else_decodes_exactly_where_somebody_would_be_picked(
    endpoints: list[EndpointView], excluded: frozenset[str], p: EndpointView | None
) -> None:
    of = pool(*endpoints)
    would_pick = isinstance(decode(of, p, excluded=excluded), EndpointView)
    assert would_pick == has_decode(of, excluded=excluded, prefill=p)
