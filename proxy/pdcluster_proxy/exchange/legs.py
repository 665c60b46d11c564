"""The worker's open legs, counted per endpoint.

Shell. Every way out of a leg gives back what it took: :meth:`OpenLegs.enter` returns the leaving
function, which may be called any number of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pdcluster_proxy.core.messages import Outcome
from pdcluster_proxy.core.picker import Mine
from pdcluster_proxy.core.ports import Companion

__all__ = ["Leave", "OpenLegs"]

_NONE = Mine()


class Leave(Protocol):
    """Gives back what one leg took; only the first call counts."""

    def __call__(self, outcome: Outcome | None = None) -> None:
        """Report how the leg ended; None where the endpoint is neither to praise nor to blame."""


class OpenLegs:
    """Counts legs; tells the companion of each change.

    Args:
        companion: Hears of each beginning and end.
    """

    def __init__(self, companion: Companion) -> None:
        self._companion = companion
        # This is all the mutable state.
        self._open: dict[str, Mine] = {}

    @property
    def by_endpoint(self) -> Mapping[str, Mine]:
        """Open legs by endpoint name; endpoints without any are absent."""
        return self._open

    def enter(self, endpoint: str, *, prompt_tokens: int = 0) -> Leave:
        """Count one leg in; call what is returned when it has ended, however it ended."""
        self._add(endpoint, 1, prompt_tokens)
        self._companion.leg_began(endpoint, prompt_tokens)
        inside = True

        def leave(outcome: Outcome | None = None) -> None:
            nonlocal inside
            if inside:
                inside = False
                self._add(endpoint, -1, -prompt_tokens)
                self._companion.leg_ended(endpoint, prompt_tokens, outcome)

        return leave

    def _add(self, endpoint: str, legs: int, prompt_tokens: int) -> None:
        old = self._open.get(endpoint, _NONE)
        new = Mine(old.legs + legs, old.prompt_tokens + prompt_tokens)
        if new == _NONE:
            self._open.pop(endpoint, None)
        else:
            self._open[endpoint] = new
