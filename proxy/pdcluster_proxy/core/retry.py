"""The retry budget: how many more upstream attempts a worker may add.

Pure. A token bucket in two parts: a share of what clients sent over a sliding window, and a small
constant rate, so that a quiet worker may still fail over. With every upstream failing the attempts
stay below 1.2 per client request plus three a second. Requests are only counted as they come, and
credited when a retry is asked for: most never are.

Source: ``routing.md`` section 10 of the design; the shape is Envoy's retry budget.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["RetryBudget", "credit", "take_retry"]

SHARE: Final = 0.2
"""Retries per client request."""
FLOOR_PER_S: Final = 3.0
"""Retries per second that are always allowed."""
WINDOW_S: Final = 10.0
"""The window of both figures, in seconds."""
CEILING: Final = FLOOR_PER_S * WINDOW_S
"""Most that is saved up."""


class RetryBudget(msgspec.Struct, frozen=True, gc=False):
    """What is left, at ``at`` (monotonic seconds)."""

    tokens: float = FLOOR_PER_S
    at: float = 0.0


def credit(budget: RetryBudget, *, num_requests: int, now: float) -> RetryBudget:
    """Credit the client requests and the time since the last look."""
    gained = max(0.0, now - budget.at) * FLOOR_PER_S
    # The constant rate fills to one second's worth; what requests earned above that is kept.
    filled = min(max(FLOOR_PER_S, budget.tokens), budget.tokens + gained)
    return RetryBudget(min(CEILING, filled + SHARE * num_requests), max(budget.at, now))


def take_retry(budget: RetryBudget) -> tuple[RetryBudget, bool]:
    """Spend one retry where there is one.

    Returns:
        The budget afterwards, and whether the retry may go ahead.
    """
    if budget.tokens < 1.0:
        return budget, False
    return RetryBudget(budget.tokens - 1.0, budget.at), True
