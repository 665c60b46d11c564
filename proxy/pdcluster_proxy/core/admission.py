"""Admission: start at once, wait in a bounded queue, or be rejected.

Pure. 429 means that capacity is contended; that nothing can serve at all is 503 and not decided
here.

Source: ``routing.md`` section 13 of the design.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Admission", "AdmissionLimits", "decide", "share"]


class Admission(StrEnum):
    """What becomes of a new exchange."""

    START = "start"
    WAIT = "wait"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """One worker's bounds.

    Attributes:
        max_in_flight: Exchanges that run at once.
        max_queue: Exchanges that wait at once.
        queue_timeout_s: Longest wait, in seconds.
    """

    max_in_flight: int
    max_queue: int
    queue_timeout_s: float


def share(limits: AdmissionLimits, *, workers: int) -> AdmissionLimits:
    """Give one of ``workers`` its part, rounded up: the sum is never below what was configured."""
    return AdmissionLimits(
        max_in_flight=-(-limits.max_in_flight // workers),
        max_queue=-(-limits.max_queue // workers),
        queue_timeout_s=limits.queue_timeout_s,
    )


def decide(limits: AdmissionLimits, *, running: int, waiting: int) -> Admission:
    """Decide on a new exchange.

    Args:
        limits: The worker's bounds.
        running: Exchanges that run now.
        waiting: Exchanges that wait now; while any does, nobody overtakes it.
    """
    if running < limits.max_in_flight and waiting == 0:
        return Admission.START
    return Admission.WAIT if waiting < limits.max_queue else Admission.REJECT
