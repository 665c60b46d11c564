"""One cluster's pass: observe, plan, execute.

Shell. Says when to look again; never decides about objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from pdcluster_operator.errors import MissingError, OperatorError, TerminatingError
from pdcluster_operator.kube.executor import Executor
from pdcluster_operator.kube.store import ClusterKey, Store
from pdcluster_operator.manifests.settings import RenderSettings
from pdcluster_operator.model.actions import (
    Action,
    EmitEvent,
    Plan,
    SetStatus,
    is_new_deployment,
)
from pdcluster_operator.model.observed import RawObject
from pdcluster_operator.model.pod_trouble import is_being_made
from pdcluster_operator.model.reading import dig, observe
from pdcluster_operator.plan.reconcile import plan

__all__ = ["TERMINATING_S", "EventSource", "Reconciler"]

_LOG = logging.getLogger(__name__)

TERMINATING_S: Final = 30.0
"""Between two tries where the namespace is on its way out: soon the cluster is gone too."""


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
            rejections=self._store.rejections(key),
        )
        made = plan(observed, self._settings, now=self._now())
        try:
            await self._execute(made, key)
        except TerminatingError as error:
            # Nobody is to be alarmed: somebody wanted it, and everything here goes with it.
            _LOG.info(
                "namespace.terminating", extra={"cluster": "/".join(key), "reason": str(error)}
            )
            return TERMINATING_S
        return 0.0 if made.actions else made.again_in_s

    async def _execute(self, made: Plan, key: ClusterKey) -> None:
        failure: OperatorError | None = None
        is_rejected = False
        for action in made.actions:
            # What is wrong belongs into the status even where nothing else could be done.
            if failure is not None and not isinstance(action, SetStatus):
                continue
            if is_rejected and _waits_for_the_rest(action):
                continue
            try:
                is_rejected = not await self._executor.do(action, key) or is_rejected
            except TerminatingError:
                raise
            except OperatorError as error:
                # What has no status any more was deleted since it was observed: no alarm.
                is_gone = isinstance(error, MissingError) and isinstance(action, SetStatus)
                _LOG.log(
                    logging.INFO if is_gone else logging.WARNING,
                    "action.failed",
                    extra={"cluster": "/".join(key), "reason": str(error)},
                )
                failure = failure or error
        if failure is not None:
            raise failure

    async def _events_of(
        self, key: ClusterKey, waiting: list[RawObject]
    ) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for pod in waiting[:4]:  # One tells as much as all: pods of a role are alike.
            name = str(dig(pod, "metadata", "name") or "")
            try:
                found += await self._events.list_events(key[0], name)
            except OperatorError as error:
                _LOG.debug("events.failed", extra={"pod": name, "reason": str(error)})
        return found


def _waits_for_the_rest(action: Action) -> bool:
    """Whether an action was planned for the case that the API server takes all others.

    The status says what the next snapshot shows, a moment later; so do Events. Pods may need what
    was rejected: the next plan knows.
    """
    return isinstance(action, SetStatus | EmitEvent) or is_new_deployment(action)
