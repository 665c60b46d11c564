"""The roster: who may serve, which boot it is, how loaded it is."""

from __future__ import annotations

import pytest

from pdcluster_api.proxy_config import EndpointConfig, EndpointsFile, Role
from pdcluster_proxy.companion.exposition import EngineFigures
from pdcluster_proxy.companion.roster import Elsewhere, EndpointChange, Roster
from pdcluster_proxy.core.messages import EndpointState, EndpointView, Load, OutcomeKind

UNPROVEN, READY = EndpointState.UNPROVEN, EndpointState.READY
EJECTED, DRAINING = EndpointState.EJECTED, EndpointState.DRAINING
LOAD = Load(running=1.0, waiting=0.0, kv_usage=0.5)


def engine(name: str = "p-0", /, **changes: object) -> EndpointConfig:
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    fields: dict[str, object] = {
        "name": name,
        "role": role,
        "url": f"http://10.0.0.1:{8000 + int(name[-1])}",
        "sideChannel": "10.0.0.1:5600",
        "revision": "r1",
    }
    return EndpointConfig.model_validate({**fields, **changes})


def listed(*engines: EndpointConfig) -> EndpointsFile:
    return EndpointsFile(endpoints=engines)


def roster_of(*engines: EndpointConfig, passed: bool = True) -> Roster:
    roster = Roster(lease_duration_s=30, first_incarnation=100)
    roster.adopt(listed(*engines), now=0.0)
    if passed:
        for one in engines:
            roster.check_passed(one.name, now=0.0)
    return roster


def view(roster: Roster, name: str = "p-0", *, now: float = 0.0) -> EndpointView:
    return next(v for v in roster.views({}, now=now) if v.name == name)


def figures(started_at: float | None, load: Load = LOAD) -> EngineFigures:
    return EngineFigures(load=load, started_at=started_at)


# Who may serve.


def test_a_new_endpoint_serves_only_after_its_first_passed_check() -> None:
    roster = Roster(lease_duration_s=30)
    found = roster.adopt(listed(engine()), now=0.0)
    assert found == (EndpointChange(endpoint="p-0", old="", new="unproven", why="Discovered"),)
    passed = roster.check_passed("p-0", now=1.0)
    assert passed == (
        EndpointChange(endpoint="p-0", old="unproven", new="ready", why="CheckPassed"),
    )


def test_a_new_endpoint_is_unproven() -> None:
    roster = roster_of(engine("p-0"), engine("p-1"), engine("d-0"), passed=False)
    roster.check_passed("p-1", now=1.0)
    told = {v.name: v.state for v in roster.views({}, now=1.0)}
    assert told == {"p-0": UNPROVEN, "p-1": READY, "d-0": UNPROVEN}
    assert roster.census(Role.PREFILL) == {UNPROVEN: 1, READY: 1}


def test_an_endpoint_whose_first_checks_fail_stays_unproven() -> None:
    roster = roster_of(engine(), passed=False)
    for unreached in (True, False, False, False):
        assert roster.check_failed("p-0", unreached=unreached, now=1.0) == ()
    assert roster.state("p-0") is UNPROVEN


def test_an_endpoint_that_returns_from_an_ejection_is_not_unproven_again() -> None:
    roster = roster_of(engine("p-0"), engine("p-1"))
    roster.outcome("p-0", OutcomeKind.FAILED_LOCALLY, now=1.0)
    assert roster.state("p-0") is EJECTED
    (back,) = roster.check_passed("p-0", now=2.0)
    assert (back.old, back.new) == ("ejected", "ready")


@pytest.mark.parametrize("kind", ["connect", "check"])
def test_a_dead_engine_is_ejected_while_new_ones_are_starting(kind: str) -> None:
    old, new = [engine("p-0"), engine("p-1")], [engine("p-2"), engine("p-3")]
    roster = roster_of(*old)
    roster.adopt(listed(*old, *new), now=1.0)
    for one in new:
        roster.check_failed(one.name, unreached=True, now=2.0)
    if kind == "connect":
        changed = roster.outcome("p-0", OutcomeKind.FAILED_LOCALLY, now=3.0)
    else:
        changed = roster.check_failed("p-0", unreached=True, now=3.0)
    assert [(one.endpoint, one.new) for one in changed] == [("p-0", EJECTED)]


