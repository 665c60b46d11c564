"""The engine's thread against fake agents: mail in, news out, peers judged, losses noticed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.fake_agent import FakeAgent, FakeNetwork

from pdcluster_lease.engine_params import GrantingEngine, read_request_params
from pdcluster_lease.errors import NixlMissingError, TransferError
from pdcluster_lease.lease import Expired, LateRead, Released
from pdcluster_lease.params import EngineId, RemoteLease, RequestId
from pdcluster_lease.side_channel import HandshakeReply
from pdcluster_lease.timing import LeaseTiming
from pdcluster_lease.wire import AgentMetadata, HandshakePayload
from pdcluster_sim.core.compatibility import Compatibility
from pdcluster_sim.core.engine import EngineCore
from pdcluster_sim.core.latency import LatencyModel
from pdcluster_sim.core.messages import EngineRequest, FinishReason, Submit
from pdcluster_sim.core.results import Output, TransferFailed
from pdcluster_sim.core.scheduler import SchedulerLimits
from pdcluster_sim.engine_thread import AbortAll, Drain, EngineNews, EngineThread, Stall
from pdcluster_sim.handshakes import HandshakeAnswered, HandshakeUnanswered
from pdcluster_sim.memory import KVMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdcluster_lease.agent import Agent

NUM_BLOCKS = 32
PROMPT = tuple(range(300, 310))
WITHIN_S = 60.0


@dataclass
class Engine:
    """One engine's thread, and its news so far."""

    name: str
    network: FakeNetwork
    answers: Callable[[RemoteLease], object]
    version: str = "0.32.0"
    lease_s: int = 6
    news: list[EngineNews] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine_id = EngineId(self.name)
        self.memory = KVMemory(num_blocks=NUM_BLOCKS, block_size=4, slot_bytes=64)
        self.compatibility = Compatibility(
            vllm_version=self.version,
            connector_version=14,
            model="m",
            dtype="auto",
            slot_bytes=64,
            block_size=4,
        )
        self.agent: FakeAgent | None = None
        self.thread = EngineThread(
            EngineCore(
                limits=SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=1000),
                memory=self.memory,
                num_blocks=NUM_BLOCKS,
                latency=LatencyModel(prefill_tokens_per_s=0, step_time_s=0.001, transfer_gbps=0),
                engine=GrantingEngine(engine_id=self.engine_id, host="h", port=5600),
                timing=LeaseTiming.from_duration(self.lease_s),
                recomputes=False,
            ),
            make_agent=self._make_agent,
            compatibility=self.compatibility,
            shake_hands=lambda lease: self.thread.post(self.answers(lease)),  # type: ignore[arg-type]  # an answer
            publish=self.news.append,
        )

    def _make_agent(self) -> Agent:
        self.agent = self.network.agent(self.name)
        self.agent.register(self.memory.view, self.memory.block_bytes)
        return self.agent

    def payload(self) -> HandshakePayload:
        metadata = AgentMetadata(
            engine_id=self.engine_id,
            agent_metadata=self.thread.metadata,
            kv_caches_base_addr=(4096,),
            num_blocks=NUM_BLOCKS,
            block_lens=(self.memory.block_bytes,),
            block_size=4,
        )
        return HandshakePayload(
            compatibility_hash=self.compatibility.hash,
            agent_metadata_bytes=msgspec.msgpack.encode(metadata),
        )

    # --- what came out ---

    def outputs(self, name: str) -> list[Output]:
        return [each for news in self.news for each in news.outputs if each.request_id == name]

    def tokens(self, name: str) -> tuple[int, ...]:
        return tuple(token for each in self.outputs(name) for token in each.tokens)

    def noticed(self, kind: type) -> list[object]:
        return [each for news in self.news for each in news.notices if isinstance(each, kind)]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline, self.news[-3:]
            time.sleep(0.002)

    def run(
        self, name: str, *, max_tokens: int = 8, params: dict[str, object] | None = None
    ) -> Output:
        """Submit a request and wait for its end."""
        kv = None if params is None else read_request_params(params)
        request = EngineRequest(
            request_id=RequestId(name), prompt=PROMPT, max_tokens=max_tokens, ignore_eos=True, kv=kv
        )
        self.thread.post(Submit(request))
        self.until(lambda: any(each.finish is not None for each in self.outputs(name)))
        return self.outputs(name)[-1]

    def prefill(self, name: str = "lease") -> dict[str, object]:
        params = self.run(name, max_tokens=1, params={"do_remote_decode": True}).params
        assert params is not None
        return params


