"""One cluster as it is now: the only thing that plans are made from.

Pure. A snapshot may be half applied, stale or contradict itself; whoever plans copes with any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pdcluster_api.conditions import TroubleReason
from pdcluster_api.problems import Problem
from pdcluster_api.proxy_config import Role
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_operator.manifests.objects import Manifest, ObjectKey

__all__ = [
    "Child",
    "Observed",
    "PodView",
    "RawObject",
    "Rejection",
    "Trouble",
]

RawObject: TypeAlias = Mapping[str, object]
"""An object as the API server gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One object of a cluster's.

    Attributes:
        key: Kind and name.
        uid: Its uid.
        owner_uid: Uid of the object that controls it, "" for none.
        labels: Its labels.
        annotations: Its annotations.
        is_deleting: It is on its way out.
        live: The object itself.
    """

    key: ObjectKey
    uid: str
    owner_uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    is_deleting: bool = False
    live: RawObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why a pod does not get on, or can't be made.

    Attributes:
        reason: Stable word.
        message: What is wrong and what to do.
        is_lasting: It does not pass before a person acts.
    """

    reason: TroubleReason
    message: str
    is_lasting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod of a cluster's.

    Attributes:
        name: Its name.
        component: ``engine`` or ``proxy``.
        role: Role of an engine.
        revision: Revision of an engine.
        is_ready: It says that it serves.
        is_terminating: It is on its way out.
        is_being_made: It is on a node and its containers do not exist yet.
        trouble: Why it does not get on, where something is known.
    """

    name: str
    component: str
    role: Role | None = None
    revision: str = ""
    is_ready: bool = False
    is_terminating: bool = False
    is_being_made: bool = False
    trouble: Trouble | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """What the API server said to an action that it would not have.

    Attributes:
        reason: A reason of ``ConfigValid=False``.
        message: What is wrong and what to do.
        content: Hash of what was asked for: another content is another matter.
        noted_at: When it said so last, RFC 3339 in UTC.
        num: How often in a row it has said so.
    """

    reason: str
    message: str
    content: str
    noted_at: str
    num: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One cluster at one moment.

    Attributes:
        name: Its name.
        namespace: Its namespace.
        uid: Its uid.
        generation: Generation of its spec.
        annotations: Its annotations.
        is_deleting: It is on its way out.
        cluster: The resource, where it obeys every rule.
        problems: What it breaks, where it does.
        invalid_reason: The reason of ``ConfigValid=False`` for these.
        unknown: Fields that only a newer version knows: they are left alone.
        status: Its status as it stands, raw.
        children: Its objects by key, strangers of a child's name included.
        pods: Its pods.
        rejections: What the API server would not have, by child.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    is_deleting: bool = False
    cluster: PDCluster | None = None
    problems: tuple[Problem, ...] = ()
    invalid_reason: str = ""
    unknown: tuple[str, ...] = ()
    status: RawObject = field(default_factory=dict)
    children: Mapping[ObjectKey, Child] = field(default_factory=dict)
    pods: tuple[PodView, ...] = ()
    rejections: Mapping[ObjectKey, Rejection] = field(default_factory=dict)

    def own(self, kind: str) -> tuple[Child, ...]:
        """This cluster's own children of a kind that stay, by name."""
        return tuple(
            child
            for key, child in sorted(self.children.items())
            if key.kind == kind and child.owner_uid == self.uid and not child.is_deleting
        )

    def child(self, manifest: Manifest) -> Child | None:
        """The object of a manifest's name, whoever owns it."""
        metadata = manifest["metadata"]
        assert isinstance(metadata, Mapping)
        return self.children.get(ObjectKey(str(manifest["kind"]), str(metadata["name"])))
