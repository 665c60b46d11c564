"""How long each wait of an exchange may take: one instant per bound, and what is left of it.

Pure. A leg has one instant by which its answer must have begun; every await on the way gets what is
left until then, so that bounds never add up. Deliberately not here: what follows when one passes.

Source: ``routing.md`` sections 9.3, 11 and 15 of the design.
"""

from __future__ import annotations

from typing import Final

__all__ = ["answer_until", "decode_wait_s", "is_over", "left_s", "leg_until"]

DECODE_WAIT_S: Final = 0.25
"""Longest wait for a changed pool before a decode engine is looked for again, in seconds."""

TIMER_GRAIN_S: Final = 0.01
"""Loops keep time in milliseconds: a timer may strike a little before the clock says so."""


def is_over(deadline_at: float, now: float) -> bool:
    """Tell whether a wait that ends now ends for the request's own deadline.

    Args:
        deadline_at: Instant at which the whole request's time is over.
        now: Monotonic seconds.
    """
    return now >= deadline_at - TIMER_GRAIN_S


def leg_until(now: float, *, deadline_at: float, first_byte_s: float) -> float:
    """Instant by which a leg that begins now must have begun to answer.

    Args:
        now: Monotonic seconds.
        deadline_at: Instant at which the whole request's time is over.
        first_byte_s: Longest wait for a leg's answer, in seconds.
    """
    return max(now, min(now + first_byte_s, deadline_at))


def left_s(until: float, now: float) -> float:
    """Seconds until an instant; 0 once it has passed."""
    return max(0.0, until - now)


def answer_until(
    now: float, *, leg_until: float, clock_start: float | None, max_hold_s: float
) -> tuple[float, bool]:
    """Instant by which D must have begun to answer, and whether the hold bound sets it.

    Args:
        now: Monotonic seconds.
        leg_until: From :func:`leg_until`.
        clock_start: Instant from which the lease's age is counted; None without a lease.
        max_hold_s: Greatest age at which a lease is still waited for, in seconds.
    """
    if clock_start is None:
        return leg_until, False
    hold_until = max(now, clock_start + max_hold_s)
    return (hold_until, True) if hold_until < leg_until else (leg_until, False)


def decode_wait_s(
    now: float, *, clock_start: float, longest_hand_off_s: float | None, max_hold_s: float
) -> float | None:
    """Seconds to wait for a changed pool while no decode engine is ready.

    Args:
        now: Monotonic seconds.
        clock_start: Instant from which the lease's age is counted.
        longest_hand_off_s: The longest hand-off deadline that any pair with this P may have; None
            where the lease is no bound.
        max_hold_s: Greatest age at which a lease is still waited for, in seconds.

    Returns:
        Seconds; None once no hand-off could come in time any more.
    """
    held_s = max_hold_s if longest_hand_off_s is None else min(longest_hand_off_s, max_hold_s)
    left = clock_start + held_s - now
    return min(left, DECODE_WAIT_S) if left > 0 else None
