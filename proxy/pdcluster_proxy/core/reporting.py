"""What a worker has to tell its companion, summed up until it is sent.

Pure. The companion serves all workers from one process, so what a request costs there counts as
much as in the worker: figures are added up here, histograms are sorted into their buckets here, and
a lease that was granted, handed off and read within one report is told as one met pair. Whatever
is told is bounded while nobody takes it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from itertools import islice
from typing import Final

from pdcluster_proxy.core.messages import (
    HistogramIncrement,
    InFlight,
    LeaseStep,
    LeaseStepKind,
    Outcome,
    OutcomeKind,
    PairMet,
    Report,
)
from pdcluster_proxy.metrics import METRICS

__all__ = ["MAX_PENDING", "PendingReport"]

MAX_PENDING: Final = 20_000
"""Most outcomes and lease events kept while the companion does not take them."""

_BUCKETS: Final[Mapping[str, tuple[float, ...]]] = {
    short: metric.buckets for short, metric in METRICS.items() if metric.buckets
}
# Reading a member off its enum costs as much as a call: the hot path does it here, once.
_GRANTED: Final = LeaseStepKind.GRANTED
_HANDED_OFF: Final = LeaseStepKind.HANDED_OFF
_ENDED: Final = LeaseStepKind.ENDED
_SUCCEEDED: Final = OutcomeKind.SUCCEEDED
_STEPS: Final = {kind: kind.value for kind in LeaseStepKind}
_KINDS: Final = {kind: kind.value for kind in OutcomeKind}

_Labels = tuple[str, ...]


class _Histogram:
    """The values of one label set since the last report."""

    __slots__ = ("counts", "total")

    def __init__(self, num_buckets: int) -> None:
        self.counts = [0] * (num_buckets + 1)
        self.total = 0.0


class PendingReport:
    """Gathers what the next report says."""

    __slots__ = (
        "_changed",
        "_counters",
        "_histograms",
        "_leases",
        "_legs",
        "_outcomes",
        "_pairs_met",
        "_praised",
        "_seq",
    )

    def __init__(self) -> None:
        # This is all the mutable state.
        self._seq = 0
        self._legs: dict[str, tuple[int, int]] = {}
        self._changed: set[str] = set()
        self._outcomes: list[Outcome] = []
        self._praised: set[str] = set()
        self._leases: dict[tuple[str, str, LeaseStepKind], LeaseStep] = {}
        self._pairs_met: dict[PairMet, None] = {}
        self._counters: dict[tuple[str, _Labels], float] = {}
        self._histograms: dict[tuple[str, _Labels], _Histogram] = {}

    def add_legs(self, endpoint: str, legs: int, prompt_tokens: int) -> None:
        """Change the open legs on an endpoint.

        Args:
            endpoint: Its name.
            legs: How many more, negative for fewer.
            prompt_tokens: Estimated prompt tokens of these legs, with the same sign.
        """
        old_legs, old_tokens = self._legs.get(endpoint, (0, 0))
        self._legs[endpoint] = (old_legs + legs, old_tokens + prompt_tokens)
        self._changed.add(endpoint)

    def tell_all_legs(self) -> None:
        """Have the next report name every endpoint with open legs: a companion begins anew."""
        self._changed = set(self._legs)

    def add_outcome(self, outcome: Outcome) -> None:
        """Note how a leg ended; successes without a failure between them are told once."""
        endpoint, kind = outcome.endpoint, outcome.kind
        self.count("leg_outcomes_total", (endpoint, _KINDS[kind]))
        if kind is _SUCCEEDED:
            if endpoint in self._praised:
                return
            self._praised.add(endpoint)
        else:
            self._praised.discard(endpoint)
        self._outcomes.append(outcome)

    def add_lease(self, event: LeaseStep) -> None:
        """Note a step of a lease; one that began and ended since the last report leaves a pair."""
        kind, endpoint, request_id = event.kind, event.endpoint, event.request_id
        self.count("leases_total", (endpoint, _STEPS[kind]))
        if kind is _ENDED and event.engine_id and event.decode_endpoint:
            pair = PairMet(
                endpoint, event.engine_id, event.decode_endpoint, event.decode_incarnation
            )
            self._pairs_met[pair] = None
        if kind is _ENDED and not event.release:
            self._leases.pop((endpoint, request_id, _HANDED_OFF), None)
            if self._leases.pop((endpoint, request_id, _GRANTED), None) is not None:
                return
        self._leases[endpoint, request_id, kind] = event

    def count(self, name: str, labels: _Labels, amount: float = 1.0) -> None:
        """Add to a counter."""
        key = (name, labels)
        self._counters[key] = self._counters.get(key, 0.0) + amount

    def observe(self, name: str, labels: _Labels, value: float) -> None:
        """Sort one value into a histogram's buckets; what is no number is told as a surplus."""
        key = (name, labels)
        bounds = _BUCKETS.get(name, ())
        histogram = self._histograms.get(key)
        if histogram is None:
            histogram = self._histograms[key] = _Histogram(len(bounds))
        histogram.counts[bisect.bisect_left(bounds, value)] += 1
        histogram.total += value if math.isfinite(value) else 0.0

    def drop_surplus(self) -> None:
        """Forget the oldest of what the companion does not take, and count it."""
        surplus = max(0, len(self._outcomes) - MAX_PENDING)
        if surplus:
            del self._outcomes[:surplus]
            self._praised.clear()
        more = max(0, len(self._leases) - MAX_PENDING)
        for key in list(islice(self._leases, more)):
            del self._leases[key]
        if surplus + more:
            self.count("reports_dropped_total", (), surplus + more)

    def take(self, *, running: int, queued: int) -> Report:
        """Give the report and begin the next one.

        Args:
            running: Exchanges that run in this worker now.
            queued: Exchanges that wait for admission in it now.
        """
        self._seq += 1
        legs = self._legs
        report = Report(
            seq=self._seq,
            in_flight=tuple([InFlight(name, *legs[name]) for name in self._changed]),
            outcomes=tuple(self._outcomes),
            leases=tuple(self._leases.values()),
            pairs_met=tuple(self._pairs_met),
            counters=tuple([(*key, amount) for key, amount in self._counters.items()]),
            histograms=tuple(
                [
                    HistogramIncrement(*key, tuple(histogram.counts), histogram.total)
                    for key, histogram in self._histograms.items()
                ]
            ),
            running=running,
            queued=queued,
        )
        for name in self._changed:
            if legs[name] == (0, 0):
                del legs[name]
        self._changed.clear()
        self._outcomes.clear()
        self._praised.clear()
        self._leases.clear()
        self._pairs_met.clear()
        self._counters.clear()
        self._histograms.clear()
        return report
