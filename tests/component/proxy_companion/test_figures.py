"""Counting and exporting, from plain numbers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_proxy.companion.figures import Figures, Gauge
from pdcluster_proxy.core.reporting import PendingReport
from pdcluster_proxy.metrics import METRICS, PREFIX, Kind


def exported(figures: Figures) -> dict[str, float]:
    lines = figures.render().decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name.removeprefix(PREFIX): float(value) for name, _, value in pairs}


def figures(*gauges: Gauge) -> Figures:
    def now() -> Iterable[Gauge]:
        return gauges

    return Figures(now)


def test_counters_without_labels_exist_from_the_start() -> None:
    samples = exported(figures())
    plain = [m.short for m in METRICS.values() if m.kind is Kind.COUNTER and not m.labels]
    assert {short: samples[short] for short in plain} == dict.fromkeys(plain, 0.0)


def test_counters_add_up_per_label_set() -> None:
    made = figures()
    assert made.count("leg_failures_total", ("prefill", "a"))
    assert made.count("leg_failures_total", ("prefill", "a"), 2)
    assert made.count("leg_failures_total", ("decode", "a"), 0.5)
    samples = exported(made)
    assert samples['leg_failures_total{code="a",leg="prefill"}'] == 3.0
    assert samples['leg_failures_total{code="a",leg="decode"}'] == 0.5
    assert made.counter("leg_failures_total", ("prefill", "a")) == 3.0
    assert made.counter("leg_failures_total", ("none", "a")) == 0.0


def test_labels_are_escaped() -> None:
    made = figures()
    made.count("requests_rejected_total", ('a"b\nc\\',))
    assert 'code="a\\"b\\nc\\\\"' in made.render().decode()


def test_gauges_are_those_of_the_moment() -> None:
    samples = exported(figures(("in_flight", (), 3.0), ("legs_in_flight", ("p-0",), 2.0)))
    assert samples["in_flight"] == 3.0
    assert samples['legs_in_flight{endpoint="p-0"}'] == 2.0


@given(st.lists(st.floats(0, 400), max_size=30))
def test_a_histogram_counts_each_value_once(values: list[float]) -> None:
    made = figures()
    pending = PendingReport()
    for index, value in enumerate(values):
        pending.observe("prefill_leg_seconds", (), value)
        if index % 3 == 0:  # Figures come in several reports.
            for increment in pending.take(running=0, queued=0).histograms:
                assert made.add_histogram(increment)
    for increment in pending.take(running=0, queued=0).histograms:
        assert made.add_histogram(increment)
    samples = exported(made)
    if not values:
        assert "prefill_leg_seconds_count" not in samples
        return
    assert samples["prefill_leg_seconds_count"] == len(values)
    assert samples["prefill_leg_seconds_sum"] == pytest.approx(sum(values))
    for bound in METRICS["prefill_leg_seconds"].buckets:
        below = sum(value <= bound for value in values)
        assert samples[f'prefill_leg_seconds_bucket{{le="{bound:g}"}}'] == below
    assert samples['prefill_leg_seconds_bucket{le="+Inf"}'] == len(values)


def test_every_metric_is_exported_with_its_help_and_kind() -> None:
    text = figures().render().decode()
    for metric in METRICS.values():
        assert f"# HELP {metric.name} {metric.help}\n" in text
        assert f"# TYPE {metric.name} {metric.kind.value}\n" in text
