"""An agent that is no engine: our side channel client and NIXL agent against either kind."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pdcluster_lease.agent import Peer
from pdcluster_lease.nixl_agent import NixlAgent
from pdcluster_lease.params import KVTransferParams, parse_params
from pdcluster_lease.side_channel import HandshakeReply, SideChannelAddress, handshake
from pdcluster_lease.wire import Heartbeat, TransferComplete, connector_release, encode_notification
from tests.contract.engine.fleet import (
    EXTENSION_S,
    INTERVAL_S,
    LEASE_S,
    SLACK_S,
    Fleet,
    fresh_prompt,
    is_free,
    prefill,
    wait_free,
)
from tests.support.engines import RunningEngine


async def shake(engine: RunningEngine) -> HandshakeReply:
    return await handshake(SideChannelAddress(*engine.side_channel))


@dataclass(frozen=True)
class Keeper:
    """An agent without memory that knows P."""

    agent: NixlAgent
    peer: Peer

    def send(self, message: Heartbeat | TransferComplete, *, progress_s: float = 0.3) -> None:
        self.agent.notify(self.peer, encode_notification(message))
        until = time.monotonic() + progress_s
        while time.monotonic() < until:
            self.agent.poll()
            time.sleep(0.005)


@pytest.fixture
async def keeper(fleet: Fleet) -> Iterator[Keeper]:
    os.environ.setdefault("UCX_TLS", "tcp,sm,self")
    os.environ.setdefault("UCX_NET_DEVICES", "lo")
    reply = await shake(fleet.prefill)
    agent = NixlAgent(f"keeper-{uuid.uuid4()}")
    yield Keeper(agent, agent.add_peer(reply.agent_metadata().agent_metadata, None))
    agent.close()


def granted(fleet: Fleet) -> KVTransferParams:
    wait_free(fleet.prefill, within_s=LEASE_S + SLACK_S)
    return parse_params(json.dumps(prefill(fleet.prefill, fresh_prompt())).encode())


async def test_a_handshake_names_the_engine_of_the_params(fleet: Fleet) -> None:
    params = granted(fleet)
    reply = await shake(fleet.prefill)
    metadata = reply.agent_metadata()
    assert params.engine_id == metadata.engine_id
    assert metadata.num_blocks == 64
    assert metadata.agent_metadata
    assert len(reply.payload.compatibility_hash) == 64
    assert reply.round_trip_s < SLACK_S


async def test_engines_of_one_model_share_the_compatibility_hash(fleet: Fleet) -> None:
    hashes = {
        (await shake(engine)).payload.compatibility_hash for engine in (fleet.prefill, fleet.decode)
    }
    assert len(hashes) == 1


def test_the_engines_release_is_one_whose_protocol_is_known(fleet: Fleet) -> None:
    version = fleet.prefill.client.get(f"{fleet.prefill.url}/version").json()["version"]
    release = connector_release(version)
    assert release is not None
    assert release.has_lease
    assert release.counts_late_reads


def test_heartbeats_of_a_third_agent_hold_a_lease(fleet: Fleet, keeper: Keeper) -> None:
    params = granted(fleet)
    expired = fleet.prefill.metrics()["nixl_num_kv_expired_reqs_total"]
    until = time.monotonic() + 2 * LEASE_S
    while time.monotonic() < until:
        keeper.send(Heartbeat((params.request_id,)), progress_s=INTERVAL_S)
        assert not is_free(fleet.prefill)
    stopped_at = time.monotonic()
    wait_free(fleet.prefill, within_s=EXTENSION_S + SLACK_S)
    # The last beat was sent up to an interval before.
    assert time.monotonic() - stopped_at >= EXTENSION_S - INTERVAL_S - 0.5
    assert fleet.prefill.metrics()["nixl_num_kv_expired_reqs_total"] >= expired


def test_a_completion_of_a_third_agent_releases_a_lease(fleet: Fleet, keeper: Keeper) -> None:
    params = granted(fleet)
    keeper.send(TransferComplete(params.request_id))
    assert wait_free(fleet.prefill) < EXTENSION_S / 2


def test_a_heartbeat_for_an_unknown_lease_is_ignored(fleet: Fleet, keeper: Keeper) -> None:
    params = granted(fleet)
    keeper.send(Heartbeat((type(params.request_id)("cmpl-unknown-0-00000000"),)))
    assert wait_free(fleet.prefill, within_s=LEASE_S + SLACK_S) > EXTENSION_S / 2


def test_a_completion_that_announces_more_readers_waits_for_them(
    fleet: Fleet, keeper: Keeper
) -> None:
    params = granted(fleet)
    keeper.send(TransferComplete(params.request_id, consumers=2))
    assert not is_free(fleet.prefill)
    keeper.send(TransferComplete(params.request_id, consumers=2))
    assert wait_free(fleet.prefill) < EXTENSION_S / 2
