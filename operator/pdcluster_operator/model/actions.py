"""What a plan asks for.

Pure. The executor does them in order and stops at the first that fails; the next snapshot decides
what follows, never a return value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pdcluster_operator.manifests.objects import Manifest, ObjectKey, hash_of, key_of

__all__ = [
    "Action",
    "Apply",
    "Delete",
    "EmitEvent",
    "Patch",
    "Plan",
    "SetStatus",
    "Target",
    "is_new_deployment",
    "target_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Server-side apply.

    Attributes:
        manifest: What to apply.
        uid: The uid that was observed, so that no other object of the name is changed; "" creates,
            after a look that nothing of the name is there.
    """

    manifest: Manifest
    uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete one object, pods and all in the background.

    Attributes:
        key: Kind and name.
        uid: Its uid; another object of the name is left alone.
    """

    key: ObjectKey
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A merge patch of some fields.

    Attributes:
        key: Kind and name.
        uid: Its uid.
        content: The fields.
    """

    key: ObjectKey
    uid: str
    content: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStatus:
    """Apply the status of the cluster or of one of its pools.

    Attributes:
        key: Kind and name: ``PDCluster`` or ``PDPool``.
        status: The whole status.
    """

    key: ObjectKey
    status: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitEvent:
    """An Event about the cluster.

    Attributes:
        is_warning: A person should look.
        reason: Stable word.
        message: What happened, and what to do.
    """

    is_warning: bool
    reason: str
    message: str


Action: TypeAlias = Apply | Delete | Patch | SetStatus | EmitEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now.

    Attributes:
        actions: In order.
        again_in_s: Look again after so many seconds even if nothing changes; None: never.
    """

    actions: tuple[Action, ...] = ()
    again_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What an action does to which child.

    Attributes:
        key: Kind and name of the child.
        content: Hash of what is asked for.
    """

    key: ObjectKey
    content: str


def target_of(action: Action) -> Target | None:
    """Say what a child is asked for; None for what is about no child's content."""
    match action:
        case Apply(manifest=manifest):
            return Target(key=key_of(manifest), content=hash_of(manifest))
        case Patch(key=key, content=content):
            return Target(key=key, content=hash_of(content))
        case Delete(key=key, uid=uid):
            return Target(key=key, content=uid)
    return None


def is_new_deployment(action: Action) -> bool:
    """Whether an action would make pods where there are none yet."""
    return (
        isinstance(action, Apply)
        and not action.uid
        and key_of(action.manifest).kind == "Deployment"
    )
