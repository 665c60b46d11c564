"""The worker's open legs, counted per endpoint.

Shell. Whoever enters leaves exactly once, on whichever way out: ``exchange/running.py`` holds the
one leg an exchange has out at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

from pdcluster_proxy.core.messages import Outcome
from pdcluster_proxy.core.picker import Mine
from pdcluster_proxy.core.ports import CompanionPort

__all__ = ["OpenLegs"]


class OpenLegs:
    """Counts legs; tells the companion of each change.

    Args:
        companion: Hears of each beginning and end.
    """

    def __init__(self, companion: CompanionPort) -> None:
        self._companion = companion
        # This is all the mutable state.
        self._open: dict[str, Mine] = {}

    @property
    def by_endpoint(self) -> Mapping[str, Mine]:
        """Open legs by endpoint name; endpoints without any are absent."""
        return self._open

    def enter(self, endpoint: str, prompt_tokens: int = 0) -> None:
        """Count one leg in."""
        mine = self._open.get(endpoint)
        if mine is None:
            mine = self._open[endpoint] = Mine()
        mine.legs += 1
        mine.prompt_tokens += prompt_tokens
        self._companion.leg_began(endpoint, prompt_tokens)

    def leave(self, endpoint: str, prompt_tokens: int = 0, outcome: Outcome | None = None) -> None:
        """Count it out; without an outcome the endpoint is neither to praise nor to blame."""
        mine = self._open[endpoint]
        mine.legs -= 1
        mine.prompt_tokens -= prompt_tokens
        if not mine.legs:
            del self._open[endpoint]
        self._companion.leg_ended(endpoint, prompt_tokens, outcome)