def nobody(lease: RemoteLease) -> HandshakeUnanswered:
    return HandshakeUnanswered(lease, "nobody is there")


@pytest.fixture
def network() -> FakeNetwork:
    return FakeNetwork()


@pytest.fixture
def p(network: FakeNetwork) -> Iterator[Engine]:
    engine = Engine("p", network, nobody)
    engine.thread.start()
    yield engine
    engine.thread.stop()


def answered(p: Engine) -> Callable[[RemoteLease], HandshakeAnswered]:
    def answer(lease: RemoteLease) -> HandshakeAnswered:
        return HandshakeAnswered(
            lease,
            HandshakeReply(
                payload=p.payload(), peer_clock=0.0, clock_offset_s=0.0, round_trip_s=0.0
            ),
        )

    return answer


@pytest.fixture
def d(p: Engine, network: FakeNetwork) -> Iterator[Engine]:
    engine = Engine("d", network, answered(p))
    engine.thread.start()
    yield engine
    engine.thread.stop()


def test_a_request_is_answered(p: Engine) -> None:
    assert p.run("r").finish is FinishReason.LENGTH
    assert len(p.tokens("r")) == 8


def test_two_engines_exchange_kv(p: Engine, d: Engine) -> None:
    expected = p.run("single") and p.tokens("single")
    assert d.run("r", params=p.prefill()).finish is FinishReason.LENGTH
    assert expected == d.tokens("r")
    assert sum(read.num_bytes for news in d.news for read in news.reads) == 3 * 4 * 64
    p.until(lambda: bool(p.noticed(Released)))


def test_a_lease_ends_while_nothing_else_happens(network: FakeNetwork) -> None:
    engine = Engine("p", network, nobody)
    engine.thread.start()
    params = engine.prefill()
    engine.until(lambda: bool(engine.noticed(Expired)))
    assert engine.noticed(Expired) == [Expired(RequestId(str(params["remote_request_id"])), 0)]
    gauges = engine.news[-1].gauges
    assert gauges is not None
    assert (gauges.kv_usage, gauges.num_leases) == (0.0, 0)
    engine.thread.stop()


def test_a_late_completion_is_noticed_by_an_idle_engine(p: Engine, network: FakeNetwork) -> None:
    stranger = network.agent("stranger")
    stranger.notify(stranger.add_peer(p.thread.metadata, None), b"nothing:1")
    p.until(lambda: p.noticed(LateRead) == [LateRead(RequestId("nothing"))])


def test_an_unrecognised_notification_changes_nothing(p: Engine, network: FakeNetwork) -> None:
    stranger = network.agent("stranger")
    stranger.notify(stranger.add_peer(p.thread.metadata, None), b"\xff\xff")
    assert p.run("r").finish is FinishReason.LENGTH


def kinds(engine: Engine) -> list[str]:
    return sorted(
        each.kind for each in engine.noticed(TransferFailed) if isinstance(each, TransferFailed)
    )


def test_a_peer_of_another_release_is_rejected(p: Engine, network: FakeNetwork) -> None:
    other = Engine("d", network, answered(p), version="0.31.0")
    other.thread.start()
    assert other.run("r", params=p.prefill()).finish is FinishReason.ERROR
    assert kinds(other) == ["handshake_failed", "handshake_setup_failed"]
    (first, *_) = other.noticed(TransferFailed)
    assert isinstance(first, TransferFailed)
    other.thread.stop()


def test_a_peer_that_is_not_the_engine_of_the_params_is_rejected(p: Engine, d: Engine) -> None:
    params = {**p.prefill(), "remote_engine_id": "another"}
    assert d.run("r", params=params).finish is FinishReason.ERROR
    assert kinds(d) == ["handshake_failed", "handshake_setup_failed"]


