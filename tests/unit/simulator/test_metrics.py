"""Metrics: what each piece of news adds to which of vLLM's families."""

from __future__ import annotations

import pytest
from tests.support.engines import Metrics

from pdcluster_lease.agent import ReadDone, TransferId
from pdcluster_lease.lease import Expired, LateRead, Released
from pdcluster_lease.params import EngineId, RequestId
from pdcluster_sim.core.messages import FinishReason
from pdcluster_sim.core.results import (
    EngineGauges,
    Output,
    Preempted,
    PrefixLookup,
    RequestStats,
    TransferFailed,
)
from pdcluster_sim.engine_thread import EngineNews
from pdcluster_sim.metrics import EngineMetrics

R, E = RequestId("r"), EngineId("e")
STATS = RequestStats(
    arrived_at=100.0,
    scheduled_at=101.0,
    first_token_at=103.0,
    last_token_at=107.0,
    ended_at=108.0,
    num_prompt_tokens=40,
    num_output_tokens=5,
    max_tokens=5,
    num_preemptions=0,
)


def counted(*news: EngineNews, exchanges_kv: bool = True) -> Metrics:
    metrics = EngineMetrics(
        model_name="tiny", exchanges_kv=exchanges_kv, cache_config={"block_size": "16"}
    )
    for each in news:
        metrics.record(each)
    return Metrics.parse(metrics.exposition().decode())


def test_a_prompt_is_counted_once_and_by_where_its_kv_came_from() -> None:
    first = Output(
        request_id=R,
        tokens=(1,),
        is_first=True,
        num_cached_tokens=16,
        num_external_tokens=20,
        num_prompt_tokens=40,
    )
    later = Output(request_id=R, tokens=(2,), gap_s=0.02, num_cached_tokens=16)
    seen = counted(EngineNews(outputs=(first, later)))
    assert (seen["prompt_tokens_total"], seen["generation_tokens_total"]) == (40, 2)
    by_source = {
        source: seen.of("prompt_tokens_by_source_total", source=source)
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    }
    assert by_source == {"local_compute": 4, "local_cache_hit": 16, "external_kv_transfer": 20}
    assert seen["prompt_tokens_cached_total"] == 36
    assert seen["inter_token_latency_seconds_sum"] == pytest.approx(0.02)


@pytest.mark.parametrize("reason", list(FinishReason))
def test_an_end_is_counted_by_its_reason_and_its_phases(reason: FinishReason) -> None:
    seen = counted(EngineNews(outputs=(Output(request_id=R, finish=reason, stats=STATS),)))
    assert seen.of("request_success_total", finished_reason=reason.value) == 1
    assert seen["request_success_total"] == 1
    phases = {
        name: seen[f"{name}_seconds_sum"]
        for name in (
            "e2e_request_latency",
            "request_queue_time",
            "request_prefill_time",
            "request_decode_time",
            "request_inference_time",
            "time_to_first_token",
            "request_time_per_output_token",
        )
    }
    assert list(phases.values()) == [8.0, 1.0, 2.0, 4.0, 6.0, 3.0, 1.0]


def test_what_never_ran_has_no_phases_but_its_whole_time() -> None:
    stats = RequestStats(
        arrived_at=1.0,
        scheduled_at=None,
        first_token_at=None,
        last_token_at=None,
        ended_at=3.0,
        num_prompt_tokens=4,
        num_output_tokens=0,
        max_tokens=1,
        num_preemptions=0,
    )
    ended = Output(request_id=R, finish=FinishReason.ABORT, stats=stats)
    seen = counted(EngineNews(outputs=(ended,)))
    assert seen["e2e_request_latency_seconds_sum"] == 2.0
    assert seen["request_queue_time_seconds_count"] == 0


@pytest.mark.parametrize(
    ("notice", "changed"),
    [
        (Expired(R, 0), {"nixl_num_kv_expired_reqs_total": 1}),
        (LateRead(R), {"nixl_num_notifications_after_expiry_total": 1}),
        (Released(R, 1), {}),
        (Preempted(R), {"num_preemptions_total": 1}),
        (TransferFailed("transfer_failed", E, R, ""), {"nixl_num_failed_transfers_total": 1}),
        (
            TransferFailed("notification_failed", E, None, ""),
            {"nixl_num_failed_transfers_total": 1, "nixl_num_failed_notifications_total": 1},
        ),
        (
            PrefixLookup(40, 16, 20, asked_remote=True),
            {
                "prefix_cache_queries_total": 40,
                "prefix_cache_hits_total": 16,
                "external_prefix_cache_queries_total": 24,
                "external_prefix_cache_hits_total": 20,
                "prompt_tokens_cached_by_source_total": 36,
            },
        ),
    ],
)
def test_a_notice_adds_to_these_families_and_no_other(
    notice: object, changed: dict[str, float]
) -> None:
    before, after = counted(), counted(EngineNews(notices=(notice,)))  # type: ignore[arg-type]  # one of them
    grown = {
        name.removeprefix("vllm:"): value - before.totals[name]
        for name, value in after.totals.items()
        if name.endswith("_total") and value != before.totals[name]
    }
    assert changed == grown


def test_a_read_is_observed_in_full() -> None:
    read = ReadDone(
        transfer=TransferId(1), num_bytes=4096, num_descriptors=2, post_s=0.5, transfer_s=0.25
    )
    seen = counted(EngineNews(reads=(read,)))
    names = ("bytes_transferred", "num_descriptors", "post_time_seconds", "xfer_time_seconds")
    assert [seen[f"nixl_{name}_sum"] for name in names] == [4096, 2, 0.5, 0.25]


def test_an_engine_without_connector_has_no_family_of_nixl() -> None:
    seen = counted(EngineNews(notices=(Expired(R, 0),)), exchanges_kv=False)
    assert not [name for name in seen.totals if "nixl" in name]


def test_gauges_are_the_newest_figures() -> None:
    def figures(num: int) -> EngineGauges:
        return EngineGauges(
            num_running=num,
            num_waiting=num + 4,
            num_deferred=1,
            num_to_fetch=2,
            num_fetching=1,
            num_fetched=3,
            kv_usage=num / 10,
            num_leases=0,
            num_tracked=0,
        )

    seen = counted(EngineNews(gauges=figures(5)), EngineNews(gauges=figures(1)), EngineNews())
    assert (seen["num_requests_running"], seen["kv_cache_usage_perc"]) == (1, 0.1)
    name = "num_requests_waiting_by_reason"
    assert [seen.of(name, reason=each) for each in ("capacity", "deferred")] == [4, 1]
