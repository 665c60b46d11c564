"""Every metric of the proxy: name, kind, labels, help.

Pure. Workers report by the short name; the companion counts and exports under :attr:`Metric.name`.
Labels are bounded: routes, statuses and codes are ours, endpoints are those that are known now or
were a while ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["METRICS", "PREFIX", "Kind", "Metric"]

PREFIX: Final = "pdcluster_proxy_"

_FAST_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Buckets of what should take milliseconds, in seconds."""
_SLOW_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Buckets of what waits for an engine, in seconds."""


class Kind(StrEnum):
    """Prometheus' kinds that we use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        short: Name without the prefix; what workers report.
        kind: Its kind.
        help: One sentence for people.
        labels: Label names, in the order in which values are reported.
        buckets: Upper bounds of a histogram, ascending, without infinity.
    """

    short: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The exported name."""
        return PREFIX + self.short


def _counter(short: str, text: str, *labels: str) -> Metric:
    assert short.endswith("_total")
    return Metric(short=short, kind=Kind.COUNTER, help=text, labels=labels)


def _gauge(short: str, text: str, *labels: str) -> Metric:
    return Metric(short=short, kind=Kind.GAUGE, help=text, labels=labels)


def _histogram(short: str, text: str, *labels: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(short=short, kind=Kind.HISTOGRAM, help=text, labels=labels, buckets=buckets)


_FROM_WORKERS: Final = (
    _counter(
        "requests_total",
        "Ended exchanges; code is empty where all went well.",
        "route",
        "status",
        "code",
    ),
    _histogram(
        "request_seconds",
        "From a request's body to the end of its answer.",
        "route",
        buckets=_SLOW_S,
    ),
    _histogram(
        "first_event_seconds",
        "From a request's body to the decode engine's first event.",
        "route",
        buckets=_SLOW_S,
    ),
    _histogram("prefill_leg_seconds", "Successful prefill legs.", buckets=_SLOW_S),
    _histogram(
        "hand_off_age_seconds",
        "Age of the KV lease when the decode leg was sent.",
        buckets=(*_FAST_S, 5.0, 10.0, 30.0),
    ),
    _counter("leg_failures_total", "Legs that ended badly; the exchange may go on.", "leg", "code"),
    _counter("re_prefills_total", "Prefill legs after the first of an exchange."),
    _counter("relayed_bytes_total", "Bytes of streams given to clients."),
    _counter(
        "requests_rejected_total",
        "Requests rejected below the application: not valid HTTP.",
        "code",
    ),
    _counter("answers_unread_total", "Clients cut because they did not read their answers."),
    _counter(
        "exchange_log_lines_dropped_total", "Lines of the exchange log that could not be written."
    ),
    _counter("connections_opened_total", "Connections opened to engines.", "endpoint"),
    _counter("leases_total", "Steps of KV leases: granted, handed-off, ended.", "endpoint", "step"),
    _counter(
        "leg_outcomes_total", "Ended legs by what they say of the engine.", "endpoint", "kind"
    ),
    _counter("reports_dropped_total", "Reports lost because the companion did not take them."),
)

_FROM_COMPANION: Final = (
    _gauge("in_flight", "Exchanges that run now."),
    _gauge("queued", "Exchanges that wait for admission now."),
    _gauge("workers", "Worker processes that are connected."),
    _gauge("legs_in_flight", "Open legs on an engine.", "endpoint"),
    _gauge("endpoint_state", "1 for the state an endpoint is in.", "endpoint", "role", "state"),
    _gauge("leases_held", "Leases granted that have not ended.", "endpoint"),
    _gauge("oldest_lease_seconds", "Age of the oldest lease held.", "endpoint"),
    _counter(
        "endpoint_transitions_total", "Changes of an endpoint's state.", "endpoint", "from", "to"
    ),
    _counter("check_failures_total", "Failed active checks.", "endpoint", "reason"),
    _counter("scrape_failures_total", "Engine metrics that could not be read.", "endpoint"),
    _counter(
        "discovery_errors_total", "Endpoint files that could not be used; the last good one is."
    ),
    _counter("discovery_changes_total", "Endpoint files that were adopted."),
    _counter("malformed_reports_total", "Reports of workers with an unknown metric or bad labels."),
)

METRICS: Final[Mapping[str, Metric]] = {m.short: m for m in (*_FROM_WORKERS, *_FROM_COMPANION)}
"""By short name."""
