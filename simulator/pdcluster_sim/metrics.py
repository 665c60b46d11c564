"""vLLM's metrics, by vLLM's names, fed from the engine's news.

Shell. Every family is declared here once. Gauges hold the figures after the engine's last pass,
leases show only as ``kv_cache_usage_perc``: vLLM has no gauge for them either.

Source:
    ``/metrics`` of vLLM 0.32.0, ``v1/metrics/loggers.py`` and ``nixl/stats.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from pdcluster_lease.lease import Expired, LateRead
from pdcluster_sim.core.messages import (
    FinishReason,
    Notice,
    Output,
    Preempted,
    PrefixLookup,
    RequestStats,
    TransferFailed,
)

if TYPE_CHECKING:
    from pdcluster_lease.agent import ReadDone
    from pdcluster_sim.core.engine import EngineGauges
    from pdcluster_sim.engine_thread import EngineNews

__all__ = ["EngineMetrics"]

_SECONDS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKEN_SECONDS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_FIRST_TOKEN_SECONDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKENS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
_STEP_TOKENS: Final = (1.0, *(float(2**power) for power in range(3, 15)))
_XFER_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_BYTES: Final = tuple(float(2**power) for power in range(11, 34, 2))
_DESCRIPTORS: Final = (
    10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10000.0, 20000.0,
    50000.0,
)  # fmt: skip
_REASONS: Final = ("stop", "length", "abort", "error", "repetition")
_SOURCES: Final = ("local_compute", "local_cache_hit", "external_kv_transfer")
_CACHES: Final = ("device", "host", "p2p", "disk", "external_unspecified")


class EngineMetrics:
    """All families of one engine.

    Args:
        model_name: The label of that name: the first served name.
        exchanges_kv: Whether the NIXL families exist.
        cache_config: Labels of ``vllm:cache_config_info``.
    """

    def __init__(
        self, *, model_name: str, exchanges_kv: bool, cache_config: dict[str, str]
    ) -> None:
        self._registry = CollectorRegistry()
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=self._registry)
        self._labels = {"engine": "0", "model_name": model_name}
        self._declare_load()
        self._declare_tokens()
        self._declare_latency()
        self._nixl = _NixlMetrics(self) if exchanges_kv else None
        self.gauge("cache_config_info", "Information of the LLMEngine CacheConfig",
                   **cache_config).set(1)

    def exposition(self) -> bytes:
        """Return what ``GET /metrics`` answers."""
        return generate_latest(self._registry)

    def counter(self, name: str, documentation: str, **labels: str) -> Counter:
        """Declare one series of a counter family."""
        return self._family(Counter, name, documentation, labels)

    def gauge(self, name: str, documentation: str, **labels: str) -> Gauge:
        """Declare one series of a gauge family."""
        return self._family(Gauge, name, documentation, labels)

    def histogram(
        self, name: str, documentation: str, buckets: tuple[float, ...]
    ) -> Histogram:
        """Declare the one series of a histogram family."""
        return Histogram(
            f"vllm:{name}", documentation, tuple(self._labels), registry=self._registry,
            buckets=buckets,
        ).labels(**self._labels)  # fmt: skip

    def record(self, news: EngineNews) -> None:
        """Count what one pass of the engine brought about."""
        for output in news.outputs:
            self._record_output(output)
        for notice in news.notices:
            self._record_notice(notice)
        if self._nixl is not None:
            for read in news.reads:
                self._nixl.record_read(read)
            for notice in news.notices:
                self._nixl.record_notice(notice)
        if news.step_tokens is not None:
            self._iteration_tokens.observe(news.step_tokens)
        if news.gauges is not None:
            self._set_gauges(news.gauges)

    # --- declarations ---

    def _family[Kind: (Counter, Gauge)](self) -> None: ...
