"""One cluster's pass: observe, plan, execute.

Shell. Says when to look again; never decides about objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from pdcluster_operator.errors import ClusterApiError, OperatorError
from pdcluster_operator.kube.executor import Executor
from pdcluster_operator.kube.store import ClusterKey, Store
from pdcluster_operator.manifests.settings import RenderSettings
from pdcluster_operator.model.actions import SetStatus
from pdcluster_operator.model.observed import RawObject
from pdcluster_operator.model.pod_trouble import is_being_made
from pdcluster_operator.model.reading import dig, observe
from pdcluster_operator.plan.reconcile import plan

__all__ = ["EventSource", "Reconciler"]

_LOG = logging.getLogger(__name__)


class EventSource(Protocol):
    """Reads Events about pods."""

    async def list_events(self, namespace: str, pod: str) -> list[dict[str, object]]:
        """Events about one pod."""


class Reconciler:
    """Passes over clusters.

    Args:
        store: What is known.
        executor: Does what plans ask for.
        events: Events about pods.
        settings: The installation's choices.
        now: The time, RFC 3339 in UTC.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        events: EventSource,
        settings: RenderSettings,
        *,
        now: Callable[[], str],
    ) -> None:
        self._store = store
        self._executor = executor
        self._events = events
        self._settings = settings
        self._now = now

    async def __call__(self, key: ClusterKey) -> float | None:
        """Bring one cluster nearer to what it wants.

        Returns:
            Seconds until it should be looked at again though nothing has changed; None: never.

        Raises:
            OperatorError: Something was not done; to be tried again after a while.
        """
        raw = self._store.cluster(key)
        if raw is None:
            return None
        await self._executor.look_at_strangers(key)
        waiting = [pod for pod in self._store.pods(key) if is_being_made(pod)]
        observed = observe(
            raw,
            children=self._store.children(key),
            pods=self._store.pods(key),
            events=await self._events_of(key, waiting),
            failures=self._store.failures(key),
        )
        made = plan(observed, self._settings, now=self._now())
        failure: OperatorError | None = None
        for action in made.actions:
            # What is wrong belongs into the status even where nothing else could be done.
            if failure is not None and not isinstance(action, SetStatus):
                continue
            try:
                await self._executor.do(action, key)
            except OperatorError as error:
                _LOG.warning(
                    "action.failed", extra={"cluster": "/".join(key), "reason": str(error)}
                )
                failure = failure or error
        if failure is not None:
            raise failure
        return 0.0 if made.actions else made.again_in_s

    async def _events_of(
        self, key: ClusterKey, waiting: list[RawObject]
    ) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for pod in waiting[:4]:  # One tells as much as all: pods of a role are alike.
            name = str(dig(pod, "metadata", "name") or "")
            try:
                found += await self._events.list_events(key[0], name)
            except ClusterApiError as error:
                _LOG.debug("events.failed", extra={"pod": name, "reason": str(error)})
        return found
