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
from pdcluster_sim.core.results import (
    Notice,
    Output,
    Preempted,
    PrefixLookup,
    RequestStats,
    TransferFailed,
)

if TYPE_CHECKING:
    from pdcluster_lease.agent import ReadDone
    from pdcluster_sim.core.results import EngineGauges
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


class _Families:
    """Declares series that all carry the engine's labels."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"engine": "0", "model_name": model_name}
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}

    def counter(self, name: str, documentation: str, **labels: str) -> Counter:
        """Declare one series of a counter family."""
        if name not in self._counters:
            self._counters[name] = Counter(
                f"vllm:{name}", documentation, (*self._labels, *labels), registry=self.registry
            )
        return self._counters[name].labels(**self._labels, **labels)

    def gauge(self, name: str, documentation: str, **labels: str) -> Gauge:
        """Declare one series of a gauge family."""
        if name not in self._gauges:
            self._gauges[name] = Gauge(
                f"vllm:{name}", documentation, (*self._labels, *labels), registry=self.registry
            )
        return self._gauges[name].labels(**self._labels, **labels)

    def histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        """Declare the one series of a histogram family."""
        family = Histogram(
            f"vllm:{name}",
            documentation,
            tuple(self._labels),
            registry=self.registry,
            buckets=buckets,
        )
        return family.labels(**self._labels)


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
        self._families = _Families(model_name)
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=self._families.registry)
        self._load = _LoadMetrics(self._families)
        self._tokens = _TokenMetrics(self._families)
        self._latency = _LatencyMetrics(self._families)
        self._nixl = _NixlMetrics(self._families) if exchanges_kv else None
        info = "Information of the LLMEngine CacheConfig"
        self._families.gauge("cache_config_info", info, **cache_config).set(1)

    def exposition(self) -> bytes:
        """Return what ``GET /metrics`` answers."""
        return generate_latest(self._families.registry)

    def record(self, news: EngineNews) -> None:
        """Count what one pass of the engine brought about."""
        for output in news.outputs:
            self._tokens.record_output(output)
            self._latency.record_output(output)
        for notice in news.notices:
            self._load.record_notice(notice)
            self._tokens.record_notice(notice)
        if self._nixl is not None:
            for read in news.reads:
                self._nixl.record_read(read)
            for notice in news.notices:
                self._nixl.record_notice(notice)
        if news.step_tokens is not None:
            self._tokens.record_step(news.step_tokens)
        if news.gauges is not None:
            self._load.set(news.gauges)


class _LoadMetrics:
    """How much there is to do, and how full the cache is."""

    def __init__(self, families: _Families) -> None:
        gauge = families.gauge
        self._running = gauge(
            "num_requests_running", "Number of requests in model execution batches."
        )
        self._waiting = gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        self._by_reason = {
            reason: gauge(
                "num_requests_waiting_by_reason", "Number of waiting requests by reason.",
                reason=reason,
            )
            for reason in ("capacity", "deferred")
        }  # fmt: skip
        self._by_stage = {
            stage: gauge(
                "num_requests_kv_fetch_by_stage", "Number of requests by stage of their KV fetch.",
                stage=stage,
            )
            for stage in ("waiting_to_start", "in_progress", "completed_waiting")
        }  # fmt: skip
        for state in ("awake", "weights_offloaded", "discard_all"):
            sleep = gauge("engine_sleep_state", "Engine sleep state.", sleep_state=state)
            sleep.set(state == "awake")
        self._usage = gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self._preemptions = families.counter(
            "num_preemptions", "Cumulative number of preemption from the engine."
        )

    def set(self, gauges: EngineGauges) -> None:
        """Take over the figures of one moment."""
        self._running.set(gauges.num_running)
        self._waiting.set(gauges.num_waiting)
        self._by_reason["capacity"].set(gauges.num_waiting - gauges.num_deferred)
        self._by_reason["deferred"].set(gauges.num_deferred)
        self._by_stage["waiting_to_start"].set(gauges.num_to_fetch)
        self._by_stage["in_progress"].set(gauges.num_fetching)
        self._by_stage["completed_waiting"].set(gauges.num_fetched)
        self._usage.set(gauges.kv_usage)

    def record_notice(self, notice: Notice) -> None:
        """Count preemptions."""
        if isinstance(notice, Preempted):
            self._preemptions.inc()


class _TokenMetrics:
    """Where prompt tokens came from, what was generated, how requests ended."""

    def __init__(self, families: _Families) -> None:
        counter, histogram = families.counter, families.histogram
        self._queries = counter("prefix_cache_queries", "Prefix cache queries, in tokens.")
        self._hits = counter("prefix_cache_hits", "Prefix cache hits, in tokens.")
        self._external_queries = counter(
            "external_prefix_cache_queries", "External prefix cache queries, in tokens."
        )
        self._external_hits = counter(
            "external_prefix_cache_hits", "External prefix cache hits, in tokens."
        )
        self._prompt = counter("prompt_tokens", "Number of prefill tokens processed.")
        self._by_source = {
            source: counter(
                "prompt_tokens_by_source", "Number of prompt tokens by source.", source=source
            )
            for source in _SOURCES
        }
        self._cached = counter(
            "prompt_tokens_cached", "Number of cached prompt tokens (local + external)."
        )
        self._cached_by_source = {
            source: counter(
                "prompt_tokens_cached_by_source", "Number of cached prompt tokens by source.",
                source=source,
            )
            for source in _CACHES
        }  # fmt: skip
        self._generated = counter("generation_tokens", "Number of generation tokens processed.")
        self._ended = {
            reason: counter(
                "request_success", "Count of successfully processed requests.",
                finished_reason=reason,
            )
            for reason in _REASONS
        }  # fmt: skip
        self._request_prompt = histogram(
            "request_prompt_tokens", "Number of prefill tokens processed.", _TOKENS
        )
        self._request_generated = histogram(
            "request_generation_tokens", "Number of generation tokens processed.", _TOKENS
        )
        self._request_max = histogram(
            "request_params_max_tokens", "Histogram of the max_tokens request parameter.", _TOKENS
        )
        self._step = histogram(
            "iteration_tokens_total", "Histogram of number of tokens per engine_step.", _STEP_TOKENS
        )

    def record_step(self, num_tokens: int) -> None:
        """Count one engine step."""
        self._step.observe(num_tokens)

    def record_notice(self, notice: Notice) -> None:
        """Count lookups in the prefix cache."""
        if not isinstance(notice, PrefixLookup):
            return
        self._queries.inc(notice.num_tokens)
        self._hits.inc(notice.num_hits)
        self._external_queries.inc(notice.num_tokens - notice.num_hits)
        self._external_hits.inc(notice.num_external)
        self._cached_by_source["device"].inc(notice.num_hits)
        self._cached_by_source["p2p"].inc(notice.num_external)

    def record_output(self, output: Output) -> None:
        """Count tokens and ends."""
        self._generated.inc(len(output.tokens))
        if output.is_first:
            cached, external = output.num_cached_tokens, output.num_external_tokens
            self._prompt.inc(output.num_prompt_tokens)
            self._cached.inc(cached + external)
            self._by_source["local_compute"].inc(output.num_prompt_tokens - cached - external)
            self._by_source["local_cache_hit"].inc(cached)
            self._by_source["external_kv_transfer"].inc(external)
        if output.finish is not None and output.stats is not None:
            self._ended[output.finish.value].inc()
            self._request_prompt.observe(output.stats.num_prompt_tokens)
            self._request_generated.observe(output.stats.num_output_tokens)
            self._request_max.observe(output.stats.max_tokens)


class _LatencyMetrics:
    """How long requests took."""

    def __init__(self, families: _Families) -> None:
        histogram = families.histogram
        self._first_token = histogram(
            "time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            _FIRST_TOKEN_SECONDS,
        )
        self._inter_token = histogram(
            "inter_token_latency_seconds",
            "Histogram of inter-token latency in seconds.",
            _TOKEN_SECONDS,
        )
        self._per_token = histogram(
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            _TOKEN_SECONDS,
        )
        self._phases = {
            name: histogram(f"{name}_seconds", f"Histogram of {name} in seconds.", _SECONDS)
            for name in (
                "e2e_request_latency",
                "request_queue_time",
                "request_inference_time",
                "request_prefill_time",
                "request_decode_time",
            )
        }
        self._preemptions = histogram(
            "request_num_preemptions",
            "Histogram of the number of times a request was preempted.",
            (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
        )

    def record_output(self, output: Output) -> None:
        """Observe what an output says about time."""
        if output.gap_s is not None:
            self._inter_token.observe(output.gap_s)
        if output.stats is not None:
            self._record_end(output.stats)

    def _record_end(self, stats: RequestStats) -> None:
        phases = {"e2e_request_latency": stats.ended_at - stats.arrived_at}
        scheduled, first, last = stats.scheduled_at, stats.first_token_at, stats.last_token_at
        if scheduled is not None and first is not None and last is not None:
            phases["request_queue_time"] = scheduled - stats.arrived_at
            phases["request_inference_time"] = last - scheduled
            phases["request_prefill_time"] = first - scheduled
            phases["request_decode_time"] = last - first
            self._first_token.observe(first - stats.arrived_at)
            self._per_token.observe((last - first) / max(1, stats.num_output_tokens - 1))
        for name, seconds in phases.items():
            self._phases[name].observe(seconds)
        self._preemptions.observe(stats.num_preemptions)


class _NixlMetrics:
    """Transfers and leases."""

    def __init__(self, families: _Families) -> None:
        counter, histogram = families.counter, families.histogram
        self._transfer = histogram(
            "nixl_xfer_time_seconds",
            "Histogram of transfer duration for NIXL KV Cache transfers.",
            _XFER_SECONDS,
        )
        self._post = histogram(
            "nixl_post_time_seconds",
            "Histogram of transfer post time for NIXL KV Cache transfers.",
            (0.001, *_XFER_SECONDS),
        )
        self._bytes = histogram(
            "nixl_bytes_transferred",
            "Histogram of bytes transferred per NIXL KV Cache transfers.",
            _BYTES,
        )
        self._descriptors = histogram(
            "nixl_num_descriptors",
            "Histogram of number of descriptors per NIXL KV Cache transfers.",
            _DESCRIPTORS,
        )
        self._failed = counter(
            "nixl_num_failed_transfers",
            "Number of failed NIXL KV Cache transfers, handshakes and notifications included.",
        )
        self._failed_notes = counter(
            "nixl_num_failed_notifications", "Number of failed NIXL KV Cache notifications."
        )
        self._expired = counter(
            "nixl_num_kv_expired_reqs",
            "Number of requests that had their KV expire, tracked on the P instance.",
        )
        self._late = counter(
            "nixl_num_notifications_after_expiry",
            "Number of completion notifications for requests that were no longer tracked.",
        )

    def record_read(self, read: ReadDone) -> None:
        """Observe one complete transfer."""
        self._transfer.observe(read.transfer_s)
        self._post.observe(read.post_s)
        self._bytes.observe(read.num_bytes)
        self._descriptors.observe(read.num_descriptors)

    def record_notice(self, notice: Notice) -> None:
        """Count failures, expiries and late reads."""
        match notice:
            case TransferFailed():
                self._failed.inc()
                if notice.kind == "notification_failed":
                    self._failed_notes.inc()
            case Expired():
                self._expired.inc()
            case LateRead():
                self._late.inc()
            case _:
                pass
