"""An agent that is no engine: our side channel client and NIXL agent against either kind."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from pdcluster_lease.agent import Peer
from pdcluster_lease.nixl_agent import NixlAgent
from pdcluster_lease.params import KVTransferParams, RequestId, parse_params
from pdcluster_lease.side_channel import HandshakeReply, SideChannelAddress, handshake
from pdcluster_lease.wire import Heartbeat, TransferComplete, connector_release, encode_notification
from tests.contract.engine.shared_engines import (
    EXPIRED,
    SETTLE_S,
    SLACK_S,
    Engines,
    Grant,
    granted,
    hold,
    lasts_unrenewed,
    nothing_expires,
    nudge,
    settled,
    wait_free,
)
from tests.support.engines import RunningEngine


async def shake(engine: RunningEngine) -> HandshakeReply:
    return await handshake(SideChannelAddress(*engine.side_channel), timeout_s=SETTLE_S)


@dataclass(frozen=True)
class Keeper:
    """An agent without memory that knows P; it makes progress only where it is polled."""

    agent: NixlAgent
    peer: Peer

    def send(self, message: Heartbeat | TransferComplete) -> None:
        self.agent.notify(self.peer, encode_notification(message))

    def poll(self) -> None:
        self.agent.poll()


@pytest.fixture
async def keeper(engines: Engines) -> AsyncIterator[Keeper]:
    os.environ.setdefault("UCX_TLS", "tcp,sm,self")
    os.environ.setdefault("UCX_NET_DEVICES", "lo")
    reply = await shake(engines.prefill)
    agent = NixlAgent(f"keeper-{uuid.uuid4()}")
    yield Keeper(agent, agent.add_peer(reply.agent_metadata().agent_metadata, None))
    agent.close()


def params_of(grant: Grant) -> KVTransferParams:
    return parse_params(json.dumps(grant.params).encode())


async def test_a_handshake_names_the_engine_of_the_params(engines: Engines) -> None:
    params = params_of(granted(engines.prefill))
    asked_at = time.perf_counter()
    reply = await shake(engines.prefill)
    metadata = reply.agent_metadata()
    assert params.engine_id == metadata.engine_id
    assert metadata.num_blocks == 64
    assert metadata.agent_metadata
    assert len(reply.payload.compatibility_hash) == 64
    assert 0 < reply.round_trip_s <= time.perf_counter() - asked_at


async def test_engines_of_one_model_share_the_compatibility_hash(engines: Engines) -> None:
    hashes = {
        (await shake(engine)).payload.compatibility_hash
        for engine in (engines.prefill, engines.decode)
    }
    assert len(hashes) == 1


def test_the_engines_release_is_one_whose_protocol_is_known(engines: Engines) -> None:
    version = engines.prefill.client.get(f"{engines.prefill.url}/version").json()["version"]
    release = connector_release(version)
    assert release is not None
    assert release.has_lease
    assert release.counts_late_reads


def test_heartbeats_of_a_third_agent_hold_a_lease(engines: Engines, keeper: Keeper) -> None:
    engine, timing = engines.prefill, engines.timing
    nudge(engine)
    expired = engine.metrics()[EXPIRED]
    params = params_of(granted(engine))
    until = time.monotonic() + 2 * timing.duration_s
    beat_at = 0.0
    while time.monotonic() < until:
        beat_at = time.monotonic()
        keeper.send(Heartbeat((params.request_id,)))
        hold(engine, timing.heartbeat_interval_s, meanwhile=keeper.poll)
    freed_at = wait_free(engine, within_s=timing.extension_s + SLACK_S, meanwhile=keeper.poll)
    assert freed_at - beat_at >= timing.extension_s
    assert expired + 1 == settled(engine, EXPIRED, expired + 1)


def test_a_completion_of_a_third_agent_releases_a_lease(engines: Engines, keeper: Keeper) -> None:
    with nothing_expires(engines.prefill):
        params = params_of(granted(engines.prefill))
        keeper.send(TransferComplete(params.request_id))
        wait_free(engines.prefill, meanwhile=keeper.poll)


def test_a_heartbeat_for_an_unknown_lease_is_ignored(engines: Engines, keeper: Keeper) -> None:
    with lasts_unrenewed(engines):
        keeper.send(Heartbeat((RequestId("cmpl-unknown-0-00000000"),)))
        hold(engines.prefill, 1.0, meanwhile=keeper.poll)


def test_a_completion_that_announces_more_readers_waits_for_them(
    engines: Engines, keeper: Keeper
) -> None:
    engine = engines.prefill
    with nothing_expires(engine):
        params = params_of(granted(engine))
        keeper.send(TransferComplete(params.request_id, consumers=2))
        hold(engine, 1.0, meanwhile=keeper.poll)
        keeper.send(TransferComplete(params.request_id, consumers=2))
        wait_free(engine, meanwhile=keeper.poll)
