"""A simulated engine without thread, socket and NIXL: its core, driven by a clock of the test's.

Two rigs can be wired together: what one's core wants sent or read is done at once on the other, by
the very notifications that would cross NIXL. So P and D exchange KV in virtual time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdcluster_lease.agent import Peer
from pdcluster_lease.engine_params import GrantingEngine, RequestParams, read_request_params
from pdcluster_lease.params import EngineId, RequestId
from pdcluster_lease.timing import LeaseTiming
from pdcluster_lease.wire import Unrecognised, decode_notification
from pdcluster_sim.core.engine import EngineCore
from pdcluster_sim.core.latency import LatencyModel
from pdcluster_sim.core.messages import (
    Cancel,
    DropPeer,
    Effect,
    EngineRequest,
    FinishReason,
    HandshakeFailed,
    HandshakeSucceeded,
    Input,
    ReadArrived,
    SendNote,
    ShakeHands,
    StartRead,
    Submit,
)
from pdcluster_sim.core.scheduler import SchedulerLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdcluster_sim.core.results import Notice, Output

STEP_S = 0.01
PREFILL_TOKENS_PER_S = 10_000.0
SLOT_BYTES = 64
BLOCK_SIZE = 4


class Memory:
    """KV blocks in a bytearray."""

    def __init__(self, num_blocks: int, *, block_size: int = BLOCK_SIZE) -> None:
        self.block_size = block_size
        self.slot_bytes = SLOT_BYTES
        self.block_bytes = block_size * SLOT_BYTES
        self.content = bytearray(num_blocks * self.block_bytes)

    def read(self, block: int, start: int, stop: int) -> bytes:
        base = block * self.block_bytes
        return bytes(self.content[base + start * SLOT_BYTES : base + stop * SLOT_BYTES])

    def write(self, block: int, start: int, content: bytes) -> None:
        at = block * self.block_bytes + start * SLOT_BYTES
        self.content[at : at + len(content)] = content


@dataclass
class Rig:
    """One core and what came out of it."""

    name: str = "p"
    num_blocks: int = 32
    max_num_seqs: int = 8
    lease_s: int = 6
    recomputes: bool = False
    prefix_caching: bool = True
    max_num_batched_tokens: int = 1000
    transfer_gbps: float = 0.0
    step_s: float = STEP_S
    peers: dict[str, Rig] = field(default_factory=dict)
    """Rigs by engine id: whose handshakes succeed."""
    holds_reads: bool = False
    """Reads stand still until :meth:`let_reads_arrive`."""
    now: float = 1000.0
    outputs: list[Output] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    held_reads: list[StartRead] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.next_at: float | None = None
        self.has_input = False
        self.memory = Memory(self.num_blocks)
        self.engine_id = EngineId(f"engine-{self.name}")
        self.core = EngineCore(
            limits=SchedulerLimits(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                prefix_caching=self.prefix_caching,
            ),
            memory=self.memory,
            num_blocks=self.num_blocks,
            latency=LatencyModel(
                prefill_tokens_per_s=PREFILL_TOKENS_PER_S,
                step_time_s=self.step_s,
                transfer_gbps=self.transfer_gbps,
            ),
            engine=GrantingEngine(engine_id=self.engine_id, host="127.0.0.1", port=5600),
            timing=LeaseTiming.from_duration(self.lease_s),
            recomputes=self.recomputes,
        )

    # --- what a client does ---

    def submit(
        self,
        prompt: tuple[int, ...],
        *,
        name: str = "r",
        max_tokens: int = 4,
        params: dict[str, object] | None = None,
        ignore_eos: bool = True,
        **fields: object,
    ) -> RequestId:
        """Submit a request; return its id."""
        kv: RequestParams | None = None if params is None else read_request_params(params)
        request = EngineRequest(
            request_id=RequestId(name),
            prompt=prompt,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            kv=kv,
            **fields,  # type: ignore[arg-type]  # named by the test
        )
        self.handle(Submit(request))
        return request.request_id

    def cancel(self, name: str = "r") -> None:
        """Leave."""
        self.handle(Cancel(RequestId(name)))

    def complete(self, prompt: tuple[int, ...], **fields: object) -> tuple[int, ...]:
        """Submit, run to the end, return the tokens."""
        request_id = self.submit(prompt, **fields)  # type: ignore[arg-type]  # named by the test
        self.run_until(lambda: self.is_over(request_id))
        return self.tokens(request_id)

    def prefill(self, prompt: tuple[int, ...], *, name: str = "lease") -> dict[str, object]:
        """Run the prefill leg; return the grant's params."""
        self.submit(prompt, name=name, max_tokens=1, params={"do_remote_decode": True})
        self.run_until(lambda: self.is_over(RequestId(name)))
        params = self.last(RequestId(name)).params
        assert params is not None
        return params

    # --- time ---

    def handle(self, event: Input) -> None:
        """Hand one input in."""
        self.has_input = True
        self.core.handle(event, now=self.now)

    def advance(self, seconds: float = 0.0) -> None:
        """Let time pass in one jump, and do what the core wants done."""
        self.now += seconds
        self.has_input = False
        advance = self.core.advance(now=self.now)
        self.outputs += advance.outputs
        self.effects += advance.effects
        self.notices += advance.notices
        for effect in advance.effects:
            self._do(effect)
        self.next_at = advance.next_at

    def run_for(self, seconds: float, *, look_s: float = STEP_S) -> None:
        """Let time pass in small looks, as the engine's thread does."""
        until = self.now + seconds
        while self.now < until:
            self.advance(look_s)

    def run_until(self, condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
        """Let time pass until ``condition`` holds."""
        until = self.now + within_s
        while not condition():
            assert self.now < until, f"not within {within_s} virtual seconds"
            self.advance(STEP_S / 2)

    # --- what came out ---

    def tokens(self, request_id: RequestId) -> tuple[int, ...]:
        """Return all tokens of a request so far."""
        return tuple(
            token for each in self.outputs if each.request_id == request_id for token in each.tokens
        )

    def last(self, request_id: RequestId) -> Output:
        """Return the newest output of a request."""
        return [each for each in self.outputs if each.request_id == request_id][-1]

    def is_over(self, request_id: RequestId) -> bool:
        """Say whether a request has ended."""
        return any(
            each.finish is not None for each in self.outputs if each.request_id == request_id
        )

    def finish(self, name: str = "r") -> FinishReason | None:
        """Return why a request ended."""
        return self.last(RequestId(name)).finish

    def noticed(self, kind: type) -> list[Notice]:
        """Return all notices of one kind."""
        return [each for each in self.notices if isinstance(each, kind)]

    @property
    def usage(self) -> float:
        """Share of blocks in use."""
        return self.core.gauges().kv_usage

    # --- effects ---

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, ShakeHands):
            self._shake(effect)
        elif isinstance(effect, SendNote):
            self._peer(effect.engine_id).receive(effect.payload, now=self.now)
        elif isinstance(effect, DropPeer):
            pass
        elif self.holds_reads:
            self.held_reads.append(effect)
        else:
            self._read(effect)

    def _shake(self, effect: ShakeHands) -> None:
        engine_id = effect.lease.engine_id
        if engine_id in self.peers:
            self.handle(HandshakeSucceeded(engine_id, Peer(1)))
        else:
            self.handle(HandshakeFailed(engine_id, "nobody answers"))

    def let_reads_arrive(self) -> None:
        """Do the reads that stood still, with what the peers' memories hold now."""
        held, self.held_reads = self.held_reads, []
        for effect in held:
            self._read(effect)

    def _read(self, effect: StartRead) -> None:
        peer = self._peer(effect.engine_id)
        for local, remote in zip(effect.local, effect.remote, strict=True):
            content = peer.memory.read(remote, 0, peer.memory.block_size)
            self.memory.write(local, 0, content)
        peer.receive(effect.note, now=self.now)
        num_bytes = len(effect.local) * self.memory.block_bytes
        self.handle(ReadArrived(effect.request_id, num_bytes))

    def _peer(self, engine_id: EngineId) -> Rig:
        return self.peers[engine_id]

    def receive(self, payload: bytes, *, now: float) -> None:
        """Take a notification, at the sender's time if that is later."""
        self.now = max(self.now, now)
        message = decode_notification(payload)
        assert not isinstance(message, Unrecognised)
        self.handle(message)


def wired(prefill: Rig, decode: Rig) -> None:
    """Let D reach P."""
    decode.peers[prefill.engine_id] = prefill
