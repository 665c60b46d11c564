"""What a plan asks for.

Pure. The executor does them in order and stops at the first that fails; the next snapshot decides
what follows, never a return value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pdcluster_operator.manifests.objects import Manifest, ObjectKey

__all__ = ["Action", "Apply", "Delete", "EmitEvent", "Patch", "Plan", "SetStatus"]


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
