"""The lease table against a naive model: a list of intervals, searched in full each time."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pdcluster_lease.lease import (
    Abort,
    Expired,
    Grant,
    LateRead,
    LeaseTable,
    Released,
    Renewed,
    Sweep,
)
from pdcluster_lease.params import RequestId
from pdcluster_lease.timing import LeaseTiming
from pdcluster_lease.wire import Heartbeat, TransferComplete

NAMES = [RequestId(f"r{index}") for index in range(6)]
STEPS = st.floats(min_value=0.0, max_value=40.0, allow_nan=False)


@dataclass
class Naive:
    """One lease, the way one would write it on paper."""

    name: RequestId
    granted_at: float
    renewals: list[float] = field(default_factory=list)
    reads: int = 0

    def end(self, timing: LeaseTiming) -> float:
        ends = [self.granted_at + timing.duration_s]
        ends += [at + timing.duration_s * 2 // 3 for at in self.renewals]
        return max(ends)


class LeaseModel(RuleBasedStateMachine):
    """Drives both with grants, renewals, reads, aborts, sweeps and jumps of the clock."""

    @initialize(duration=st.integers(min_value=6, max_value=120))
    def begin(self, duration: int) -> None:
        self.timing = LeaseTiming.from_duration(duration)
        self.table = LeaseTable(self.timing)
        self.model: list[Naive] = []
        self.now = 0.0
        self.grants = 0
        self.ends = 0

    def find(self, name: RequestId) -> Naive | None:
        return next((each for each in self.model if each.name == name), None)

    @rule(seconds=STEPS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=st.sampled_from(NAMES))
    def grant(self, name: RequestId) -> None:
        if self.find(name) is not None:
            return
        self.table.apply(Grant(name), now=self.now)
        self.model.append(Naive(name, self.now))
        self.grants += 1

    @rule(names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    def renew(self, names: list[RequestId]) -> None:
        outcomes = self.table.apply(Heartbeat(tuple(names)), now=self.now)
        assert len(outcomes) == len(names)
        for name, outcome in zip(names, outcomes, strict=True):
            lease = self.find(name)
            assert (lease is not None) == isinstance(outcome, Renewed)
            if lease is not None and isinstance(outcome, Renewed):
                assert outcome.old_expires_at == lease.end(self.timing)
                lease.renewals.append(self.now)
                assert outcome.expires_at == lease.end(self.timing)
                assert outcome.expires_at >= outcome.old_expires_at

    @rule(name=st.sampled_from(NAMES), consumers=st.integers(1, 3))
    def read(self, name: RequestId, consumers: int) -> None:
        (outcome,) = self.table.apply(TransferComplete(name, consumers), now=self.now)
        lease = self.find(name)
        if lease is None:
            assert outcome == LateRead(name)
            return
        lease.reads += 1
        is_done = lease.reads >= consumers
        assert is_done == isinstance(outcome, Released)
        if is_done:
            self.model.remove(lease)
            self.ends += 1

    @rule(name=st.sampled_from(NAMES))
    def abort(self, name: RequestId) -> None:
        (outcome,) = self.table.apply(Abort(name), now=self.now)
        lease = self.find(name)
        assert (lease is not None) == isinstance(outcome, Released)
        if lease is not None:
            self.model.remove(lease)
            self.ends += 1

    @rule()
    def sweep(self) -> None:
        over = {each.name: each.reads for each in self.model if self.now >= each.end(self.timing)}
        outcomes = self.table.apply(Sweep(), now=self.now)
        assert {Expired(name, reads) for name, reads in over.items()} == set(outcomes)
        self.model = [each for each in self.model if each.name not in over]
        self.ends += len(over)

    @invariant()
    def both_hold_the_same_leases(self) -> None:
        assert {each.name for each in self.model} == {name for name in NAMES if name in self.table}
        assert self.table.held == len(self.model)

    @invariant()
    def every_grant_is_held_or_has_ended_once(self) -> None:
        assert self.grants == self.ends + self.table.held

    @invariant()
    def the_next_end_is_the_earliest(self) -> None:
        ends = [each.end(self.timing) for each in self.model]
        assert min(ends, default=None) == self.table.next_end()


LeaseModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLeaseModel = LeaseModel.TestCase
