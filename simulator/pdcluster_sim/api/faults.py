"""Faults to inject into the HTTP side, set by the admin endpoint or a script.

Shell on the event loop: one small mutable object, empty unless somebody asked for a fault.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

__all__ = ["Fault", "FaultKind", "Faults"]

FaultKind = Literal[
    "status", "drop-params", "spoil-params", "finish-error", "truncate-stream", "slow-answer"
]


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """One thing to do wrong.

    Attributes:
        kind: ``status``: answer with ``status``. ``drop-params``: a prefill answer without params.
            ``spoil-params``: ``set`` replaces fields of the params. ``finish-error``: the choice
            ends with finish_reason "error". ``truncate-stream``: close after ``chunks`` events.
            ``slow-answer``: wait ``seconds`` before anything is sent.
        count: How many requests it hits.
        status: HTTP status.
        set: Fields to replace in the params; null removes one.
        chunks: Events before the stream is cut.
        seconds: Seconds to wait.
        after_seconds: Seconds after start-up, in a script.
    """

    kind: FaultKind
    count: int = 1
    status: int = 503
    set: dict[str, object] = msgspec.field(default_factory=dict)
    chunks: int = 1
    seconds: float = 0.0
    after_seconds: float = 0.0


_REMOVED: Final = None


class Faults:
    """What is still to be done wrong."""

    def __init__(self) -> None:
        self._left: list[tuple[Fault, int]] = []  # this is all the mutable state

    def add(self, fault: Fault) -> None:
        """Plan a fault."""
        self._left.append((fault, fault.count))

    def clear(self) -> None:
        """Plan none any more."""
        self._left.clear()

    def take(self, kind: FaultKind) -> Fault | None:
        """Return a planned fault of this kind and count it, or None."""
        for index, (fault, left) in enumerate(self._left):
            if fault.kind == kind:
                if left > 1:
                    self._left[index] = (fault, left - 1)
                else:
                    del self._left[index]
                return fault
        return None

    def spoil(self, params: dict[str, object] | None) -> dict[str, object] | None:
        """Return what a prefill answer carries instead of its params."""
        if params is None:
            return None
        if self.take("drop-params") is not None:
            return None
        fault = self.take("spoil-params")
        if fault is None:
            return params
        changed = {**params, **fault.set}
        return {
            name: value
            for name, value in changed.items()
            if value is not _REMOVED or name not in fault.set
        }
