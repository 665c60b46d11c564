"""What an edit of the file changes, and how a person is told.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_cli.up.snapshot import Snapshot

__all__ = ["Edit", "changes_between", "edit_between", "edit_message"]

_SHOWN: Final = 3
"""Changed fields that are named; of the others only the number is told."""
_VALUE_MAX_CHARS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What an applied edit does to the programs.

    Attributes:
        changes: ``field old -> new``, in the schema's order.
        num_kept: Programs that go on.
        num_started: Programs that are started.
        num_drained: Programs that leave once those serve.
    """

    changes: tuple[str, ...]
    num_kept: int
    num_started: int
    num_drained: int

    @property
    def is_felt(self) -> bool:
        """Whether any program is concerned."""
        return bool(self.num_started or self.num_drained)


def changes_between(before: PDCluster, after: PDCluster) -> tuple[str, ...]:
    """Return every field whose value differs, defaults filled in."""
    old, new = (one.model_dump(mode="json", by_alias=True) for one in (before, after))
    return tuple(_changes(old, new, ""))


def _changes(old: object, new: object, path: str) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys((*old, *new)):
            yield from _changes(old.get(name), new.get(name), f"{path}.{name}".lstrip("."))
    else:
        yield f"{path} {_shown(old)} -> {_shown(new)}"


def _shown(value: object) -> str:
    if value is None:
        return "unset"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_MAX_CHARS else text[:_VALUE_MAX_CHARS] + "..."


def edit_between(before: PDCluster, after: PDCluster, old: Snapshot, new: Snapshot) -> Edit:
    """Return what an edit does.

    Args:
        before: The resource so far.
        after: The edited resource.
        old: The programs before it.
        new: The programs with the edited resource as their target.
    """
    had, has = (
        {member.name for member in snapshot.members if member.wanted} for snapshot in (old, new)
    )
    return Edit(
        changes=changes_between(before, after),
        num_kept=len(had & has),
        num_started=len(has - had),
        num_drained=len(had - has),
    )


def edit_message(edit: Edit, source: str) -> str:
    """Return the line that tells of an edit that is taken over.

    Args:
        edit: What it does.
        source: Name of the file, for people.
    """
    told = ", ".join(edit.changes[:_SHOWN])
    if len(edit.changes) > _SHOWN:
        told += f" and {len(edit.changes) - _SHOWN} more"
    if not edit.is_felt:
        return f"Applied {source}: {told or 'nothing has changed'}; no program is concerned."
    when = " once those serve" if edit.num_started and edit.num_drained else ""
    return (
        f"Applying {source}: {told}; programs: {edit.num_kept} kept, {edit.num_started} started, "
        f"{edit.num_drained} drained{when}."
    )
