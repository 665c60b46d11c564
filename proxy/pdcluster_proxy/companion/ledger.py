"""The ledger: leases that were granted and have not ended, per prefill endpoint.

Pure: takes ``now``. A lease leaves the ledger when a worker says that it has ended. Where that word
is lost with its worker, time ends it: after the lease's duration if it was never handed off, after
the hold bound if it was, since a decode engine may renew it until then.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import assert_never

from pdcluster_proxy.core.messages import LeaseStep, LeaseStepKind

__all__ = ["Held", "Ledger"]

MAX_HELD = 200_000
"""More leases than any proxy can have open; beyond it the oldest are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One lease that has not ended.

    Attributes:
        endpoint: The prefill endpoint that granted it.
        granted_at: Monotonic seconds, by the companion's clock.
        is_handed_off: A decode engine was sent the params.
    """

    endpoint: str
    granted_at: float
    is_handed_off: bool = False


class Ledger:
    """All held leases of one proxy.

    Args:
        max_hold_s: Longest time a lease may be kept alive, in seconds.
    """

    def __init__(self, *, max_hold_s: float) -> None:
        self._max_hold_s = max_hold_s
        # This is all the mutable state.
        self._held: dict[tuple[str, str], Held] = {}

    def apply(self, event: LeaseStep, *, now: float) -> None:
        """Note one step of one lease."""
        key = (event.endpoint, event.request_id)
        match event.kind:
            case LeaseStepKind.GRANTED:
                self._held[key] = Held(endpoint=event.endpoint, granted_at=now - event.age_s)
                if len(self._held) > MAX_HELD:
                    del self._held[next(iter(self._held))]
            case LeaseStepKind.HANDED_OFF:
                held = self._held.get(key)
                if held is not None:
                    self._held[key] = replace(held, is_handed_off=True)
            case LeaseStepKind.ENDED:
                self._held.pop(key, None)
            case kind:
                assert_never(kind)

    def sweep(self, durations_s: dict[str, int], *, now: float) -> int:
        """End what time has ended; looks at every lease.

        Args:
            durations_s: Lease duration of each prefill endpoint; the leases of one that is gone
                are over.
            now: Monotonic seconds.

        Returns:
            How many were ended.
        """
        over = [
            key
            for key, held in self._held.items()
            if now - held.granted_at
            > (self._max_hold_s if held.is_handed_off else durations_s.get(held.endpoint, 0))
        ]
        for key in over:
            del self._held[key]
        return len(over)

    def counts(self) -> Counter[str]:
        """Leases held, per endpoint."""
        return Counter(held.endpoint for held in self._held.values())

    def oldest_s(self, *, now: float) -> dict[str, float]:
        """Age of the oldest lease held, per endpoint, in seconds."""
        oldest: dict[str, float] = {}
        for held in self._held.values():
            age = now - held.granted_at
            oldest[held.endpoint] = max(age, oldest.get(held.endpoint, 0.0))
        return oldest
