"""Lists everything anew from time to time: what a watch has missed is found out.

Shell. A watch that was interrupted begins with a list and never tells what went meanwhile; a child
that was deleted then would not be made again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from pdcluster_operator.errors import OperatorError
from pdcluster_operator.kube.store import ClusterKey, Store

__all__ = ["PERIOD_S", "Lister", "Resync"]

_LOG = logging.getLogger(__name__)

PERIOD_S: Final = 60.0
"""Between two lists of everything; a dozen small reads."""


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

    async def run(self, *, period_s: float = PERIOD_S) -> None:
        """Compare for ever."""
        while True:
            await asyncio.sleep(period_s)
            try:
                await self.once()
            except OperatorError as error:
                _LOG.warning("resync.failed", extra={"reason": str(error)})

    async def once(self) -> None:
        """Compare once.

        Raises:
            OperatorError: A list could not be read.
        """
        for namespace in self._namespaces:
            for kind in self._kinds:
                listed, version = await self._lister.list_ours(kind, namespace)
                changed = self._store.replace_kind(
                    kind, listed, version=version, namespace=namespace
                )
                for key in changed:
                    _LOG.warning("watch.missed", extra={"kind": kind, "cluster": "/".join(key)})
                    self._enqueue(key)
