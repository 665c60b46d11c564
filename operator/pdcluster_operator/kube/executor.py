"""Does what a plan asks for.

Shell. In order, and not further than the first failure: the next snapshot decides what follows.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Protocol

from pdcluster_api.conditions import ConfigInvalidReason
from pdcluster_operator.errors import ApplyRejectedError, RejectedError, StrangerError
from pdcluster_operator.kube.resources import RESOURCES
from pdcluster_operator.kube.store import ClusterKey, Store
from pdcluster_operator.manifests.labels import FIELD_MANAGER
from pdcluster_operator.manifests.objects import Manifest, ObjectKey, key_of
from pdcluster_operator.model.actions import (
    Action,
    Apply,
    Delete,
    EmitEvent,
    Patch,
    SetStatus,
    target_of,
)
from pdcluster_operator.model.observed import RawObject, Rejection
from pdcluster_operator.model.reading import read_child
from pdcluster_operator.model.rejections import told

__all__ = ["Executor", "ObjectApi"]

_LOG = logging.getLogger(__name__)
Raw = dict[str, object]


class ObjectApi(Protocol):
    """Reads and writes of single objects (``client.py``)."""

    async def get(self, key: ObjectKey, namespace: str) -> Raw | None:
        """Read one object."""

    async def apply(self, manifest: Manifest, namespace: str, *, uid: str) -> Raw:
        """Apply a manifest."""

    async def apply_status(self, key: ObjectKey, namespace: str, status: RawObject) -> Raw:
        """Apply a status."""

    async def patch(self, key: ObjectKey, namespace: str, content: RawObject, *, uid: str) -> Raw:
        """Merge some fields."""

    async def delete(self, key: ObjectKey, namespace: str, *, uid: str) -> None:
        """Delete one object."""

    async def create_event(self, namespace: str, event: RawObject) -> None:
        """Write an Event."""


class Executor:
    """Carries out plans.

    Args:
        api: The Kubernetes API.
        store: Learns what was written.
        now: The time, RFC 3339 in UTC.
        instance: Name of this process, for Events.
    """

    def __init__(
        self, api: ObjectApi, store: Store, *, now: Callable[[], str], instance: str
    ) -> None:
        self._api = api
        self._store = store
        self._now = now
        self._instance = instance

    async def do(self, action: Action, key: ClusterKey) -> bool:
        """Do one action.

        Args:
            action: What to do.
            key: The cluster it belongs to.

        Returns:
            Whether the API server took it; that it rejects something for a child is noted, and not
            raised.

        Raises:
            OperatorError: It was not done.
        """
        target = target_of(action)
        try:
            await self._do(action, key)
        except RejectedError as error:
            if target is None:
                raise
            reason = _reason_of(error)
            _LOG.warning("action.rejected", extra={"cluster": "/".join(key), "reason": str(error)})
            rejection = Rejection(
                reason=reason,
                message=told(_undone(action, target.key), reason, error.said),
                content=target.content,
                noted_at=self._now(),
            )
            self._store.note_rejection(key, target.key, rejection)
            return False
        if target is not None:
            self._store.note_rejection(key, target.key, None)
        return True

    async def _do(self, action: Action, key: ClusterKey) -> None:
        namespace = key[0]
        match action:
            case Apply():
                await self._apply(action, key)
            case Delete(key=child, uid=uid):
                await self._api.delete(child, namespace, uid=uid)
                self._store.forget(key, child, uid=uid)
            case Patch(key=child, uid=uid, content=content):
                self._store.put(await self._api.patch(child, namespace, content, uid=uid))
            case SetStatus(key=child, status=status):
                self._store.put(await self._api.apply_status(child, namespace, status))
            case EmitEvent():
                await self._api.create_event(namespace, self._event(action, key))

    async def look_at_strangers(self, key: ClusterKey) -> None:
        """See whether names that were taken are free again: strangers are not watched."""
        for child in self._store.strangers(key):
            self._store.put_stranger(key, child, await self._api.get(child, key[0]))

    async def _apply(self, action: Apply, key: ClusterKey) -> None:
        namespace, child = key[0], key_of(action.manifest)
        try:
            if not action.uid:
                await self._check_name(child, key)
            live = await self._api.apply(action.manifest, namespace, uid=action.uid)
        except StrangerError as error:
            self._store.put_stranger(key, child, error.live)
            return
        self._store.put(live)

    async def _check_name(self, child: ObjectKey, key: ClusterKey) -> None:
        """An apply would merge into whatever has the name: look before."""
        found = await self._api.get(child, key[0])
        if found is None:
            return
        cluster = self._store.cluster(key)
        owner = read_child(cluster).uid if cluster is not None else ""
        if read_child(found).owner_uid != owner:
            message = f"{child.kind} {child.name} exists and is not ours"
            raise StrangerError(message, found)

    def _event(self, action: EmitEvent, key: ClusterKey) -> Raw:
        namespace, name = key
        cluster = self._store.cluster(key) or {}
        now, resource = self._now(), RESOURCES["PDCluster"]
        metadata = read_child(cluster) if cluster else None
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.{secrets.token_hex(8)}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "name": name,
                "namespace": namespace,
                "uid": metadata.uid if metadata else "",
            },
            "type": "Warning" if action.is_warning else "Normal",
            "reason": action.reason,
            "message": action.message[:1024],
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def _reason_of(error: RejectedError) -> str:
    if not isinstance(error, ApplyRejectedError):
        return ConfigInvalidReason.APPLY_FORBIDDEN
    if error.is_template:
        return ConfigInvalidReason.POD_TEMPLATE_INVALID
    return ConfigInvalidReason.APPLY_REJECTED


def _undone(action: Action, child: ObjectKey) -> str:
    """What was not done, for people."""
    match action:
        case Delete():
            verb = "deleted"
        case Patch():
            verb = "changed"
        case _:
            verb = "applied"
    return f"{child.kind} {child.name} can't be {verb}"
