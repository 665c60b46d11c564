"""``python -m pdcluster_operator``: probes, then the leader's Lease, then watches and passes.

Composition root: it knows everything and decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from datetime import UTC, datetime

from kubernetes import aio
from kubernetes.aio.client import ApiClient

from pdcluster_operator.handlers.watching import WATCHED, watch
from pdcluster_operator.kube.client import KubeClient
from pdcluster_operator.kube.executor import Executor
from pdcluster_operator.kube.leader import lead
from pdcluster_operator.kube.store import ClusterKey, Store
from pdcluster_operator.logs import configure
from pdcluster_operator.metrics import Metrics
from pdcluster_operator.probes import serve_probes
from pdcluster_operator.reconciler import Reconciler
from pdcluster_operator.resync import Resync
from pdcluster_operator.settings import Settings, parse_settings
from pdcluster_operator.work_queue import WorkQueue

__all__ = ["Operator", "main"]

_LOG = logging.getLogger(__name__)
_EXIT_LOST_LEASE = 3


def utc_now() -> str:
    """Now, as Kubernetes writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Operator:
    """One operator process, wired together.

    Args:
        settings: What it is told.
        api: The official client.
    """

    def __init__(self, settings: Settings, api: ApiClient) -> None:
        self._settings = settings
        self._api = api
        self._store = Store()
        client = KubeClient(api)
        executor = Executor(client, self._store, now=utc_now, instance=settings.instance)
        self._reconcile = Reconciler(self._store, executor, client, settings.render, now=utc_now)
        self._queue: WorkQueue[ClusterKey] = WorkQueue(self._pass, clock=time.monotonic)
        self._resync = Resync(
            client,
            self._store,
            kinds=WATCHED,
            namespaces=settings.namespaces,
            enqueue=self._queue.add,
        )
        self.metrics = Metrics(
            num_waiting=lambda: len(self._queue), num_clusters=lambda: len(self._store.keys())
        )

    async def run(self) -> bool:
        """Act until stopped; False where the Lease was lost."""
        if not self._settings.leads:
            await self._act()
            return True
        return await lead(
            self._api,
            name=self._settings.name,
            namespace=self._settings.own_namespace,
            instance=self._settings.instance,
            act=self._act,
        )

    async def _pass(self, key: ClusterKey) -> float | None:
        if not self._resync.has_listed(key):
            return None  # That will have it looked at.
        started_at = time.monotonic()
        try:
            again = await self._reconcile(key)
        except Exception:
            self.metrics.passes.labels("failed").inc()
            raise
        finally:
            self.metrics.pass_seconds.observe(time.monotonic() - started_at)
        self.metrics.passes.labels("complete").inc()
        return again

    async def _act(self) -> None:
        """Watch and pass, until told to stop: kopf takes the signals."""
        self.metrics.leads.set(1)
        watching = watch(self._store, self._queue.add, namespaces=self._settings.namespaces)
        tasks = [
            asyncio.create_task(each) for each in (self._queue.run(), self._resync.run(), watching)
        ]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def run(settings: Settings) -> int:
    """Run until TERM or INT; returns the exit code."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        aio.config.load_incluster_config()  # type: ignore[no-untyped-call]
    else:
        await aio.config.load_kube_config()  # type: ignore[no-untyped-call]
    async with ApiClient() as api:
        operator = Operator(settings, api)
        probes = await serve_probes(
            settings.probe_host,
            settings.probe_port,
            render=operator.metrics.render,
        )
        _LOG.info(
            "operator.started",
            extra={"namespaces": list(settings.namespaces), "instance": settings.instance},
        )
        acting = asyncio.create_task(operator.run())
        # A follower has no kopf yet that would take the signals.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, acting.cancel)
        try:
            has_stopped = await acting
        except asyncio.CancelledError:
            has_stopped = True
        finally:
            await probes.cleanup()
        _LOG.info("operator.complete")
        return 0 if has_stopped else _EXIT_LOST_LEASE


def main() -> None:
    """Run the operator."""
    settings = parse_settings(sys.argv[1:], os.environ)
    configure(is_json=settings.is_json, level=settings.log_level)
    sys.exit(asyncio.run(run(settings)))
