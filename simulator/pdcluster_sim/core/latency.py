"""How long things take.

Pure. A deliberately plain model: it decides when, never what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LatencyModel"]

_BITS_PER_BYTE: Final = 8
_GIGA: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyModel:
    """Speeds of one engine.

    Attributes:
        prefill_tokens_per_s: Prompt tokens computed per second; 0 means at once.
        step_time_s: Seconds of one engine step beyond its prefill, whatever the batch.
        transfer_gbps: Gigabits per second of a KV transfer; 0 means as fast as NIXL is.
    """

    prefill_tokens_per_s: float
    step_time_s: float
    transfer_gbps: float

    def step_s(self, num_prefill_tokens: int) -> float:
        """Return the seconds of a step that computes this many prompt tokens."""
        if not self.prefill_tokens_per_s:
            return self.step_time_s
        return self.step_time_s + num_prefill_tokens / self.prefill_tokens_per_s

    def transfer_s(self, num_bytes: int) -> float:
        """Return the least seconds a transfer of this many bytes takes."""
        if not self.transfer_gbps:
            return 0.0
        return num_bytes * _BITS_PER_BYTE / (self.transfer_gbps * _GIGA)
