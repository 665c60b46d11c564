"""What companion and workers tell each other: frozen structs, sent as length-prefixed msgpack.

Pure. The companion pushes :class:`PoolNotice` and :class:`DrainNotice`; a worker pushes
:class:`Report`. Durations travel as what remains or what has passed, never as an instant.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

__all__ = [
    "DrainNotice",
    "EndpointState",
    "EndpointView",
    "HistogramIncrement",
    "InFlight",
    "LeaseStep",
    "LeaseStepKind",
    "Load",
    "Outcome",
    "OutcomeKind",
    "PairMet",
    "PoolNotice",
    "PoolSnapshot",
    "Report",
    "ToWorker",
]


class EndpointState(StrEnum):
    """States of the endpoint machine (``core/endpoint.py``)."""

    UNPROVEN = "unproven"
    READY = "ready"
    EJECTED = "ejected"
    DRAINING = "draining"
    GONE = "gone"


class Load(msgspec.Struct, frozen=True):
    """One scrape of an engine's metrics; a figure that is missing is None, never zero."""

    running: float | None = None
    """``vllm:num_requests_running``."""
    waiting: float | None = None
    """``vllm:num_requests_waiting``."""
    kv_usage: float | None = None
    """``vllm:kv_cache_usage_perc``, 0 to 1."""


class EndpointView(msgspec.Struct, frozen=True):
    """One engine as the workers see it."""

    name: str
    role: str
    """``prefill`` or ``decode``."""
    host: str
    port: int
    side_channel_host: str
    side_channel_port: int
    revision: str
    state: EndpointState
    incarnation: int
    """Counts the boots of this endpoint that the companion has seen; part of a pair's identity."""
    lease_duration_s: int
    block_size: int | None = None
    engine_id: str | None = None
    """Learnt from the engine's first answer; None until then."""
    load: Load | None = None
    load_age_s: float | None = None
    in_flight_elsewhere: int = 0
    """Open legs of all other workers on this endpoint."""
    prompt_tokens_elsewhere: int = 0
    """Estimated prompt tokens of those legs (prefill endpoints)."""


class PoolSnapshot(msgspec.Struct, frozen=True):
    """All endpoints at one moment."""

    seq: int
    endpoints: tuple[EndpointView, ...] = ()
    warm_pairs: tuple[tuple[str, str, int], ...] = ()
    """Pairs that exchanged KV before: (P engine id, D endpoint name, D incarnation)."""


class PoolNotice(msgspec.Struct, frozen=True, tag="snapshot"):
    """Companion to worker: the pool has changed."""

    pool: PoolSnapshot


class DrainNotice(msgspec.Struct, frozen=True, tag="drain"):
    """Companion to worker: take no new connections, finish what runs."""


ToWorker = PoolNotice | DrainNotice


class InFlight(msgspec.Struct, frozen=True):
    """This worker's open legs on one endpoint (absolute, so a lost report heals itself)."""

    endpoint: str
    legs: int
    prompt_tokens: int = 0


class OutcomeKind(StrEnum):
    """How a leg ended, for outlier detection."""

    SUCCEEDED = "succeeded"
    FAILED_LOCALLY = "failed-locally"
    """We could not talk to it."""
    FAILED_UPSTREAM = "failed-upstream"
    """It answered badly."""


class Outcome(msgspec.Struct, frozen=True):
    """One ended leg."""

    endpoint: str
    kind: OutcomeKind
    reason: str = ""


class LeaseStepKind(StrEnum):
    """Steps of a KV lease as the exchange sees it."""

    GRANTED = "granted"
    HANDED_OFF = "handed-off"
    ENDED = "ended"


class LeaseStep(msgspec.Struct, frozen=True):
    """One step of one lease, for the ledger and (later) the keeper."""

    kind: LeaseStepKind
    endpoint: str
    """The prefill endpoint that granted."""
    request_id: str
    """``remote_request_id``: the lease's key on P."""
    age_s: float = 0.0
    """Seconds since the grant, by the worker's clock."""
    engine_id: str = ""
    decode_endpoint: str = ""
    decode_incarnation: int = 0
    params: bytes = b""
    """P's raw object, sent with GRANTED only: what a keeper needs to renew and release."""
    release: bool = False
    """With ENDED: no engine will read any more, so P may have its blocks back at once."""


class PairMet(msgspec.Struct, frozen=True):
    """A decode engine has read from a prefill engine: the pair is warm."""

    endpoint: str
    """The prefill endpoint."""
    engine_id: str
    """What its engine called itself."""
    decode_endpoint: str
    decode_incarnation: int


class HistogramIncrement(msgspec.Struct, frozen=True):
    """Values of one label set of a histogram, sorted into its buckets."""

    name: str
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    """Per bucket, not cumulated; the last one has no upper bound."""
    total: float
    """Sum of the values."""


class Report(msgspec.Struct, frozen=True, tag="report"):
    """Worker to companion: everything since the last report (``core/reporting.py``)."""

    seq: int
    in_flight: tuple[InFlight, ...] = ()
    """Changed endpoints only; full list on the first report of a connection."""
    outcomes: tuple[Outcome, ...] = ()
    """Of several successes in a row on one endpoint the first only."""
    leases: tuple[LeaseStep, ...] = ()
    """Without those of leases that began and ended within this report."""
    pairs_met: tuple[PairMet, ...] = ()
    counters: tuple[tuple[str, tuple[str, ...], float], ...] = ()
    """(metric name, label values, increment); names and labels are declared in ``metrics.py``."""
    histograms: tuple[HistogramIncrement, ...] = ()
    running: int = 0
    """Exchanges that run in this worker now."""
    queued: int = 0
    """Exchanges that wait for admission in this worker now."""
