"""Watches PDClusters, their children and pods, and has their clusters looked at.

Shell. kopf only lists and watches here: no change handlers, timers or daemons, because they would
leave annotations and finalizers on the user's objects.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import kopf

from pdcluster_api.labels import CLUSTER_LABEL
from pdcluster_operator.kube.resources import RESOURCES
from pdcluster_operator.kube.store import ClusterKey, Store

__all__ = ["WATCHED", "watch"]

_LOG = logging.getLogger(__name__)

WATCHED: Final = tuple(kind for kind in RESOURCES if kind != "Event")
"""Kinds that are watched; Events are read where a pod does not start."""


async def watch(
    store: Store,
    enqueue: Callable[[ClusterKey], None],
    *,
    namespaces: tuple[str, ...],
) -> None:
    """Watch for ever.

    Args:
        store: Learns of everything.
        enqueue: Has a cluster looked at.
        namespaces: Where; empty for everywhere.
    """
    await kopf.operator(
        registry=_make_registry(store, enqueue),
        settings=_make_settings(),
        namespaces=namespaces,
        clusterwide=not namespaces,
    )


def _make_registry(store: Store, enqueue: Callable[[ClusterKey], None]) -> kopf.OperatorRegistry:
    """Have every event put into the store and its cluster looked at.

    Args:
        store: What is known.
        enqueue: Has a cluster looked at.
    """
    registry = kopf.OperatorRegistry()

    async def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    kopf.on.login(registry=registry)(login)
    for kind in WATCHED:
        resource = RESOURCES[kind]
        handler = _handler(kind, store, enqueue)
        kopf.on.event(
            resource.group, resource.version, resource.plural, id=kind, registry=registry
        )(handler)
    return registry


def _handler(
    kind: str, store: Store, enqueue: Callable[[ClusterKey], None]
) -> Callable[..., Awaitable[None]]:
    api_version = RESOURCES[kind].api_version

    async def handle(event: kopf.RawEvent, **_: object) -> None:
        # Objects of a list come without their kind.
        raw = {**event["object"], "apiVersion": api_version, "kind": kind}
        key = store.drop(raw) if event["type"] == "DELETED" else store.put(raw)
        if key is not None:
            enqueue(key)

    return handle


def _make_settings() -> kopf.OperatorSettings:
    """Kopf as a watcher of named kinds, with nothing to discover and nothing to keep."""
    settings = kopf.OperatorSettings()
    # Neither CRDs nor namespaces are looked for, so no rights on them are needed.
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    for kind in WATCHED:
        if kind != "PDCluster":
            resource = RESOURCES[kind]
            name = (resource.group or "", resource.version, resource.plural)
            settings.watching.label_selectors[name] = CLUSTER_LABEL
    return settings
