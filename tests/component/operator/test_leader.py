"""The Lease of the operator's replicas: a silent server must not make a leader forget the time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio.client import ApiClient, V1Lease, V1LeaseSpec

from pdcluster_operator.kube import leader


class Hanging:
    """An API that takes every request and never answers."""

    async def _never(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    read_namespaced_lease = replace_namespaced_lease = create_namespaced_lease = _never


@pytest.fixture
async def hanging(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[leader._Lock]:
    """The Lease of a server that hangs."""
    # The same proportions, a twentieth of the time.
    monkeypatch.setattr(leader, "CALL_S", 0.15)
    async with ApiClient() as api:
        lock = leader._Lock("pdcluster", "sys", "first", api)
        lock.api_instance = Hanging()
        yield lock


async def test_a_leader_whose_server_hangs_ends_before_a_follower_may_take_over(
    hanging: leader._Lock,
) -> None:
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(5):
        found, _ = await hanging.get("pdcluster", "sys")
    assert not found
    assert asyncio.get_running_loop().time() - began < 1.0


def test_a_silent_server_ends_a_leader_in_time() -> None:
    # The last renewal was good; then each try takes its bound, and tries are apart.
    worst = 0.0
    while worst <= leader.RENEW_DEADLINE_S:
        worst += leader.RETRY_S + leader.CALL_S
    assert worst <= leader.DURATION_S


class Held:
    """An API with one Lease."""

    def __init__(self, holder: str) -> None:
        self.lease = V1Lease(spec=V1LeaseSpec(holderIdentity=holder))
        self.writes: list[V1Lease] = []

    async def read_namespaced_lease(self, *_: Any) -> V1Lease:
        return self.lease

    async def replace_namespaced_lease(self, _name: str, _namespace: str, body: V1Lease) -> None:
        self.writes.append(body)


@pytest.mark.parametrize(("holder", "num_writes"), [("first", 1), ("second", 0)])
async def test_only_ones_own_lease_is_released(holder: str, num_writes: int) -> None:
    async with ApiClient() as api:
        lock = leader._Lock("pdcluster", "sys", "first", api)
        lock.api_instance = held = Held(holder)
        await lock.release()
    assert len(held.writes) == num_writes
    assert all(lease.spec.holder_identity is None for lease in held.writes)


async def test_a_server_that_hangs_does_not_keep_a_stopped_leader(
    hanging: leader._Lock,
) -> None:
    async with asyncio.timeout(5):
        await hanging.release()
