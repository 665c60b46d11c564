"""What the watches have told so far: clusters, their children and pods.

Shell. The one place of mutable state that snapshots are made from. An object that was just written
is put in as the server answered it, so that a plan is never made from what was before one's own
write; an older version that a watch brings later is not taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from pdcluster_operator.manifests.objects import ObjectKey
from pdcluster_operator.model.observed import RawObject, Rejection
from pdcluster_operator.model.reading import cluster_name_of, dig

__all__ = ["ClusterKey", "Store"]

ClusterKey: TypeAlias = tuple[str, str]
"""Namespace and name of a PDCluster."""


class Store:
    """Everything known of every cluster."""

    def __init__(self) -> None:
        # This is all the mutable state.
        self._clusters: dict[ClusterKey, RawObject] = {}
        self._children: dict[ClusterKey, dict[ObjectKey, RawObject]] = defaultdict(dict)
        self._strangers: dict[ClusterKey, dict[ObjectKey, RawObject]] = defaultdict(dict)
        self._pods: dict[ClusterKey, dict[str, RawObject]] = defaultdict(dict)
        self._rejections: dict[ClusterKey, dict[ObjectKey, Rejection]] = defaultdict(dict)

    def put(self, raw: RawObject) -> ClusterKey | None:
        """Take an object as it is now; give the cluster it belongs to."""
        kind, name = str(raw.get("kind", "")), str(dig(raw, "metadata", "name") or "")
        namespace = str(dig(raw, "metadata", "namespace") or "")
        if kind == "PDCluster":
            key = (namespace, name)
            if is_newer(raw, self._clusters.get(key)):
                self._clusters[key] = raw
            return key
        owner = cluster_name_of(raw)
        if not owner:
            return None
        key = (namespace, owner)
        if kind == "Pod":
            if is_newer(raw, self._pods[key].get(name)):
                self._pods[key][name] = raw
        elif is_newer(raw, self._children[key].get(ObjectKey(kind, name))):
            self._children[key][ObjectKey(kind, name)] = raw
            self._strangers[key].pop(ObjectKey(kind, name), None)
        return key

    def drop(self, raw: RawObject) -> ClusterKey | None:
        """Forget an object that is gone; give the cluster it belonged to."""
        kind, name = str(raw.get("kind", "")), str(dig(raw, "metadata", "name") or "")
        namespace = str(dig(raw, "metadata", "namespace") or "")
        if kind == "PDCluster":
            known = self._clusters.get((namespace, name))
            if known is None or dig(known, "metadata", "uid") == dig(raw, "metadata", "uid"):
                for kept in (self._clusters, self._rejections, self._strangers):
                    kept.pop((namespace, name), None)
            return (namespace, name)
        owner = cluster_name_of(raw)
        if not owner:
            return None
        key = (namespace, owner)
        if kind == "Pod":
            self._pods[key].pop(name, None)
        else:
            self.forget(key, ObjectKey(kind, name), uid=str(dig(raw, "metadata", "uid") or ""))
        return key

    def replace_kind(
        self, kind: str, listed: Iterable[RawObject], *, version: str, namespace: str = ""
    ) -> set[ClusterKey]:
        """Take a whole list of one kind: what is not on it and is not newer is gone.

        A watch that begins anew tells of what there is and never of what went meanwhile.

        Args:
            kind: The kind.
            listed: All objects of it that are ours.
            version: The list's resource version.
            namespace: Where it was listed; "" for everywhere.

        Returns:
            The clusters that something has changed for.
        """
        items = list(listed)
        there = {dig(each, "metadata", "uid") for each in items}
        changed: set[ClusterKey] = set()
        for known in self._known(kind, namespace):
            is_gone = dig(known, "metadata", "uid") not in there
            if is_gone and not _is_after(known, version):
                key = self.drop(known)
                if key is not None:
                    changed.add(key)
        for each in items:
            before = dig(self._find(each), "metadata", "resourceVersion")
            key = self.put(each)
            if key is not None and before != dig(self._find(each), "metadata", "resourceVersion"):
                changed.add(key)
        return changed

    def _known(self, kind: str, namespace: str) -> list[RawObject]:
        if kind == "PDCluster":
            pools: Iterable[RawObject] = self._clusters.values()
        elif kind == "Pod":
            pools = [pod for pods in self._pods.values() for pod in pods.values()]
        else:
            pools = [
                raw
                for children in self._children.values()
                for child, raw in children.items()
                if child.kind == kind
            ]
        return [
            raw for raw in pools if not namespace or dig(raw, "metadata", "namespace") == namespace
        ]

    def _find(self, raw: RawObject) -> RawObject | None:
        kind, name = str(raw.get("kind", "")), str(dig(raw, "metadata", "name") or "")
        namespace = str(dig(raw, "metadata", "namespace") or "")
        if kind == "PDCluster":
            return self._clusters.get((namespace, name))
        key = (namespace, cluster_name_of(raw))
        if kind == "Pod":
            return self._pods[key].get(name)
        return self._children[key].get(ObjectKey(kind, name))

    def forget(self, key: ClusterKey, child: ObjectKey, *, uid: str) -> None:
        """Forget a child, unless another of its name has come meanwhile."""
        known = self._children[key].get(child)
        if known is not None and dig(known, "metadata", "uid") == uid:
            del self._children[key][child]

    def put_stranger(self, key: ClusterKey, child: ObjectKey, raw: RawObject | None) -> None:
        """Note what was found under a child's name that is not ours; None: nothing any more."""
        if raw is None:
            self._strangers[key].pop(child, None)
        else:
            self._strangers[key][child] = raw

    def strangers(self, key: ClusterKey) -> tuple[ObjectKey, ...]:
        """Names of children that somebody else's objects have."""
        return tuple(self._strangers[key])

    def note_rejection(self, key: ClusterKey, child: ObjectKey, said: Rejection | None) -> None:
        """Note that something was rejected, or that it was taken."""
        if said is None:
            self._rejections[key].pop(child, None)
            return
        before = self._rejections[key].get(child)
        if before is not None and (before.content, before.reason) == (said.content, said.reason):
            said = replace(said, num=before.num + 1)
        self._rejections[key][child] = said

    def cluster(self, key: ClusterKey) -> RawObject | None:
        """The PDCluster."""
        return self._clusters.get(key)

    def children(self, key: ClusterKey) -> Iterable[RawObject]:
        """Its objects, and strangers of their names."""
        return (*self._children[key].values(), *self._strangers[key].values())

    def pods(self, key: ClusterKey) -> Iterable[RawObject]:
        """Its pods."""
        return tuple(self._pods[key].values())

    def rejections(self, key: ClusterKey) -> Mapping[ObjectKey, Rejection]:
        """What the API server would not have of it."""
        return dict(self._rejections[key])

    def keys(self) -> tuple[ClusterKey, ...]:
        """Every cluster."""
        return tuple(self._clusters)


def _is_after(raw: RawObject, version: str) -> bool:
    """Whether an object is newer than a list."""
    mine = dig(raw, "metadata", "resourceVersion")
    if not (isinstance(mine, str) and mine.isdecimal() and version.isdecimal()):
        return False
    return int(mine) > int(version)


def is_newer(raw: RawObject, known: RawObject | None) -> bool:
    """Whether an object is at least as new as what is known.

    Resource versions of one kind can be compared as numbers (Kubernetes 1.35 says so, and every
    release with etcd did); an object with another uid is another object.
    """
    if known is None or dig(raw, "metadata", "uid") != dig(known, "metadata", "uid"):
        return True
    mine, theirs = (dig(each, "metadata", "resourceVersion") for each in (raw, known))
    if not (isinstance(mine, str) and isinstance(theirs, str)):
        return True
    if not (mine.isdecimal() and theirs.isdecimal()):
        return True
    return int(mine) >= int(theirs)
