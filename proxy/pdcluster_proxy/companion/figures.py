"""The proxy's metrics, counted in one place from plain numbers.

Shell around prometheus_client, which only renders: its multi-process mode loses gauges of dead
workers and costs a file per metric and process; here workers report increments instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from pdcluster_proxy.core.messages import HistogramIncrement
from pdcluster_proxy.metrics import METRICS, Kind, Metric

__all__ = ["Figures", "Gauge"]

Gauge = tuple[str, tuple[str, ...], float]
"""(short name, label values, value)."""

_ENDPOINT_AT = {
    metric.short: metric.labels.index("endpoint")
    for metric in METRICS.values()
    if "endpoint" in metric.labels
}
"""Where the label stands, by metric that has it."""

MAX_SERIES = 2_000
"""Label sets kept per metric: labels are bounded, this bounds a bug."""


class _Histogram:
    """One label set's observations."""

    __slots__ = ("counts", "total")

    def __init__(self, num_buckets: int) -> None:
        self.counts = [0] * (num_buckets + 1)
        self.total = 0.0


class Figures(Collector):
    """Counts, and exports.

    Args:
        gauges: Gives the gauges of the moment at each export.
    """

    def __init__(self, gauges: Callable[[], Iterable[Gauge]]) -> None:
        self._gauges = gauges
        self._registry = CollectorRegistry()
        # This is all the mutable state.
        self._counters: dict[str, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[str, dict[tuple[str, ...], _Histogram]] = {}
        self._registry.register(self)

    def count(self, short: str, labels: tuple[str, ...] = (), amount: float = 1.0) -> bool:
        """Add to a counter.

        Returns:
            False where there is no such counter, or the labels or the amount do not fit it.
        """
        metric = _fitting(short, Kind.COUNTER, labels)
        if metric is None or amount < 0:
            return False
        series = self._counters.setdefault(short, {})
        if labels not in series and len(series) >= MAX_SERIES:
            return False
        series[labels] = series.get(labels, 0.0) + amount
        return True

    def add_histogram(self, increment: HistogramIncrement) -> bool:
        """Add values to a histogram; False as with :meth:`count`."""
        short, labels = increment.name, increment.labels
        metric = _fitting(short, Kind.HISTOGRAM, labels)
        if metric is None or len(increment.counts) != len(metric.buckets) + 1:
            return False
        if min(increment.counts) < 0 or not math.isfinite(increment.total):
            return False
        series = self._histograms.setdefault(short, {})
        histogram = series.get(labels)
        if histogram is None:
            if len(series) >= MAX_SERIES:
                return False
            histogram = series[labels] = _Histogram(len(metric.buckets))
        histogram.counts = [
            old + new for old, new in zip(histogram.counts, increment.counts, strict=True)
        ]
        histogram.total += increment.total
        return True

    def endpoints(self) -> frozenset[str]:
        """Every endpoint that some series is of."""
        return frozenset(
            labels[at]
            for short, at in _ENDPOINT_AT.items()
            for labels in (*self._counters.get(short, ()), *self._histograms.get(short, ()))
        )

    def forget(self, endpoint: str) -> None:
        """Drop all series of an endpoint."""
        for short, at in _ENDPOINT_AT.items():
            for series in (self._counters.get(short, {}), self._histograms.get(short, {})):
                for labels in [labels for labels in series if labels[at] == endpoint]:
                    del series[labels]

    def counter(self, short: str, labels: tuple[str, ...] = ()) -> float:
        """Present value of a counter."""
        return self._counters.get(short, {}).get(labels, 0.0)

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Family]:
        """Nothing: else registering would collect."""
        return ()

    @override
    def collect(self) -> Iterator[Family]:
        """Every metric that is declared; gauges as they are now."""
        gauges: dict[str, list[tuple[tuple[str, ...], float]]] = {}
        for short, labels, value in self._gauges():
            gauges.setdefault(short, []).append((labels, value))
        for metric in METRICS.values():
            match metric.kind:
                case Kind.COUNTER:
                    yield self._counter_family(metric)
                case Kind.HISTOGRAM:
                    yield self._histogram_family(metric)
                case Kind.GAUGE:
                    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
                    for labels, value in gauges.get(metric.short, ()):
                        family.add_metric(labels, value)
                    yield family

    def _counter_family(self, metric: Metric) -> Family:
        family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        series = self._counters.get(metric.short, {})
        if not metric.labels and not series:
            series = {(): 0.0}  # A counter without labels exists from the start.
        for labels, value in series.items():
            family.add_metric(labels, value)
        return family

    def _histogram_family(self, metric: Metric) -> Family:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        bounds = [*(f"{bound:g}" for bound in metric.buckets), "+Inf"]
        for labels, histogram in self._histograms.get(metric.short, {}).items():
            running, buckets = 0, []
            for bound, number in zip(bounds, histogram.counts, strict=True):
                running += number
                buckets.append((bound, float(running)))
            family.add_metric(labels, buckets, histogram.total)
        return family


def _fitting(short: str, kind: Kind, labels: tuple[str, ...]) -> Metric | None:
    metric = METRICS.get(short)
    if metric is None or metric.kind is not kind or len(labels) != len(metric.labels):
        return None
    return metric
