"""The companion: what all workers share, in one place.

Shell. It hears of engines (discovery, checks) and of workers (reports), keeps roster, ledger and
figures, and pushes a pool snapshot to every worker when an endpoint's state changes and, while
loads change, twice per second. Deliberately not here: HTTP, sockets and files.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import asdict
from pydantic.alias_generators import to_camel

from pdcluster_api.proxy_config import Role
from pdcluster_api.proxy_state import EngineLedger, ProxyState
from pdcluster_proxy.companion.figures import Figures
from pdcluster_proxy.companion.ledger import Ledger
from pdcluster_proxy.companion.roster import Elsewhere, Roster
from pdcluster_proxy.core.messages import (
    DrainNotice,
    EndpointState,
    EndpointView,
    Load,
    OutcomeKind,
    PoolNotice,
    PoolSnapshot,
    ToWorker,
)
from pdcluster_proxy.core.picker import make_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pdcluster_api.proxy_config import EndpointConfig, EndpointsFile, ProxyConfig
    from pdcluster_proxy.companion.exposition import EngineFigures
    from pdcluster_proxy.companion.figures import Gauge
    from pdcluster_proxy.companion.roster import EndpointChange
    from pdcluster_proxy.core.messages import InFlight, LeaseStep, PairMet, Report

__all__ = ["Companion", "EngineChecks", "WorkerLink"]

_LOG = logging.getLogger(__name__)

PUSH_INTERVAL_S: Final = 0.5
"""Longest time a changed load waits for its snapshot."""

SWEEP_INTERVAL_S: Final = 1.0
"""Between two sweeps of the ledger."""

SETTLE_S: Final = 2.0
"""Longest time after the first list of engines in which workers are told nothing, in seconds; below
what a worker waits for its first snapshot."""

GONE_SERIES_S: Final = 600.0
"""How long the figures of an engine that is gone are still exported, in seconds: long enough for
several scrapes to see its last ones, and for its last legs to end."""

MAX_WARM_PAIRS: Final = 10_000
"""More pairs than any pool has in use."""


_SHOWN_STATES: Final = tuple(state for state in EndpointState if state is not EndpointState.GONE)
_NOT_SERVING: Final = frozenset({EndpointState.UNPROVEN, EndpointState.EJECTED})


class WorkerLink(Protocol):
    """A connected worker (``wire/link_server.py``)."""

    def send(self, message: ToWorker) -> None:
        """Queue one message."""


class EngineChecks(Protocol):
    """Active checks (``checks.py``)."""

    def follow(self, endpoints: Iterable[EndpointConfig]) -> None:
        """Check exactly these endpoints from now on."""

    def check_soon(self, endpoint: str) -> None:
        """Check this one at once."""


@dataclass(slots=True)
class _Worker:
    """What one worker has told."""

    legs: dict[str, InFlight] = field(default_factory=dict)
    running: int = 0
    queued: int = 0


class Companion:
    """All that one proxy knows.

    A companion that begins knows of no engine whether it works, while the workers of an earlier one
    go on with what that one told them. So they are told nothing before each engine of the first
    list has been checked once, or :data:`SETTLE_S` have passed since it came.

    Args:
        config: The proxy's configuration.
        num_workers: How many workers there should be.
        first_incarnation: See :class:`~pdcluster_proxy.companion.roster.Roster`.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        config: ProxyConfig,
        *,
        num_workers: int = 1,
        first_incarnation: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._num_workers = num_workers
        self._clock = clock
        self.figures = Figures(self._gauges)
        # This is all the mutable state.
        self._roster = Roster(
            lease_duration_s=config.lease.duration_seconds, first_incarnation=first_incarnation
        )
        self._ledger = Ledger(max_hold_s=config.lease.max_hold_seconds)
        self._workers: dict[WorkerLink, _Worker] = {}
        self._warm_pairs: dict[tuple[str, str, int], None] = {}
        self._checks: EngineChecks | None = None
        self._unchecked: set[str] | None = None
        """Engines of the first list without a check yet; None before there is a list."""
        self._settles_at = 0.0
        self._was_complete = False
        self._is_draining = False
        self._has_told_malformed = False
        self._gone_at: dict[str, float] = {}
        self._seq = 0
        self._num_adopted = 0
        self._has_news = False
        self._pushed_at = self._swept_at = clock()

    def check_with(self, checks: EngineChecks) -> None:
        """Use ``checks`` for what discovery finds."""
        self._checks = checks

    # Discovery.

    def discovered(self, endpoints: EndpointsFile) -> None:
        """Adopt a new list of engines."""
        self.figures.count("discovery_changes_total")
        self._num_adopted += 1
        self._changed(self._roster.adopt(endpoints, now=self._clock()))
        if self._checks is not None:
            self._checks.follow(self._roster.configs)
        names = {config.name for config in self._roster.configs}
        if self._unchecked is None:
            self._unchecked = names if self._checks is not None else set()
            self._settles_at = self._clock() + SETTLE_S
        self._unchecked &= names
        self.push()

    def discovery_failed(self, reason: str) -> None:  # noqa: ARG002 (the watcher has logged it)
        """Count a list that could not be used."""
        self.figures.count("discovery_errors_total")

    # Checks.

    def check_passed(self, endpoint: str) -> None:
        """An engine says that it is healthy."""
        has_settled = self._checked(endpoint)
        changes = self._roster.check_passed(endpoint, now=self._clock())
        self._changed(changes, has_settled=has_settled)

    def check_failed(self, endpoint: str, reason: str, *, unreached: bool) -> None:
        """An engine does not answer, or says that it is not healthy."""
        self.figures.count(
            "check_failures_total", (endpoint, "unreached" if unreached else "failed")
        )
        _LOG.debug("check.failed", extra={"endpoint": endpoint, "reason": reason})
        self._has_news = True
        has_settled = self._checked(endpoint)
        changes = self._roster.check_failed(endpoint, unreached=unreached, now=self._clock())
        self._changed(changes, has_settled=has_settled)

    def scraped(self, endpoint: str, figures: EngineFigures) -> None:
        """An engine's figures."""
        self._has_news = True
        if self._roster.scraped(endpoint, figures, now=self._clock()):
            _LOG.info("endpoint.rebooted", extra={"endpoint": endpoint})
            self.push()

    def scrape_failed(self, endpoint: str, reason: str) -> None:
        """An engine's figures could not be read."""
        self.figures.count("scrape_failures_total", (endpoint,))
        _LOG.debug("scrape.failed", extra={"endpoint": endpoint, "reason": reason})
        self._roster.scrape_failed(endpoint)

    def is_serving(self, endpoint: str) -> bool:
        """Whether the endpoint is neither ejected nor new."""
        return self._roster.state(endpoint) not in _NOT_SERVING

    # Workers.

    def joined(self, worker: WorkerLink) -> None:
        """A worker has connected: it gets the pool at once, where that has settled."""
        self._workers[worker] = _Worker()
        self._was_complete |= len(self._workers) >= self._num_workers
        if self._is_settled:
            self._send_snapshot(worker)
        if self._is_draining:
            worker.send(DrainNotice())

    def left(self, worker: WorkerLink) -> None:
        """A worker is gone, and its open legs with it."""
        self._workers.pop(worker, None)
        self._has_news = True

    def reported(self, worker: WorkerLink, report: Report) -> None:
        """Take over what one worker tells."""
        known = self._workers[worker]
        known.running, known.queued = report.running, report.queued
        for leg in report.in_flight:
            if leg.legs:
                known.legs[leg.endpoint] = leg
            else:  # Engines come and go under ever new names.
                known.legs.pop(leg.endpoint, None)
            self._has_news = True
        now = self._clock()
        for lease in report.leases:
            self._lease(lease, now)
        for pair in report.pairs_met:
            self._met(pair)
        fits = [self.figures.count(*increment) for increment in report.counters]
        fits += [self.figures.add_histogram(increment) for increment in report.histograms]
        if not all(fits):
            self.figures.count("malformed_reports_total")
            if not self._has_told_malformed:  # Once: the metric has the rest.
                self._has_told_malformed = True
                _LOG.error("report.malformed", extra={"seq": report.seq})
        for outcome in report.outcomes:
            self._changed(self._roster.outcome(outcome.endpoint, outcome.kind, now=now))
            if outcome.kind is OutcomeKind.FAILED_LOCALLY and self._checks is not None:
                self._checks.check_soon(outcome.endpoint)

    # Time.

    def pulse(self) -> None:
        """Let time pass; call a few times per second."""
        now = self._clock()
        if self._unchecked and now >= self._settles_at:
            _LOG.warning("pool.unsettled", extra={"unchecked": sorted(self._unchecked)})
            self._unchecked.clear()
            self.push()
        self._changed(self._roster.tick(now=now))
        if now - self._swept_at >= SWEEP_INTERVAL_S:
            self._swept_at = now
            views = self._roster.views({}, now=now)
            self._ledger.sweep({v.name: v.lease_duration_s for v in views}, now=now)
            self._forget_gone({view.name for view in views}, now)
        if self._has_news and now - self._pushed_at >= PUSH_INTERVAL_S:
            self.push()

    def drain(self) -> None:
        """The proxy is on its way out: not ready any more."""
        if not self._is_draining:
            self._is_draining = True
            _LOG.info("drain.started")
            for worker in self._workers:
                worker.send(DrainNotice())

    def push(self) -> None:
        """Send every worker the pool as it is now, once it has settled."""
        if not self._is_settled:
            return
        self._has_news = False
        self._pushed_at = self._clock()
        self._seq += 1
        # Boots that are over are warm no more.
        self._warm_pairs = dict.fromkeys(self._roster.alive(self._warm_pairs))
        for worker in self._workers:
            self._send_snapshot(worker)

    # What the admin page shows.

    def hindrances(self) -> tuple[str, ...]:
        """Why the proxy is not ready; empty where it is."""
        reasons = []
        if self._is_draining:
            reasons.append("draining")
        # At the start all of them count; later one is enough while another is restarted.
        if not self._workers or not self._was_complete:
            reasons.append(f"{len(self._workers)} of {self._num_workers} workers are connected")
        # What the workers make of it is what counts: in a panic they serve.
        if not make_pool(self._snapshot(None)).revisions:
            engines = [f"{role.value}: {_told(self._roster.census(role))}" for role in Role]
            reasons.append(f"no pair of one revision is ready ({'; '.join(engines)})")
        return tuple(reasons)

    def endpoints(self) -> tuple[EndpointView, ...]:
        """Every endpoint, with the legs of all workers."""
        return self._roster.views(self._legs_but(None), now=self._clock())

    def endpoint_rows(self) -> tuple[Mapping[str, object], ...]:
        """Every endpoint for people, with names as the ledger's page writes them."""
        return tuple(_with_json_names(asdict(view)) for view in self.endpoints())

    def state(self) -> ProxyState:
        """What the operator asks for."""
        now = self._clock()
        held, oldest = self._ledger.counts(), self._ledger.oldest_s(now=now)
        workers = self._workers.values()
        return ProxyState(
            cluster=self._config.cluster,
            draining=self._is_draining,
            in_flight=sum(worker.running for worker in workers),
            queued=sum(worker.queued for worker in workers),
            endpoints_seq=self._num_adopted,
            engines=tuple(
                EngineLedger(
                    name=view.name,
                    role=Role(view.role),
                    draining=view.state is EndpointState.DRAINING,
                    in_flight=view.in_flight_elsewhere,
                    held=held[view.name] if view.role == Role.PREFILL else None,
                    oldest_held_seconds=oldest.get(view.name),
                )
                for view in self.endpoints()
            ),
        )

    # Inside.

    @property
    def _is_settled(self) -> bool:
        return self._unchecked is not None and not self._unchecked

    def _checked(self, endpoint: str) -> bool:
        """Note a check; returns whether the pool has settled by it."""
        if not self._unchecked:
            return False
        self._unchecked.discard(endpoint)
        return self._is_settled

    def _lease(self, lease: LeaseStep, now: float) -> None:
        self._ledger.apply(lease, now=now)
        if self._roster.learnt_engine_id(lease.endpoint, lease.engine_id):
            self._has_news = True

    def _met(self, met: PairMet) -> None:
        if self._roster.learnt_engine_id(met.endpoint, met.engine_id):
            self._has_news = True
        pair = (met.engine_id, met.decode_endpoint, met.decode_incarnation)
        if pair not in self._warm_pairs:
            self._warm_pairs[pair] = None
            self._has_news = True
            if len(self._warm_pairs) > MAX_WARM_PAIRS:
                del self._warm_pairs[next(iter(self._warm_pairs))]

    def _changed(
        self, transitions: tuple[EndpointChange, ...], *, has_settled: bool = False
    ) -> None:
        """Log and count changes of state, and tell the workers."""
        for change in transitions:
            extra = {
                "endpoint": change.endpoint,
                "from": change.old,
                "to": change.new,
                "why": change.why,
            }
            level = logging.WARNING if change.new == EndpointState.EJECTED else logging.INFO
            _LOG.log(level, "endpoint.changed", extra=extra)
            self.figures.count(
                "endpoint_transitions_total", (change.endpoint, change.old, change.new)
            )
        if transitions or has_settled:
            self.push()

    def _forget_gone(self, known: set[str], now: float) -> None:
        """Drop the figures of engines that have been gone for a while."""
        gone = self.figures.endpoints() - known - {""}
        self._gone_at = {name: self._gone_at.get(name, now) for name in gone}
        for name in [name for name, at in self._gone_at.items() if now - at >= GONE_SERIES_S]:
            self.figures.forget(name)
            del self._gone_at[name]

    def _legs_but(self, worker: WorkerLink | None) -> dict[str, Elsewhere]:
        legs: Counter[str] = Counter()
        tokens: Counter[str] = Counter()
        for link, known in self._workers.items():
            if link is not worker:
                for name, leg in known.legs.items():
                    legs[name] += leg.legs
                    tokens[name] += leg.prompt_tokens
        return {
            name: Elsewhere(legs=number, prompt_tokens=tokens[name])
            for name, number in legs.items()
        }

    def _send_snapshot(self, worker: WorkerLink) -> None:
        worker.send(PoolNotice(self._snapshot(worker)))

    def _snapshot(self, worker: WorkerLink | None) -> PoolSnapshot:
        """The pool as a worker gets it: with the legs of all others."""
        return PoolSnapshot(
            seq=self._seq,
            endpoints=self._roster.views(self._legs_but(worker), now=self._clock()),
            warm_pairs=tuple(self._warm_pairs),
        )

    def _gauges(self) -> Iterator[Gauge]:
        state = self.state()
        yield "in_flight", (), state.in_flight
        yield "queued", (), state.queued
        yield "workers", (), len(self._workers)
        for engine in state.engines:
            yield "legs_in_flight", (engine.name,), engine.in_flight
            if engine.held is not None:
                yield "leases_held", (engine.name,), engine.held
                yield "oldest_lease_seconds", (engine.name,), engine.oldest_held_seconds or 0.0
        for view in self.endpoints():
            for possible in _SHOWN_STATES:
                labels = (view.name, view.role, possible.value)
                yield "endpoint_state", labels, float(view.state is possible)


def _told(census: Mapping[EndpointState, int]) -> str:
    told = [f"{census[state]} {state.value}" for state in _SHOWN_STATES if census[state]]
    return ", ".join(told) or "none"


def _with_json_names(row: Mapping[str, object]) -> Mapping[str, object]:
    return {
        to_camel(name): _with_json_names(asdict(value)) if isinstance(value, Load) else value
        for name, value in row.items()
    }
