"""The companion between discovery, checks and workers, by a clock of the test's own."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import pytest

from pdcluster_api.proxy_config import EndpointConfig, EndpointsFile, ProxyConfig
from pdcluster_proxy.companion.companion import (
    GONE_SERIES_S,
    PUSH_INTERVAL_S,
    SETTLE_S,
    SWEEP_INTERVAL_S,
    Companion,
)
from pdcluster_proxy.companion.exposition import EngineFigures
from pdcluster_proxy.core.messages import (
    DrainNotice,
    EndpointState,
    HistogramIncrement,
    InFlight,
    LeaseStep,
    LeaseStepKind,
    Load,
    Outcome,
    OutcomeKind,
    PairMet,
    PoolNotice,
    PoolSnapshot,
    Report,
    ToWorker,
)
from pdcluster_proxy.core.picker import make_pool
from pdcluster_proxy.metrics import METRICS

GRANTED, HANDED_OFF, ENDED = LeaseStepKind


class Worker:
    """A connected worker that keeps what it was sent."""

    def __init__(self) -> None:
        self.got: list[ToWorker] = []

    def send(self, message: ToWorker) -> None:
        self.got.append(message)

    @property
    def pools(self) -> list[PoolSnapshot]:
        return [message.pool for message in self.got if isinstance(message, PoolNotice)]


class Checks:
    """Active checks that remember what they were asked."""

    def __init__(self) -> None:
        self.followed: list[list[str]] = []
        self.soon: list[str] = []

    def follow(self, endpoints: Iterable[EndpointConfig]) -> None:
        self.followed.append([endpoint.name for endpoint in endpoints])

    def check_soon(self, endpoint: str) -> None:
        self.soon.append(endpoint)


class Rig:
    """A companion with one pair, READY, and one worker."""

    def __init__(self, *, num_workers: int = 1, passed: bool = True, listed: bool = True) -> None:
        self.now = 100.0
        config = ProxyConfig.model_validate(
            {
                "cluster": "demo",
                "model": "m",
                "listen": {"host": "127.0.0.1", "port": 8000},
                "admin": {"host": "127.0.0.1", "port": 8001},
                "lease": {"durationSeconds": 30, "maxHoldSeconds": 60},
                "timeouts": {"requestSeconds": 60, "firstByteSeconds": 30, "idleSeconds": 30},
                "admission": {"maxInFlight": 10, "maxQueue": 1, "queueTimeoutSeconds": 1},
                "endpointsFile": "endpoints.json",
                "graceSeconds": 5,
            }
        )
        self.companion = Companion(config, num_workers=num_workers, clock=lambda: self.now)
        self.checks = Checks()
        self.companion.check_with(self.checks)
        if listed:
            self.discover("p-0", "p-1", "d-0", "d-1")
        if listed and passed:
            for name in ("p-0", "p-1", "d-0", "d-1"):
                self.companion.check_passed(name)
        self.worker = Worker()
        self.companion.joined(self.worker)

    def discover(self, *names: str, draining: str = "") -> None:
        engines = [
            {
                "name": name,
                "role": "prefill" if name.startswith("p") else "decode",
                "url": f"http://10.0.0.1:80{name[-1]}0",
                "sideChannel": "10.0.0.1:5600",
                "revision": "r1",
                "draining": name == draining,
            }
            for name in names
        ]
        self.companion.discovered(EndpointsFile.model_validate({"endpoints": engines}))

    def report(self, worker: Worker | None = None, /, **fields: object) -> None:
        report = Report(seq=1, **fields)  # type: ignore[arg-type]  # Fields by name, as tests need.
        self.companion.reported(worker or self.worker, report)

    def state(self, name: str) -> EndpointState:
        return next(view.state for view in self.companion.endpoints() if view.name == name)


def lease(kind: LeaseStepKind, **fields: object) -> LeaseStep:
    base: dict[str, object] = {"endpoint": "p-0", "request_id": "r", "engine_id": "e1"}
    return LeaseStep(kind=kind, **{**base, **fields})  # type: ignore[arg-type]  # As above.


# Snapshots.


def test_a_worker_gets_the_pool_when_it_joins() -> None:
    (pool,) = Rig().worker.pools
    assert [view.name for view in pool.endpoints] == ["p-0", "p-1", "d-0", "d-1"]
    assert {view.state for view in pool.endpoints} == {EndpointState.READY}


def test_workers_of_an_earlier_companion_keep_their_pool_until_the_new_one_knows_it() -> None:
    rig = Rig(listed=False)
    rig.now += 60.0
    rig.companion.pulse()  # The list may be long in coming.
    rig.discover("p-0", "d-0")
    rig.companion.check_passed("p-0")
    assert rig.worker.pools == []
    rig.companion.check_failed("d-0", "refused", unreached=True)
    (pool,) = rig.worker.pools
    states = [view.state for view in pool.endpoints]
    assert states == [EndpointState.READY, EndpointState.UNPROVEN]


def test_an_engine_that_hangs_keeps_the_pool_from_workers_for_a_short_while_only() -> None:
    rig = Rig(passed=False)
    rig.companion.check_passed("p-0")
    rig.now += SETTLE_S - 0.1
    rig.companion.pulse()
    assert rig.worker.pools == []
    rig.now += 0.1
    rig.companion.pulse()
    assert [view.name for view in rig.worker.pools[-1].endpoints] == ["p-0", "p-1", "d-0", "d-1"]


def test_an_engine_that_leaves_unchecked_is_not_waited_for() -> None:
    rig = Rig(passed=False)
    for name in ("p-0", "p-1", "d-0"):
        rig.companion.check_passed(name)
    rig.discover("p-0", "p-1", "d-0")
    assert len(rig.worker.pools[-1].endpoints) == 3


def test_a_list_without_engines_is_told() -> None:
    rig = Rig(listed=False)
    rig.discover()
    assert [pool.endpoints for pool in rig.worker.pools] == [()]


def test_a_change_of_state_is_pushed_at_once() -> None:
    rig = Rig()
    rig.report(outcomes=(Outcome("p-0", OutcomeKind.FAILED_LOCALLY),))
    pools = rig.worker.pools
    assert len(pools) == 2
    assert pools[1].seq > pools[0].seq
    assert pools[1].endpoints[0].state is EndpointState.EJECTED


def test_a_changed_load_is_pushed_within_its_interval_and_not_twice() -> None:
    rig = Rig()
    figures = EngineFigures(load=Load(running=1.0), started_at=1.0)
    rig.companion.scraped("p-0", figures)
    rig.now += PUSH_INTERVAL_S
    rig.companion.pulse()
    rig.companion.pulse()
    rig.now += PUSH_INTERVAL_S
    rig.companion.pulse()
    pools = rig.worker.pools
    assert len(pools) == 2
    assert pools[1].endpoints[0].load == Load(running=1.0)
    assert pools[1].endpoints[0].load_age_s == PUSH_INTERVAL_S


def test_a_reboot_is_pushed_at_once() -> None:
    rig = Rig()
    rig.companion.scraped("p-0", EngineFigures(load=Load(), started_at=1.0))
    rig.companion.scraped("p-0", EngineFigures(load=Load(), started_at=2.0))
    first, last = rig.worker.pools
    assert last.endpoints[0].incarnation > first.endpoints[0].incarnation


def test_each_worker_is_told_the_legs_of_the_others() -> None:
    rig = Rig()
    second = Worker()
    rig.companion.joined(second)
    rig.report(in_flight=(InFlight("p-0", 3, 500),))
    rig.report(second, in_flight=(InFlight("p-0", 1, 10), InFlight("d-0", 2)))
    rig.companion.push()

    def elsewhere(worker: Worker) -> list[tuple[str, int, int]]:
        return [
            (v.name, v.in_flight_elsewhere, v.prompt_tokens_elsewhere)
            for v in worker.pools[-1].endpoints
            if v.in_flight_elsewhere
        ]

    assert elsewhere(rig.worker) == [("p-0", 1, 10), ("d-0", 2, 0)]
    assert elsewhere(second) == [("p-0", 3, 500)]
    rig.companion.left(second)
    rig.companion.push()
    assert elsewhere(rig.worker) == []


def test_open_legs_are_absolute_so_that_a_lost_report_heals() -> None:
    rig = Rig()
    rig.report(in_flight=(InFlight("p-0", 3),))
    rig.report(in_flight=(InFlight("p-0", 1),))
    assert rig.companion.state().engines[0].in_flight == 1


# Endpoints.


def test_discovery_is_followed_by_checks() -> None:
    rig = Rig()
    rig.discover("p-0", "d-0")
    assert rig.checks.followed == [["p-0", "p-1", "d-0", "d-1"], ["p-0", "d-0"]]


def test_a_failed_connect_has_the_engine_checked_at_once() -> None:
    rig = Rig()
    rig.report(
        outcomes=(
            Outcome("p-0", OutcomeKind.FAILED_LOCALLY),
            Outcome("d-0", OutcomeKind.SUCCEEDED),
        )
    )
    assert rig.checks.soon == ["p-0"]


def test_an_ejection_ends_with_time() -> None:
    rig = Rig()
    rig.report(outcomes=(Outcome("d-0", OutcomeKind.FAILED_UPSTREAM),) * 3)
    assert rig.state("d-0") is EndpointState.EJECTED
    assert not rig.companion.is_serving("d-0")
    rig.now += 30.0
    rig.companion.pulse()
    assert rig.state("d-0") is EndpointState.READY


def test_an_endpoint_file_that_fails_is_counted_and_changes_nothing() -> None:
    rig = Rig()
    rig.companion.discovery_failed("broken")
    assert rig.companion.figures.counter("discovery_errors_total") == 1
    assert len(rig.companion.endpoints()) == 4


# Leases.


def test_the_ledger_counts_leases_from_grant_to_end() -> None:
    rig = Rig()
    rig.report(leases=(lease(GRANTED, age_s=1.5), lease(GRANTED, request_id="s")))
    p = rig.companion.state().engines[0]
    assert (p.held, p.oldest_held_seconds) == (2, 1.5)
    rig.report(leases=(lease(HANDED_OFF), lease(ENDED)))
    assert rig.companion.state().engines[0].held == 1
    assert rig.companion.state().engines[2].held is None


def test_a_lease_whose_end_was_never_told_ends_by_time() -> None:
    rig = Rig()
    rig.report(leases=(lease(GRANTED),))
    rig.companion.left(rig.worker)
    rig.now += 31.0
    rig.companion.pulse()
    assert rig.companion.state().engines[0].held == 0


def test_a_pair_that_exchanged_kv_is_warm_until_either_side_boots_again() -> None:
    rig = Rig()
    rig.companion.scraped("d-0", EngineFigures(load=Load(), started_at=1.0))
    boot = next(v.incarnation for v in rig.companion.endpoints() if v.name == "d-0")
    rig.report(pairs_met=(PairMet("p-0", "e1", "d-0", boot),))
    rig.companion.push()
    assert list(rig.worker.pools[-1].warm_pairs) == [("e1", "d-0", boot)]
    assert rig.worker.pools[-1].endpoints[0].engine_id == "e1"
    rig.companion.scraped("d-0", EngineFigures(load=Load(), started_at=2.0))
    assert not rig.worker.pools[-1].warm_pairs


def test_a_lease_alone_warms_no_pair_but_names_the_engine() -> None:
    rig = Rig()
    rig.report(leases=(lease(GRANTED),))
    rig.companion.push()
    assert rig.worker.pools[-1].warm_pairs == ()
    assert rig.worker.pools[-1].endpoints[0].engine_id == "e1"


# Readiness and drain.


def test_the_proxy_is_ready_once_all_workers_and_a_pair_are() -> None:
    rig = Rig(num_workers=2, passed=False)
    assert rig.companion.hindrances() == (
        "1 of 2 workers are connected",
        "no pair of one revision is ready (prefill: 2 unproven; decode: 2 unproven)",
    )
    rig.companion.joined(Worker())
    rig.companion.check_passed("p-0")
    rig.companion.check_passed("d-0")
    assert rig.companion.hindrances() == ()


def test_both_readiness_probes_agree_where_ejected_engines_serve_in_a_panic() -> None:
    rig = Rig()
    rig.report(outcomes=(Outcome("p-0", OutcomeKind.FAILED_LOCALLY),))
    rig.discover("p-0", "p-1", "d-0", draining="p-1")
    assert [rig.state(name).value for name in ("p-0", "p-1")] == ["ejected", "draining"]
    pool = make_pool(rig.worker.pools[-1])
    assert [[view.name for view in pool.prefill], pool.revisions] == [["p-0"], {"r1"}]
    assert rig.companion.hindrances() == ()
    rig.discover("p-0", "p-1", "d-0", draining="p-0")  # Back is p-1, and p-0 is both.
    assert [view.name for view in make_pool(rig.worker.pools[-1]).prefill] == ["p-1"]
    rig.discover("p-0", "d-0", draining="p-0")
    assert not make_pool(rig.worker.pools[-1]).revisions
    (told,) = rig.companion.hindrances()
    assert "prefill: 1 draining" in told
    assert rig.companion.state().engines[0].draining


def test_an_engine_that_was_never_seen_to_work_serves_not_even_in_a_panic() -> None:
    rig = Rig(passed=False)
    rig.now += SETTLE_S
    rig.companion.pulse()
    assert not make_pool(rig.worker.pools[-1]).revisions
    assert len(rig.companion.hindrances()) == 1


def test_readiness_tells_engines_that_are_new_from_engines_that_are_out() -> None:
    rig = Rig()
    rig.discover("p-0", "p-1", "p-2", "p-3")
    rig.companion.check_passed("p-2")
    rig.report(outcomes=(Outcome("p-0", OutcomeKind.FAILED_LOCALLY),))
    told = "prefill: 1 unproven, 2 ready, 1 ejected; decode: none"
    assert rig.companion.hindrances() == (f"no pair of one revision is ready ({told})",)


def test_everybody_sees_new_engines_as_unproven(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(passed=False)
    rig.companion.check_passed("p-0")
    assert [(r["name"], r["state"]) for r in rig.companion.endpoint_rows()] == [
        ("p-0", "ready"),
        ("p-1", "unproven"),
        ("d-0", "unproven"),
        ("d-1", "unproven"),
    ]
    assert rig.state("p-1") is EndpointState.UNPROVEN
    changes = [vars(r) for r in caplog.records if r.message == "endpoint.changed"]
    assert {(c["from"], c["to"], c["levelname"]) for c in changes} == {
        ("", "unproven", "INFO"),
        ("unproven", "ready", "INFO"),
    }
    figures = exported(rig)
    assert figures['endpoint_state{endpoint="p-1",role="prefill",state="unproven"}'] == 1.0
    assert figures['endpoint_state{endpoint="p-1",role="prefill",state="ejected"}'] == 0.0


def test_endpoints_are_shown_with_names_as_the_ledger_writes_them() -> None:
    rig = Rig()
    rig.companion.scraped("p-0", EngineFigures(load=Load(kv_usage=0.5), started_at=1.0))
    [row, *_] = rig.companion.endpoint_rows()
    assert {"sideChannelPort", "inFlightElsewhere", "engineId", "leaseDurationS"} <= set(row)
    assert row["load"] == {"running": None, "waiting": None, "kvUsage": 0.5}
    assert "_" not in "".join(row)


def test_a_worker_that_is_restarted_does_not_take_the_proxy_out() -> None:
    rig = Rig(num_workers=2)
    second = Worker()
    rig.companion.joined(second)
    rig.companion.left(second)
    assert rig.companion.hindrances() == ()
    rig.companion.left(rig.worker)
    assert rig.companion.hindrances() == ("0 of 2 workers are connected",)


def test_a_draining_proxy_is_not_ready_and_tells_every_worker_once() -> None:
    rig = Rig()
    rig.companion.drain()
    rig.companion.drain()
    assert rig.companion.hindrances() == ("draining",)
    assert rig.worker.got.count(DrainNotice()) == 1
    late = Worker()
    rig.companion.joined(late)
    assert late.got[-1] == DrainNotice()
    assert rig.companion.state().draining


# What is exported.


def exported(rig: Rig) -> dict[str, float]:
    samples = {}
    for line in rig.companion.figures.render().decode().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[name.removeprefix("pdcluster_proxy_")] = float(value)
    return samples


def buckets(index: int) -> tuple[int, ...]:
    """Give the counts of a request_seconds histogram with one value, in bucket ``index``."""
    bounds = METRICS["request_seconds"].buckets
    return tuple(int(each == index) for each in range(len(bounds) + 1))


def test_reports_become_metrics() -> None:
    rig = Rig()
    rig.report(
        counters=(("requests_total", ("chat", "200", ""), 2.0),),
        histograms=(HistogramIncrement("request_seconds", ("chat",), buckets(5), 0.3),),
        running=4,
        queued=1,
        in_flight=(InFlight("d-0", 4),),
        outcomes=(Outcome("d-0", OutcomeKind.SUCCEEDED),),
        leases=(lease(GRANTED),),
    )
    samples = exported(rig)
    expected = {
        'requests_total{code="",route="chat",status="200"}': 2.0,
        'request_seconds_count{route="chat"}': 1.0,
        'request_seconds_bucket{le="0.25",route="chat"}': 0.0,
        'request_seconds_bucket{le="0.5",route="chat"}': 1.0,
        'request_seconds_sum{route="chat"}': 0.3,
        "in_flight": 4.0,
        "queued": 1.0,
        "workers": 1.0,
        'legs_in_flight{endpoint="d-0"}': 4.0,
        'leases_held{endpoint="p-0"}': 1.0,
        'endpoint_state{endpoint="p-0",role="prefill",state="ready"}': 1.0,
        'endpoint_transitions_total{endpoint="p-0",from="unproven",to="ready"}': 1.0,
        "malformed_reports_total": 0.0,
    }
    assert {name: samples.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"counters": (("no_such_total", (), 1.0),)},
        {"counters": (("requests_total", ("chat",), 1.0),)},
        {"counters": (("request_seconds", ("chat",), 1.0),)},
        {"counters": (("re_prefills_total", (), -1.0),)},
        {"histograms": (HistogramIncrement("request_seconds", ("chat", "x"), buckets(0), 1.0),)},
        {"histograms": (HistogramIncrement("request_seconds", ("chat",), buckets(0), math.nan),)},
        {"histograms": (HistogramIncrement("request_seconds", ("chat",), (1,), 1.0),)},
        {"histograms": (HistogramIncrement("re_prefills_total", (), (1,), 1.0),)},
    ],
)
def test_a_report_that_fits_no_metric_is_counted_and_harms_nothing(
    fields: dict[str, object],
) -> None:
    rig = Rig()
    rig.report(**fields)
    assert exported(rig)["malformed_reports_total"] == 1.0


def test_the_figures_of_an_engine_that_is_gone_leave_after_a_while() -> None:
    rig = Rig()
    opened = ("connections_opened_total", ("p-1",), 1.0)
    rig.report(counters=(opened, ("connections_opened_total", ("",), 1.0)))
    rig.discover("p-0", "d-0", "d-1")

    def of(name: str) -> list[str]:
        return [line for line in exported(rig) if f'endpoint="{name}"' in line]

    def sweep(after_s: float) -> None:
        rig.now += after_s
        rig.companion.pulse()

    sweep(SWEEP_INTERVAL_S)
    sweep(GONE_SERIES_S - 1.0)
    assert 'endpoint_transitions_total{endpoint="p-1",from="ready",to="gone"}' in of("p-1")
    assert 'connections_opened_total{endpoint="p-1"}' in of("p-1")
    sweep(1.0)
    assert [] == of("p-1")
    assert of("p-0")
    assert of("")
    # A leg that ends very late is told of all the same, and leaves in its turn.
    rig.report(counters=(opened,))
    sweep(SWEEP_INTERVAL_S)
    assert of("p-1")
    sweep(GONE_SERIES_S)
    assert [] == of("p-1")


def test_an_engine_that_comes_back_keeps_its_figures() -> None:
    rig = Rig()
    rig.discover("p-0", "d-0")
    rig.now += GONE_SERIES_S - 1.0
    rig.companion.pulse()
    rig.discover("p-0", "p-1", "d-0")
    rig.now += GONE_SERIES_S
    rig.companion.pulse()
    assert any('endpoint="p-1"' in line and "transitions" in line for line in exported(rig))


def test_reports_that_fit_no_metric_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    for _ in range(3):
        rig.report(counters=(("no_such_total", (), 1.0),))
    assert [r.message for r in caplog.records].count("report.malformed") == 1
    assert exported(rig)["malformed_reports_total"] == 3.0


def test_labels_are_bounded() -> None:
    rig = Rig()
    for number in range(3000):
        rig.report(counters=(("requests_rejected_total", (str(number),), 1.0),))
    names = [n for n in exported(rig) if n.startswith("requests_rejected_total")]
    assert len(names) == 2000
