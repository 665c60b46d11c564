"""The retry budget: how many more upstream attempts a worker may add.

Pure. A token bucket in two parts: a share of what clients sent over a sliding window, and a small
constant rate, so that a quiet worker may still fail over. With every upstream failing the attempts
stay below 1.2 per client request plus three a second.

Source: ``routing.md`` section 10 of the design; the shape is Envoy's retry budget.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

__all__ = ["RetryBudget", "note_request", "take_retry"]

SHARE: Final = 0.2
"""Retries per client request."""
FLOOR_PER_S: Final = 3.0
"""Retries per second that are always allowed."""
WINDOW_S: Final = 10.0
"""The window of both figures, in seconds."""


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """What is left, at ``at`` (monotonic seconds)."""

    tokens: float = FLOOR_PER_S
    at: float = 0.0

    @property
    def _ceiling(self) -> float:
        return FLOOR_PER_S * WINDOW_S


def _refilled(budget: RetryBudget, now: float) -> RetryBudget:
    gained = max(0.0, now - budget.at) * FLOOR_PER_S
    # The constant rate fills to one second's worth; what requests earned above that is kept.
    ceiling = max(FLOOR_PER_S, budget.tokens)
    return RetryBudget(min(ceiling, budget.tokens + gained), max(budget.at, now))


def note_request(budget: RetryBudget, *, now: float) -> RetryBudget:
    """Credit one client request."""
    full = _refilled(budget, now)
    return replace(full, tokens=min(full._ceiling, full.tokens + SHARE))  # noqa: SLF001 (own module)


def take_retry(budget: RetryBudget, *, now: float) -> tuple[RetryBudget, bool]:
    """Spend one retry where there is one.

    Returns:
        The budget afterwards, and whether the retry may go ahead.
    """
    full = _refilled(budget, now)
    if full.tokens < 1.0:
        return full, False
    return replace(full, tokens=full.tokens - 1.0), True
