"""P and D under random load, driven by nothing but what they say themselves about when to look.

The engine's thread sleeps until an input or until ``next_at``: if the core ever forgot to say when,
a request would hang for ever. Whatever happens, every request ends, with the tokens that an engine
of its own would have given, and no block stays taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.sim_rig import Rig, wired

from pdcluster_lease.lease import Expired
from pdcluster_sim.core.messages import FinishReason

if TYPE_CHECKING:
    from pdcluster_lease.params import RequestId

PROMPTS = [
    tuple(range(300, 303)),
    tuple(range(300, 310)),
    tuple(range(300, 316)),
    tuple(range(500, 509)),
    (*range(300, 308), 7, 7, 7),
]
MAX_TOKENS = 6
RIGHT = {prompt: Rig(name="single").complete(prompt, max_tokens=MAX_TOKENS) for prompt in PROMPTS}


@dataclass(frozen=True)
class Asked:
    rig: Rig
    name: RequestId
    prompt: tuple[int, ...]


class ExchangeModel(RuleBasedStateMachine):
    """Clients that ask either engine, hand off, leave; time that jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.p = Rig(name="p", num_blocks=8, max_num_seqs=2, max_num_batched_tokens=7)
        self.d = Rig(name="d", num_blocks=8, max_num_seqs=2, max_num_batched_tokens=9)
        wired(self.p, self.d)
        self.asked: list[Asked] = []
        self.left: set[RequestId] = set()
        self.grants: list[tuple[tuple[int, ...], dict[str, object]]] = []
        self.wanted_grants: dict[RequestId, tuple[int, ...]] = {}
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"r{self.count}"

    # --- time: only as far as an engine says it wants to be looked at ---

    def look(self) -> bool:
        """Advance both to the earliest instant either of them asks for; False if none does."""
        rigs = (self.p, self.d)
        times = [rig.next_at for rig in rigs if rig.next_at is not None]
        if not any(rig.has_input for rig in rigs):
            if not times:
                return False
            self.p.now = self.d.now = max(self.p.now, self.d.now, min(times))
        for rig in rigs:
            # Like the engine's thread: without input and before its time, the core is left alone.
            if rig.has_input or (rig.next_at is not None and rig.next_at <= rig.now):
                rig.advance()
        self.collect()
        return True

    def collect(self) -> None:
        for output in self.p.outputs:
            if output.params is not None and output.request_id in self.wanted_grants:
                prompt = self.wanted_grants.pop(output.request_id)
                self.grants.append((prompt, output.params))

    @rule(prompt=st.sampled_from(PROMPTS), on_p=st.booleans())
    def ask(self, prompt: tuple[int, ...], on_p: bool) -> None:
        rig = self.p if on_p else self.d
        name = rig.submit(prompt, name=self.name(), max_tokens=MAX_TOKENS)
        self.asked.append(Asked(rig, name, prompt))

    @rule(prompt=st.sampled_from(PROMPTS))
    def prefill(self, prompt: tuple[int, ...]) -> None:
        name = self.p.submit(
            prompt, name=self.name(), max_tokens=1, params={"do_remote_decode": True}
        )
        self.wanted_grants[name] = prompt

    @rule()
    def hand_off(self) -> None:
        if self.grants:
            prompt, params = self.grants.pop(0)
            if params["remote_request_id"] in self.p.core.leases:
                name = self.d.submit(prompt, name=self.name(), max_tokens=MAX_TOKENS, params=params)
                self.asked.append(Asked(self.d, name, prompt))

    @rule(which=st.integers(0, 30))
    def leave(self, which: int) -> None:
        if self.asked:
            gone = self.asked[which % len(self.asked)]
            gone.rig.cancel(gone.name)
            self.left.add(gone.name)

    @rule(looks=st.integers(1, 12))
    def time_passes(self, looks: int) -> None:
        for _ in range(looks):
            if not self.look():
                break

    @invariant()
    def figures_are_possible(self) -> None:
        for rig in (self.p, self.d):
            gauges = rig.core.gauges()
            assert 0.0 <= gauges.kv_usage <= 1.0
            assert gauges.num_running <= 2

    def teardown(self) -> None:
        """Nobody does anything any more: everything has to end by itself."""
        looks = 0
        rigs = (self.p, self.d)
        while any(rig.core.is_busy or rig.has_input for rig in rigs):
            looks += 1
            assert looks < 20_000, "nothing ends"
            assert self.look(), "an engine with work waits for input"
        for each in self.asked:
            finish = each.rig.last(each.name).finish
            if finish is FinishReason.ABORT:
                assert each.name in self.left
            else:
                assert finish is FinishReason.LENGTH
                assert RIGHT[each.prompt] == each.rig.tokens(each.name)
        assert (self.p.usage, self.d.usage) == (0.0, 0.0)
        # A lease ended by time only if nobody took it, or D was never connected in time.
        assert len(self.p.noticed(Expired)) <= self.count


ExchangeModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestExchangeModel = ExchangeModel.TestCase