def test_an_ejected_engine_that_drains_is_draining_for_everybody() -> None:
    roster = roster_of(engine("p-0"), engine("p-1"))
    roster.outcome("p-0", OutcomeKind.FAILED_LOCALLY, now=1.0)
    (drained,) = roster.adopt(listed(engine("p-0", draining=True), engine("p-1")), now=2.0)
    assert (drained.old, drained.new) == (EJECTED, DRAINING)
    assert view(roster).state is DRAINING
    assert roster.check_passed("p-0", now=3.0) == ()
    assert view(roster).state is DRAINING


def test_the_first_check_puts_nobody_on_probation() -> None:
    roster = roster_of(engine("p-0"), engine("p-1"))
    assert roster.outcome("p-0", OutcomeKind.FAILED_UPSTREAM, now=1.0) == ()
    assert roster.state("p-0") is READY


def test_a_failed_connect_ejects_and_a_passed_check_returns() -> None:
    roster = roster_of(engine("p-0"), engine("p-1"))
    (out,) = roster.outcome("p-0", OutcomeKind.FAILED_LOCALLY, now=1.0)
    assert (out.old, out.new) == (READY, EJECTED)
    (back,) = roster.check_passed("p-0", now=2.0)
    assert (back.old, back.new) == (EJECTED, READY)


def test_never_more_than_half_of_a_role_is_ejected() -> None:
    roster = roster_of(engine("p-0"), engine("p-1"))
    roster.outcome("p-0", OutcomeKind.FAILED_LOCALLY, now=1.0)
    assert roster.outcome("p-1", OutcomeKind.FAILED_LOCALLY, now=1.0) == ()
    assert roster.census(Role.PREFILL) == {"ready": 1, "ejected": 1}


def test_bad_answers_eject_for_a_time() -> None:
    roster = roster_of(engine("p-0"), engine("p-1"))
    for _ in range(2):
        assert roster.outcome("p-0", OutcomeKind.FAILED_UPSTREAM, now=1.0) == ()
    (out,) = roster.outcome("p-0", OutcomeKind.FAILED_UPSTREAM, now=1.0)
    assert out.new == EJECTED
    assert roster.check_passed("p-0", now=2.0) == ()
    (back,) = roster.tick(now=20.0)
    assert (back.new, back.why) == (READY, "Tick")


def test_one_slow_check_ejects_nobody_but_two_in_a_row_do() -> None:
    roster = roster_of(engine("p-0"), engine("p-1"))
    assert roster.check_failed("p-0", unreached=False, now=1.0) == ()
    roster.check_passed("p-0", now=2.0)
    assert roster.check_failed("p-0", unreached=False, now=3.0) == ()
    (out,) = roster.check_failed("p-0", unreached=False, now=4.0)
    assert (out.new, out.why) == (EJECTED, "CheckFailed")


def test_an_engine_out_of_reach_is_ejected_at_once() -> None:
    roster = roster_of(engine("p-0"), engine("p-1"))
    (out,) = roster.check_failed("p-0", unreached=True, now=1.0)
    assert out.new == EJECTED


def test_draining_and_undraining_follow_the_file() -> None:
    roster = roster_of(engine())
    (drained,) = roster.adopt(listed(engine(draining=True)), now=1.0)
    assert (drained.old, drained.new) == (READY, DRAINING)
    (back,) = roster.adopt(listed(engine()), now=2.0)
    assert (back.old, back.new) == (DRAINING, READY)


def test_an_endpoint_that_leaves_the_file_is_gone() -> None:
    roster = roster_of(engine("p-0"), engine("d-0"))
    (gone,) = roster.adopt(listed(engine("d-0")), now=1.0)
    assert (gone.endpoint, gone.new) == ("p-0", EndpointState.GONE)
    assert [v.name for v in roster.views({}, now=1.0)] == ["d-0"]


def test_what_is_said_of_an_endpoint_that_is_gone_changes_nothing() -> None:
    roster = roster_of(engine())
    roster.adopt(listed(), now=1.0)
    assert roster.outcome("p-0", OutcomeKind.FAILED_LOCALLY, now=1.0) == ()
    assert roster.check_passed("p-0", now=1.0) == ()
    assert roster.check_failed("p-0", unreached=True, now=1.0) == ()
    assert not roster.scraped("p-0", figures(1.0), now=1.0)
    roster.scrape_failed("p-0")
    assert not roster.learnt_engine_id("p-0", "e")
    assert roster.state("p-0") is None


