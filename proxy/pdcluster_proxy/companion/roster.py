"""The companion's table of endpoints: standing, boots, load.

Pure: takes ``now``, returns what changed, which the shell logs and counts. What ejects an endpoint
is the machine of ``core/endpoint.py``; here it gets its events.

Theory of operation. Each boot that we notice gets a number of its own, its
*incarnation*, so that what was learnt of a pair is void once either side was restarted. A boot
shows by the process start time in the engine's metrics; where there is none, by a connect that
fails followed by a passed check. An entry whose address, role or revision changes is another
engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from pdcluster_api.proxy_config import EndpointConfig, EndpointsFile, Role
from pdcluster_proxy.companion.exposition import EngineFigures
from pdcluster_proxy.core.endpoint import (
    DISCOVERED,
    EndpointEvent,
    EndpointStatus,
    may_eject,
    step,
)
from pdcluster_proxy.core.messages import EndpointState, EndpointView, Load, OutcomeKind

__all__ = ["Elsewhere", "EndpointChange", "Roster", "is_same_engine"]

CHECK_FAILURES_TO_EJECT: Final = 2
"""Failed checks in a row; a failed connect needs no second one."""

_EVENTS: Final = {
    OutcomeKind.SUCCEEDED: EndpointEvent.SUCCEEDED,
    OutcomeKind.FAILED_LOCALLY: EndpointEvent.FAILED_LOCALLY,
    OutcomeKind.FAILED_UPSTREAM: EndpointEvent.FAILED_UPSTREAM,
}


_EJECTING: Final = frozenset(
    {EndpointEvent.FAILED_LOCALLY, EndpointEvent.FAILED_UPSTREAM, EndpointEvent.CHECK_FAILED}
)
"""What may end in an ejection; only then is the rest of the role looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointChange:
    """An endpoint's state has changed.

    Attributes:
        endpoint: Its name.
        old: The state before; "" for a new endpoint.
        new: The state now.
        why: What did it: an event's name.
    """

    endpoint: str
    old: str
    new: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Open legs on one endpoint, of all workers but one.

    Attributes:
        legs: How many.
        prompt_tokens: Their estimated prompt tokens.
    """

    legs: int = 0
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    config: EndpointConfig
    status: EndpointStatus
    incarnation: int
    host: str
    port: int
    started_at: float | None = None
    was_unreached: bool = False
    check_failures: int = 0
    load: Load | None = None
    load_at: float = 0.0
    engine_id: str | None = None


class Roster:
    """All endpoints of one proxy.

    Args:
        lease_duration_s: The lease of endpoints that do not state their own, in seconds.
        first_incarnation: Number of the first boot seen; larger than any that an earlier companion
            of this proxy gave, or workers would take an old boot for a new one.
    """

    def __init__(self, *, lease_duration_s: int, first_incarnation: int = 1) -> None:
        self._lease_duration_s = lease_duration_s
        # This is all the mutable state.
        self._entries: dict[str, _Entry] = {}
        self._next_incarnation = first_incarnation

    @property
    def configs(self) -> tuple[EndpointConfig, ...]:
        """Every endpoint as discovery knows it."""
        return tuple(entry.config for entry in self._entries.values())

    def state(self, endpoint: str) -> EndpointState | None:
        """State of one endpoint; None where it is not known."""
        entry = self._entries.get(endpoint)
        return None if entry is None else entry.status.state

    def census(self, role: Role) -> Counter[EndpointState]:
        """How many endpoints of a role are in which state."""
        entries = self._entries.values()
        return Counter(e.status.state for e in entries if e.config.role is role)

    def adopt(self, file: EndpointsFile, *, now: float) -> tuple[EndpointChange, ...]:
        """Make the roster hold exactly the endpoints of ``file``."""
        wanted = {config.name: config for config in file.endpoints}
        changed: list[EndpointChange] = []
        for name, entry in tuple(self._entries.items()):
            config = wanted.get(name)
            if config is None or not is_same_engine(config, entry.config):
                del self._entries[name]
                gone = _transition(name, entry.status.state, EndpointState.GONE, "Deleted")
                changed.append(gone)
        for name, config in wanted.items():
            if name in self._entries:
                self._entries[name] = replace(self._entries[name], config=config)
            else:
                self._entries[name] = entered = self._enter(config)
                changed.append(_transition(name, "", entered.status.state, "Discovered"))
            event = EndpointEvent.DRAIN if config.draining else EndpointEvent.UNDRAIN
            changed += self._step(name, event, now=now)
        return tuple(changed)

    def outcome(
        self, endpoint: str, kind: OutcomeKind, *, now: float
    ) -> tuple[EndpointChange, ...]:
        """Note how a leg ended; legs of endpoints that are gone say nothing."""
        return self._step(endpoint, _EVENTS[kind], now=now)

    def check_passed(self, endpoint: str, *, now: float) -> tuple[EndpointChange, ...]:
        """Note a passed active check."""
        entry = self._entries.get(endpoint)
        if entry is None:
            return ()
        if entry.was_unreached and entry.started_at is None:
            entry = self._reboot(entry)
        self._entries[endpoint] = replace(entry, check_failures=0, was_unreached=False)
        return self._step(endpoint, EndpointEvent.CHECK_PASSED, now=now)

    def check_failed(
        self, endpoint: str, *, unreached: bool, now: float
    ) -> tuple[EndpointChange, ...]:
        """Note a failed active check.

        Args:
            endpoint: Its name.
            unreached: No connection could be made: proof enough by itself.
            now: Monotonic seconds.
        """
        entry = self._entries.get(endpoint)
        if entry is None:
            return ()
        failures = entry.check_failures + 1
        self._entries[endpoint] = replace(
            entry,
            check_failures=failures,
            was_unreached=entry.was_unreached or unreached,
            load=None,
        )
        if not unreached and failures < CHECK_FAILURES_TO_EJECT:
            return ()
        return self._step(endpoint, EndpointEvent.CHECK_FAILED, now=now)

    def scraped(self, endpoint: str, figures: EngineFigures, *, now: float) -> bool:
        """Note an engine's figures; returns whether they show another boot."""
        entry = self._entries.get(endpoint)
        if entry is None:
            return False
        known, seen = entry.started_at, figures.started_at
        has_rebooted = known is not None and seen is not None and seen != known
        if has_rebooted:
            entry = self._reboot(entry)
        self._entries[endpoint] = replace(
            entry, load=figures.load, load_at=now, started_at=known if seen is None else seen
        )
        return has_rebooted

    def scrape_failed(self, endpoint: str) -> None:
        """Note that an engine's figures could not be read: they are unknown now."""
        entry = self._entries.get(endpoint)
        if entry is not None:
            self._entries[endpoint] = replace(entry, load=None)

    def learnt_engine_id(self, endpoint: str, engine_id: str) -> bool:
        """Note the engine id of an answer; returns whether it is new."""
        entry = self._entries.get(endpoint)
        if entry is None or not engine_id or entry.engine_id == engine_id:
            return False
        self._entries[endpoint] = replace(entry, engine_id=engine_id)
        return True

    def tick(self, *, now: float) -> tuple[EndpointChange, ...]:
        """Let time pass: ejections end."""
        changed: list[EndpointChange] = []
        for name in tuple(self._entries):
            changed += self._step(name, EndpointEvent.TICK, now=now)
        return tuple(changed)

    def views(self, elsewhere: dict[str, Elsewhere], *, now: float) -> tuple[EndpointView, ...]:
        """What one worker is told."""
        nothing = Elsewhere()
        return tuple(
            self._view(entry, elsewhere.get(name, nothing), now)
            for name, entry in self._entries.items()
        )

    def alive(self, pairs: Iterable[tuple[str, str, int]]) -> frozenset[tuple[str, str, int]]:
        """Those of (P engine id, D name, D incarnation) whose boots are both the present ones."""
        engine_ids = {entry.engine_id for entry in self._entries.values()}
        boots = {(name, entry.incarnation) for name, entry in self._entries.items()}
        return frozenset(p for p in pairs if p[0] in engine_ids and p[1:] in boots)

    # Inside.

    def _step(self, name: str, event: EndpointEvent, *, now: float) -> tuple[EndpointChange, ...]:
        entry = self._entries.get(name)
        if entry is None:
            return ()
        old = entry.status
        allowed = event in _EJECTING and may_eject(self._states(entry.config.role), name)
        new = step(old, event, now=now, ejection_allowed=allowed)
        if new is old:
            return ()
        self._entries[name] = replace(entry, status=new)
        if new.state is old.state:
            return ()
        return (_transition(name, old.state, new.state, event.value),)

    def _states(self, role: Role) -> dict[str, EndpointState]:
        entries = self._entries.items()
        return {name: e.status.state for name, e in entries if e.config.role is role}

    def _enter(self, config: EndpointConfig) -> _Entry:
        url = urlsplit(config.url)
        return _Entry(
            config=config,
            status=DISCOVERED,
            incarnation=self._new_incarnation(),
            host=url.hostname or "",
            port=url.port or 80,
        )

    def _reboot(self, entry: _Entry) -> _Entry:
        return replace(
            entry, incarnation=self._new_incarnation(), engine_id=None, load=None, started_at=None
        )

    def _new_incarnation(self) -> int:
        self._next_incarnation += 1
        return self._next_incarnation - 1

    def _view(self, entry: _Entry, elsewhere: Elsewhere, now: float) -> EndpointView:
        config = entry.config
        side_host, _, side_port = config.side_channel.rpartition(":")
        return EndpointView(
            name=config.name,
            role=config.role.value,
            host=entry.host,
            port=entry.port,
            side_channel_host=side_host.strip("[]"),
            side_channel_port=int(side_port),
            revision=config.revision,
            state=entry.status.state,
            incarnation=entry.incarnation,
            lease_duration_s=config.lease_duration_seconds or self._lease_duration_s,
            block_size=config.block_size,
            engine_id=entry.engine_id,
            load=entry.load,
            load_age_s=None if entry.load is None else now - entry.load_at,
            in_flight_elsewhere=elsewhere.legs,
            prompt_tokens_elsewhere=elsewhere.prompt_tokens,
        )


def is_same_engine(one: EndpointConfig, other: EndpointConfig) -> bool:
    """Whether two entries of one name are the same engine; only the drain mark may differ."""
    return one.model_copy(update={"draining": False}) == other.model_copy(
        update={"draining": False}
    )


def _transition(name: str, old: str, new: str, why: str) -> EndpointChange:
    return EndpointChange(endpoint=name, old=old, new=new, why=why)
