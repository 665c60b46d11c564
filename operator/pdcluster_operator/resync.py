"""Lists everything: at the start, and from time to time, to find out what a watch has missed.

Shell. Each kind's watch begins when it can. A plan that knows a cluster and not yet all of its
children would undo what it does not see: scale to the resource's own number, render anew what is
recorded. And a watch that was interrupted begins with a list and never tells what went meanwhile:
a child that was deleted then would not be made again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from pdcluster_operator.errors import ClusterApiError, OperatorError
from pdcluster_operator.kube.store import ClusterKey, Store

__all__ = ["PERIOD_S", "RETRY_MAX_S", "RETRY_S", "Lister", "Resync"]

_LOG = logging.getLogger(__name__)

PERIOD_S: Final = 60.0
"""Between two lists of everything; a dozen small reads."""

RETRY_S: Final = 1.0
"""Until the second try where not all could be listed yet; each further one waits twice as long."""

RETRY_MAX_S: Final = 10.0
"""The longest wait for another try."""


class Lister(Protocol):
    """Lists objects (``kube/client.py``)."""

    async def list_ours(
        self, kind: str, namespace: str = ""
    ) -> tuple[list[dict[str, object]], str]:
        """All objects of a kind that are ours, and the list's version."""


class Resync:
    """Compares the store with the server.

    Args:
        lister: Reads lists.
        store: What is known.
        kinds: What is watched.
        namespaces: Where; empty for everywhere.
        enqueue: Has a cluster looked at.
    """

    def __init__(
        self,
        lister: Lister,
        store: Store,
        *,
        kinds: tuple[str, ...],
        namespaces: tuple[str, ...],
        enqueue: Callable[[ClusterKey], None],
    ) -> None:
        self._lister = lister
        self._store = store
        self._kinds = kinds
        self._namespaces = namespaces or ("",)
        self._enqueue = enqueue
        # This is all the mutable state.
        self._listed: set[str] = set()

    def has_listed(self, key: ClusterKey) -> bool:
        """Whether all that belongs to a cluster is known; before that nothing is planned for it."""
        return "" in self._listed or key[0] in self._listed

    async def run(self, *, period_s: float = PERIOD_S) -> None:
        """Compare for ever."""
        pause_s = RETRY_S
        while True:
            asked_s = await self.once()
            if self._listed.issuperset(self._namespaces):
                pause_s = period_s
            await asyncio.sleep(max(pause_s, asked_s))
            pause_s = min(RETRY_MAX_S, 2 * pause_s)

    async def once(self) -> float:
        """Compare once; a namespace that can't be listed holds up no other.

        Returns:
            For how many seconds the server asked to be left alone.
        """
        asked_s = 0.0
        for namespace in self._namespaces:
            try:
                await self._compare(namespace)
            except OperatorError as error:
                _LOG.warning("resync.failed", extra={"reason": str(error)})
                if isinstance(error, ClusterApiError):
                    asked_s = max(asked_s, error.retry_after_s or 0.0)
        return asked_s

    async def _compare(self, namespace: str) -> None:
        is_first = namespace not in self._listed
        for kind in self._kinds:
            listed, version = await self._lister.list_ours(kind, namespace)
            changed = self._store.replace_kind(kind, listed, version=version, namespace=namespace)
            for key in () if is_first else changed:
                _LOG.warning("watch.missed", extra={"kind": kind, "cluster": "/".join(key)})
                self._enqueue(key)
        if is_first:
            self._listed.add(namespace)
            clusters = self._store.keys()
            for key in clusters:
                if namespace in ("", key[0]):
                    self._enqueue(key)
