"""Which of the operator's replicas acts.

Shell around the official client's leader election. A Lease in the operator's own namespace says who
leads; whoever loses it ends, and is started again as a follower.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
from kubernetes.aio.client import ApiClient, ApiException, V1Lease, V1ObjectMeta
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock
from typing_extensions import override

__all__ = ["lead"]

_LOG = logging.getLogger(__name__)

DURATION_S: Final = 15
"""A follower takes over after so long a silence; the Lease can say whole seconds only."""
RENEW_DEADLINE_S: Final = 10.0
"""A leader that could not renew for so long ends: before a follower may take over."""
RETRY_S: Final = 2.0
CALL_S: Final = 3.0
"""Bound on one read or write of the Lease: the deadlines above are looked at between them only."""


class _Lock(LeaseLock):
    """The same, without dying of an API server that is away for a moment."""

    @override
    async def get(self, name: str, namespace: str) -> Any:
        try:
            async with asyncio.timeout(CALL_S):
                return await super().get(name, namespace)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            return False, ApiException(reason=str(error) or type(error).__name__)

    @override
    async def update(self, name: str, namespace: str, updated_record: Any) -> bool:
        try:
            async with asyncio.timeout(CALL_S):
                return bool(await super().update(name, namespace, updated_record))
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False

    @override
    async def create(self, name: str, namespace: str, election_record: Any) -> bool:
        # The client's own (37.0.2) asks with pretty=True, which its own models refuse.
        spec = self.update_lease(election_record)
        body = V1Lease(metadata=V1ObjectMeta(name=name), spec=spec)
        try:
            async with asyncio.timeout(CALL_S):
                await self.api_instance.create_namespaced_lease(namespace, body)
        except ApiException as error:
            # Another replica was faster (409), or the right is missing (403).
            _LOG.warning("leader.unwritten", extra={"reason": error.reason, "status": error.status})
            return False
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False
        return True

    async def release(self) -> None:
        """Let go of the Lease, so that nobody has to wait until it is over. Best effort."""
        try:
            async with asyncio.timeout(CALL_S):
                lease = await self.api_instance.read_namespaced_lease(self.name, self.namespace)
                if lease.spec is None or lease.spec.holder_identity != self.identity:
                    return
                lease.spec.holder_identity = None
                # With the version that was read: whoever was faster keeps it.
                await self.api_instance.replace_namespaced_lease(self.name, self.namespace, lease)
        except (TimeoutError, ApiException, aiohttp.ClientError, OSError) as error:
            _LOG.info("leader.unreleased", extra={"reason": str(error) or type(error).__name__})


async def lead(
    api: ApiClient,
    *,
    name: str,
    namespace: str,
    instance: str,
    act: Callable[[], Awaitable[None]],
) -> bool:
    """Wait until this replica leads, then act.

    Args:
        api: The official client.
        name: Name of the Lease: the installation's.
        namespace: Where the Lease lies.
        instance: Name of this replica.
        act: What the leader does; cancelled when the Lease is lost.

    Returns:
        Whether it acted to the end; False where the Lease was lost.
    """
    acted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def started() -> None:
        _LOG.info("leader.started", extra={"instance": instance})
        try:
            await act()
        except Exception as error:
            # The election would keep it to itself.
            acted.set_exception(error)
            raise
        acted.set_result(None)

    async def stopped() -> None:
        _LOG.warning("leader.lost", extra={"instance": instance})

    lock = _Lock(name, namespace, instance, api)
    config = Config(
        lock,
        lease_duration=DURATION_S,
        renew_deadline=RENEW_DEADLINE_S,
        retry_period=RETRY_S,
        onstarted_leading=started,
        onstopped_leading=stopped,
    )
    election = asyncio.create_task(LeaderElection(config).run())
    try:
        await asyncio.wait({election, acted}, return_when=asyncio.FIRST_COMPLETED)
        if acted.done():
            acted.result()
            return True
        election.result()
        return False
    finally:
        election.cancel()
        await asyncio.gather(election, return_exceptions=True)
        # Not before nothing of it acts any more.
        if acted.done():
            await lock.release()
