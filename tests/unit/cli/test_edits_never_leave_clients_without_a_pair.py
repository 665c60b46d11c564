"""A model of a run: edits, crashes, slow starts and time, in any order, on the pure core alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.support.resources import ENGINE
from tests.support.snapshots import next_address, snapshot, wish

from pdcluster_api.proxy_config import Role
from pdcluster_cli.up.lifecycle import Event, Phase
from pdcluster_cli.up.planning import Drain, Forget, Kill, Launch, Terminate, plan
from pdcluster_cli.up.snapshot import (
    Ending,
    Kind,
    Member,
    Snapshot,
    Stop,
    endpoints_of,
    is_ready,
    observed,
)
from pdcluster_cli.up.wishes import Wish, retargeted

WISHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "more decode": {"decode": {"replicas": 4}},
    "one of each": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}},
    "another lease": {"kvTransfer": {"kvLeaseDurationSeconds": 60}},
    "other words": {"engine": ENGINE | {"args": ["--x"]}, "prefill": {"replicas": 3}},
    "another proxy": {"proxy": {"idleTimeoutSeconds": 5}},
}
MADE = {title: wish(**fields) for title, fields in WISHES.items()}


class Run(RuleBasedStateMachine):
    """One run of ``up``; processes do what the rules draw."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.snapshot: Snapshot = snapshot()
        self.wish: Wish = MADE["plain"]
        self.served = False
        self.crashed = False

    def _note(self, member: Member, event: Event) -> None:
        code = 0 if event is Event.ENDED else None
        changed = observed(member, event, now=self.now, exit_code=code)
        self.snapshot = self.snapshot.with_member(changed)

    def _plan(self) -> None:
        for action in plan(self.snapshot, now=self.now):
            member = self.snapshot.member(action.name)
            assert member is not None
            match action:
                case Launch():
                    self._note(member, Event.LAUNCHED)
                case Drain():
                    self._note(member, Event.TOLD_TO_LEAVE)
                case Terminate():
                    self._note(replace(member, stop=Stop.ASKED), Event.TOLD_TO_LEAVE)
                case Kill():
                    self.snapshot = self.snapshot.with_member(replace(member, stop=Stop.FORCED))
                case Forget():
                    left = tuple(one for one in self.snapshot.members if one.name != action.name)
                    self.snapshot = replace(self.snapshot, members=left)
        self.served |= is_ready(self.snapshot)

    @initialize(title=st.sampled_from(sorted(MADE)))
    def begin(self, title: str) -> None:
        self.edit(title)

    @rule(title=st.sampled_from(sorted(MADE)))
    def edit(self, title: str) -> None:
        self.wish = MADE[title]
        if self.snapshot.ending is Ending.NOT:
            self.snapshot = retargeted(self.snapshot, self.wish, now=self.now, address=next_address)
        self._plan()

    @rule(number=st.integers(0, 20))
    def something_answers(self, number: int) -> None:
        alive = [one for one in self.snapshot.members if one.is_alive]
        if alive:
            self._note(alive[number % len(alive)], Event.ANSWERED)
        self._plan()

    @rule()
    def everything_answers(self) -> None:
        for one in self.snapshot.members:
            if one.is_alive:
                self._note(one, Event.ANSWERED)
        self._plan()

    @rule(number=st.integers(0, 20))
    def what_was_told_to_stop_ends(self, number: int) -> None:
        stopping = [
            one for one in self.snapshot.members if one.is_alive and one.stop is not Stop.NOT
        ]
        if stopping:
            self._note(stopping[number % len(stopping)], Event.ENDED)
        self._plan()

    @precondition(lambda self: self.served)
    @rule(number=st.integers(0, 20))
    def something_crashes(self, number: int) -> None:
        alive = [one for one in self.snapshot.members if one.is_alive]
        if alive:
            self.crashed = True
            self._note(alive[number % len(alive)], Event.ENDED)
        self._plan()

    @rule(seconds=st.floats(0.1, 20.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self._plan()

    @rule()
    def all_answer_and_leave_until_it_is_quiet(self) -> None:
        for _ in range(100):
            for one in self.snapshot.members:
                if one.is_alive and one.stop is not Stop.NOT:
                    self._note(one, Event.ENDED)
                elif one.is_alive:
                    self._note(one, Event.ANSWERED)
            self.now += 61.0
            self._plan()
        if self.snapshot.ending is Ending.NOT:
            assert is_ready(self.snapshot)
            counts = dict.fromkeys(Kind, 0)
            for one in self.snapshot.members:
                assert one.wanted
                assert one.identity == self.wish.identities[one.kind]
                counts[one.kind] += 1
            assert counts == self.wish.counts
        else:
            assert not any(one.is_alive for one in self.snapshot.members)

    @precondition(lambda self: self.served)
    @rule(how=st.sampled_from([Ending.DRAINING, Ending.AT_ONCE]))
    def stop(self, how: Ending) -> None:
        if self.snapshot.ending is not Ending.AT_ONCE:
            self.snapshot = replace(self.snapshot, ending=how)
        self._plan()

    @invariant()
    def names_and_addresses_are_unique(self) -> None:
        names = [one.name for one in self.snapshot.members]
        assert len(set(names)) == len(names)
        urls = [endpoint.url for endpoint in endpoints_of(self.snapshot).endpoints]
        assert len(set(urls)) == len(urls)

    @invariant()
    def clients_keep_a_pair_unless_something_crashed(self) -> None:
        if not self.served or self.crashed or self.snapshot.ending is not Ending.NOT:
            return
        endpoints = endpoints_of(self.snapshot).endpoints
        serving = {
            role: {one.revision for one in endpoints if one.role is role and not one.draining}
            for role in Role
        }
        assert serving[Role.PREFILL] & serving[Role.DECODE]

    @invariant()
    def what_prefills_can_always_hand_over(self) -> None:
        """Until a prefill engine has left, a decode engine of its revision takes new work."""
        if not self.served or self.crashed or self.snapshot.ending is not Ending.NOT:
            return
        endpoints = endpoints_of(self.snapshot).endpoints
        decode = {one.revision for one in endpoints if one.role is Role.DECODE and not one.draining}
        old = [
            one
            for one in endpoints
            if one.role is Role.PREFILL
            and (member := self.snapshot.member(one.name)) is not None
            and not member.wanted
        ]
        assert {one.revision for one in old} <= decode

    @invariant()
    def a_proxy_listens_unless_something_crashed(self) -> None:
        if not self.served or self.crashed or self.snapshot.ending is not Ending.NOT:
            return
        assert any(
            one.kind is Kind.PROXY and one.phase is Phase.READY for one in self.snapshot.members
        )


TestRun = Run.TestCase
TestRun.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
