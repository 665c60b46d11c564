"""A status in words, and as JSON.

Pure. Columns are as wide as what stands in them; only the last one is broken into lines, and only
where a terminal's width is known.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Final

from pdcluster_cli.kubectl.view import LeaseView, PoolView, StatusView

__all__ = ["age", "status_json", "status_text"]

_GAP: Final = 2
_LAST_COLUMN_MIN: Final = 30
"""Narrower than this and a message is easier to read unbroken."""
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400


def status_text(view: StatusView, *, now: datetime, width: int | None = None) -> str:
    """Write a status.

    Args:
        view: What to write.
        now: The time, for ages; aware.
        width: Columns of the terminal; None where there is none.
    """
    lines = [
        *_table(
            [
                ("PDCluster", f"{view.namespace}/{view.name}"),
                ("Model", view.model or "-"),
                ("Ready", f"{view.ready} ({view.reason or 'no reason told'})"),
                ("URL", view.url or "-"),
                ("Lease", _lease(view.lease)),
            ],
            width,
        )
    ]
    lines += [f"Note: {note}" for note in view.notes]
    lines += ["", *_table([_POOL_HEAD, *(_pool(pool) for pool in view.pools)], width)]
    conditions = [
        (each.type, each.status, each.reason, age(each.since, now=now), each.message)
        for each in view.conditions
    ]
    lines += ["", *_table([_CONDITION_HEAD, *conditions], width)]
    lines.append("")
    if view.events:
        events = [
            (
                age(each.at, now=now),
                "Warning" if each.is_warning else "Normal",
                each.about,
                each.reason,
                each.message + (f" (x{each.count})" if each.count > 1 else ""),
            )
            for each in view.events
        ]
        lines += _table([_EVENT_HEAD, *events], width)
    elif view.events is not None:
        lines.append("No events: Kubernetes keeps them for an hour.")
    return "\n".join(lines).rstrip("\n")


_POOL_HEAD: Final = ("POOL", "READY", "UPDATED", "DRAINING", "REVISION")
_CONDITION_HEAD: Final = ("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE")
_EVENT_HEAD: Final = ("SEEN", "TYPE", "OBJECT", "REASON", "MESSAGE")


def _number(count: int | None) -> str:
    return "-" if count is None else str(count)


def _pool(pool: PoolView) -> tuple[str, ...]:
    # One revision needs no count: it is that of all pods.
    revisions = ", ".join(
        f"{revision} (x{count})" if len(pool.revisions) > 1 else revision
        for revision, count in pool.revisions
    )
    return (
        pool.name,
        f"{_number(pool.ready)}/{_number(pool.desired)}",
        _number(pool.updated),
        _number(pool.draining),
        revisions or "-",
    )


def _lease(lease: LeaseView | None) -> str:
    if lease is None:
        return "-"
    hand_off = (
        f"hand-off within {lease.hand_off_s} s (new pair)"
        if lease.hand_off_s is not None
        else "hand-off not bounded"
    )
    return (
        f"{_number(lease.duration_s)} s: heartbeat {_number(lease.heartbeat_s)} s, extension "
        f"{_number(lease.extension_s)} s, {hand_off}, prefill grace {_number(lease.grace_s)} s"
    )


def _table(rows: Sequence[tuple[str, ...]], width: int | None) -> Iterable[str]:
    """Align all columns; break the last one where the width is known."""
    widths = [max(map(len, column)) + _GAP for column in zip(*rows, strict=True)][:-1]
    left = sum(widths)
    room = None if width is None or width - left < _LAST_COLUMN_MIN else width - left
    for row in rows:
        start = "".join(cell.ljust(size) for cell, size in zip(row, widths, strict=False))
        last = [row[-1]] if room is None else textwrap.wrap(row[-1], room) or [""]
        yield (start + last[0]).rstrip()
        yield from (" " * left + rest for rest in last[1:])


def age(since: str, *, now: datetime) -> str:
    """How long ago a time of Kubernetes was, in its largest unit; ``-`` where that is unknown."""
    try:
        then = datetime.fromisoformat(since)
    except ValueError:
        return "-"
    if then.tzinfo is None or then.timestamp() == 0:
        return "-"  # The default status of a resource nobody has looked at.
    seconds = max(0, int((now - then).total_seconds()))
    for unit, size in (("d", _DAY_S), ("h", _HOUR_S), ("m", _MINUTE_S)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def status_json(view: StatusView) -> str:
    """Write a status for programs."""
    pools = [
        {
            "name": pool.name,
            "ready": pool.ready,
            "desired": pool.desired,
            "updated": pool.updated,
            "draining": pool.draining,
            "revisions": [{"revision": name, "pods": count} for name, count in pool.revisions],
        }
        for pool in view.pools
    ]
    lease = view.lease
    return json.dumps(
        {
            "name": view.name,
            "namespace": view.namespace,
            "model": view.model,
            "summary": view.summary,
            "ready": view.ready,
            "reason": view.reason,
            "current": view.is_current,
            "url": view.url,
            "pools": pools,
            "lease": None
            if lease is None
            else {
                "durationSeconds": lease.duration_s,
                "heartbeatSeconds": lease.heartbeat_s,
                "extensionSeconds": lease.extension_s,
                "handOffDeadlineSeconds": lease.hand_off_s,
                "terminationGraceSeconds": lease.grace_s,
            },
            "conditions": [asdict(each) for each in view.conditions],
            "events": None
            if view.events is None
            else [
                {
                    "at": each.at,
                    "type": "Warning" if each.is_warning else "Normal",
                    "object": each.about,
                    "reason": each.reason,
                    "message": each.message,
                    "count": each.count,
                }
                for each in view.events
            ],
            "notes": list(view.notes),
        },
        indent=2,
    )