def test_a_peer_that_does_not_answer_fails_the_request(p: Engine, network: FakeNetwork) -> None:
    lonely = Engine("d", network, nobody)
    lonely.thread.start()
    assert lonely.run("r", params=p.prefill()).finish is FinishReason.ERROR
    lonely.thread.stop()


def test_a_block_id_out_of_range_fails_the_request_alone(p: Engine, d: Engine) -> None:
    params = {**p.prefill(), "remote_block_ids": [[1, 2, 9999]]}
    assert d.run("r", params=params).finish is FinishReason.ERROR
    assert kinds(d) == ["transfer_setup_failed"]
    assert d.run("again", params=p.prefill("l2")).finish is FinishReason.LENGTH


def test_a_peer_that_is_gone_fails_the_request_and_is_met_anew(p: Engine, d: Engine) -> None:
    d.run("met", params=p.prefill())
    params = p.prefill("l2")
    p.thread.stop()
    assert d.run("r", params=params).finish is FinishReason.ERROR
    assert kinds(d) == ["transfer_failed"]
    assert d.run("local").finish is FinishReason.LENGTH


def test_a_stalled_engine_makes_no_progress_for_its_peers(p: Engine, d: Engine) -> None:
    d.run("met", params=p.prefill())
    params = p.prefill("l2")
    p.thread.post(Stall(0.5))
    started_at = time.monotonic()
    d.run("r", max_tokens=1, params=params)
    assert time.monotonic() - started_at > 0.3


def test_a_drain_is_reported_once_nothing_is_left(p: Engine, d: Engine) -> None:
    params = p.prefill()
    p.thread.post(Drain())
    assert not any(news.is_drained for news in p.news)
    d.run("r", max_tokens=1, params=params)
    p.until(lambda: any(news.is_drained for news in p.news))


def test_aborting_all_ends_every_request(p: Engine) -> None:
    request = EngineRequest(
        request_id=RequestId("r"), prompt=PROMPT, max_tokens=100, ignore_eos=True
    )
    p.thread.post(Submit(request))
    p.until(lambda: len(p.tokens("r")) > 2)
    p.thread.post(AbortAll())
    p.until(lambda: p.outputs("r")[-1].finish is FinishReason.ABORT)


def test_input_that_ends_vllms_engine_ends_this_one_and_is_reported(p: Engine, d: Engine) -> None:
    params = {name: value for name, value in p.prefill().items() if name != "remote_block_ids"}
    request = EngineRequest(
        request_id=RequestId("r"), prompt=PROMPT, max_tokens=1, kv=read_request_params(params)
    )
    d.thread.post(Submit(request))
    d.until(lambda: any(news.death is not None for news in d.news))
    assert "remote_block_ids" in str(d.news[-1].death)
    assert d.agent is not None
    assert d.agent.is_gone


@pytest.mark.parametrize("error", [NixlMissingError("no NIXL here"), ValueError("a bug")])
def test_an_agent_that_cannot_be_made_is_reported_by_start(
    network: FakeNetwork, error: Exception
) -> None:
    engine = Engine("p", network, nobody)

    def missing() -> Agent:
        raise error

    engine.thread = EngineThread(
        engine.thread._core,
        make_agent=missing,
        compatibility=engine.compatibility,
        shake_hands=lambda _: None,
        publish=engine.news.append,
    )
    with pytest.raises(type(error)):
        engine.thread.start()
    engine.thread.stop()


def test_an_agent_that_cannot_describe_itself_is_closed(network: FakeNetwork) -> None:
    class Mute(FakeAgent):
        def metadata(self) -> bytes:
            raise TransferError("cannot describe the agent")

    engine = Engine("p", network, nobody)
    agent = Mute(network, b"mute")
    engine.thread = EngineThread(
        engine.thread._core,
        make_agent=lambda: agent,
        compatibility=engine.compatibility,
        shake_hands=lambda _: None,
        publish=engine.news.append,
    )
    with pytest.raises(TransferError):
        engine.thread.start()
    assert agent.is_gone