# Boots.


def test_another_process_start_is_another_boot() -> None:
    roster = roster_of(engine())
    assert not roster.scraped("p-0", figures(1000.0), now=1.0)
    roster.learnt_engine_id("p-0", "old")
    first = view(roster)
    assert not roster.scraped("p-0", figures(1000.0), now=2.0)
    assert view(roster).incarnation == first.incarnation
    assert roster.scraped("p-0", figures(2000.0), now=3.0)
    second = view(roster)
    assert second.incarnation > first.incarnation
    assert (first.engine_id, second.engine_id) == ("old", None)


def test_without_a_start_time_a_failed_connect_tells_of_a_boot() -> None:
    roster = roster_of(engine())
    before = view(roster).incarnation
    roster.check_failed("p-0", unreached=False, now=1.0)
    roster.check_passed("p-0", now=2.0)
    assert view(roster).incarnation == before
    roster.check_failed("p-0", unreached=True, now=3.0)
    roster.check_passed("p-0", now=4.0)
    assert view(roster).incarnation > before


def test_with_a_start_time_a_failed_connect_alone_is_no_boot() -> None:
    roster = roster_of(engine())
    roster.scraped("p-0", figures(1000.0), now=1.0)
    before = view(roster).incarnation
    roster.check_failed("p-0", unreached=True, now=2.0)
    roster.check_passed("p-0", now=3.0)
    assert view(roster).incarnation == before


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "http://10.0.0.9:8000"},
        {"sideChannel": "10.0.0.9:5600"},
        {"revision": "r2"},
        {"blockSize": 16},
        {"leaseDurationSeconds": 6},
    ],
)
def test_an_entry_that_changes_is_another_engine(changes: dict[str, object]) -> None:
    roster = roster_of(engine())
    before = view(roster)
    transitions = roster.adopt(listed(engine(**changes)), now=1.0)
    assert [t.new for t in transitions] == ["gone", "unproven"]
    assert view(roster).incarnation > before.incarnation


def test_only_pairs_whose_boots_are_both_present_are_alive() -> None:
    roster = roster_of(engine("p-0"), engine("d-0"))
    roster.learnt_engine_id("p-0", "e1")
    boot = view(roster, "d-0").incarnation
    alive, old_p, old_d = ("e1", "d-0", boot), ("e0", "d-0", boot), ("e1", "d-0", boot - 1)
    assert roster.alive([alive, old_p, old_d]) == {alive}


# What workers are told.


def test_a_view_has_the_address_parts_and_the_lease() -> None:
    own = engine("d-0", leaseDurationSeconds=6, blockSize=16)
    roster = roster_of(engine("p-0"), own)
    p, d = view(roster, "p-0"), view(roster, "d-0")
    assert (p.host, p.port, p.side_channel_host, p.side_channel_port) == (
        "10.0.0.1",
        8000,
        "10.0.0.1",
        5600,
    )
    assert (p.lease_duration_s, d.lease_duration_s) == (30, 6)
    assert (p.block_size, d.block_size) == (None, 16)


def test_an_ipv6_side_channel_loses_its_brackets() -> None:
    assert view(roster_of(engine(sideChannel="[::1]:5600"))).side_channel_host == "::1"


def test_a_load_ages_and_is_unknown_after_a_failure() -> None:
    roster = roster_of(engine())
    assert (view(roster).load, view(roster).load_age_s) == (None, None)
    roster.scraped("p-0", figures(None), now=10.0)
    assert (view(roster, now=11.5).load, view(roster, now=11.5).load_age_s) == (LOAD, 1.5)
    roster.scrape_failed("p-0")
    assert view(roster, now=12.0).load is None
    roster.scraped("p-0", figures(None), now=13.0)
    roster.check_failed("p-0", unreached=False, now=14.0)
    assert view(roster, now=14.0).load is None


def test_the_legs_of_others_are_told_per_endpoint() -> None:
    roster = roster_of(engine("p-0"), engine("d-0"))
    views = roster.views({"p-0": Elsewhere(legs=2, prompt_tokens=300)}, now=0.0)
    assert [(v.in_flight_elsewhere, v.prompt_tokens_elsewhere) for v in views] == [
        (2, 300),
        (0, 0),
    ]
