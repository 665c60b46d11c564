"""``python -m pdcluster_operator``: probes, then the leader's Lease, then watches and passes.

Composition root: it knows everything and decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
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
        self._failure = ""

    def hindrances(self) -> tuple[str, ...]:
        """Why this process is not well."""
        return (self._failure,) if self._failure else ()

    async def run(self) -> None:
        """Act until cancelled, or until the Lease is lost."""
        if not self._settings.leads:
            await self._act()
            return
        await lead(
            self._api,
            namespace=self._settings.own_namespace,
            instance=self._settings.instance,
            act=self._act,
        )

    async def _pass(self, key: ClusterKey) -> float | None:
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
        """Watch and pass. The end of either is a fault: the process must end with it."""
        self.metrics.leads.set(1)
        settings = self._settings
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._queue.run())
                group.create_task(self._resync.run())
                group.create_task(
                    watch(self._store, self._queue.add, namespaces=settings.namespaces)
                )
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            _LOG.exception("operator.failed")
            raise


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
            hindrances=operator.hindrances,
            render=operator.metrics.render,
        )
        _LOG.info(
            "operator.started",
            extra={"namespaces": list(settings.namespaces), "instance": settings.instance},
        )
        task = asyncio.create_task(operator.run())
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        waiting = asyncio.create_task(stopped.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        has_ended = task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
        await probes.cleanup()
        _LOG.info("operator.complete")
        return _EXIT_LOST_LEASE if has_ended else 0


def main() -> None:
    """Run the operator."""
    settings = parse_settings(sys.argv[1:], os.environ)
    configure(is_json=settings.is_json, level=settings.log_level)
    sys.exit(asyncio.run(run(settings)))
