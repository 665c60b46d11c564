"""Reads the few figures we need from an engine's metrics page.

Pure. A figure that is missing or out of range is None: unknown, never zero, never healthy.

Source:
    vLLM's metrics under both of its naming schemes (``gpu_cache_usage_perc`` became
    ``kv_cache_usage_perc``); Prometheus' text format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pdcluster_proxy.core.messages import Load

__all__ = ["EngineFigures", "parse_exposition"]

_RUNNING: Final = (b"vllm:num_requests_running",)
_WAITING: Final = (b"vllm:num_requests_waiting",)
_KV_USAGE: Final = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
_STARTED_AT: Final = (b"process_start_time_seconds",)
_WANTED: Final = (*_RUNNING, *_WAITING, *_KV_USAGE, *_STARTED_AT)
_MOST_REQUESTS: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """One scrape.

    Attributes:
        load: How busy the engine is.
        started_at: Unix seconds at which its process began: the identity of a boot, nothing else.
    """

    load: Load
    started_at: float | None


def parse_exposition(text: bytes) -> EngineFigures:
    """Read an engine's metrics page; data-parallel engines are summed up."""
    samples: dict[bytes, list[float]] = {name: [] for name in _WANTED}
    for name, value in _samples(text):
        if name in samples:
            samples[name].append(value)
    usages = _pick(samples, _KV_USAGE)
    return EngineFigures(
        load=Load(
            running=_within(_total(_pick(samples, _RUNNING)), _MOST_REQUESTS),
            waiting=_within(_total(_pick(samples, _WAITING)), _MOST_REQUESTS),
            # The fullest decides: that is where a hand-off would wait.
            kv_usage=_within(max(usages, default=None), 1.0),
        ),
        started_at=_within(max(_pick(samples, _STARTED_AT), default=None), math.inf),
    )


def _samples(text: bytes) -> Iterator[tuple[bytes, float]]:
    """Name and value of each sample; labels are passed over."""
    for line in text.splitlines():
        if not line or line.startswith(b"#"):
            continue
        name, brace, rest = line.partition(b"{")
        if brace:
            _, _, rest = rest.rpartition(b"}")
        else:
            name, _, rest = line.partition(b" ")
        words = rest.split()
        try:
            value = float(words[0])
        except (IndexError, ValueError):
            continue
        yield name.strip(), value


def _pick(samples: dict[bytes, list[float]], names: tuple[bytes, ...]) -> list[float]:
    """The samples of the first name that is there."""
    return next((samples[name] for name in names if samples[name]), [])


def _total(values: list[float]) -> float | None:
    return sum(values) if values else None


def _within(value: float | None, most: float) -> float | None:
    return value if value is not None and 0.0 <= value <= most and value < math.inf else None
