"""Engines' figures: what is missing or senseless is unknown, never zero."""

from __future__ import annotations

import pytest

from pdcluster_proxy.companion.exposition import EngineFigures, parse_exposition
from pdcluster_proxy.core.messages import Load

NEW = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m {x}"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:num_requests_running_total 99
process_start_time_seconds 1.7e+09
"""
OLD = NEW.replace(b"kv_cache_usage_perc", b"gpu_cache_usage_perc")


def load(text: bytes) -> Load:
    return parse_exposition(text).load


def test_both_naming_schemes_are_read() -> None:
    expected = EngineFigures(
        load=Load(running=3.0, waiting=2.0, kv_usage=0.25), started_at=1_700_000_000.0
    )
    assert parse_exposition(NEW) == expected
    assert parse_exposition(OLD) == expected


def test_where_both_names_are_there_the_newer_counts() -> None:
    both = NEW + b'vllm:gpu_cache_usage_perc{engine="0"} 0.99\n'
    assert load(both).kv_usage == 0.25


def test_data_parallel_engines_are_summed_and_the_fullest_cache_counts() -> None:
    second = NEW.replace(b'engine="0"', b'engine="1"').replace(b"0.25", b"0.75")
    assert load(NEW + second) == Load(running=6.0, waiting=4.0, kv_usage=0.75)


@pytest.mark.parametrize("text", [b"", b"\n", b"# nothing\n", b"<html>404</html>", b"\xff\x00{} x"])
def test_a_page_without_our_figures_says_nothing(text: bytes) -> None:
    assert parse_exposition(text) == EngineFigures(load=Load(), started_at=None)


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-1", b"x", b"", b"1e300"])
def test_a_senseless_figure_is_unknown(value: bytes) -> None:
    page = b"vllm:num_requests_running %b\nvllm:num_requests_waiting 1\n" % value
    assert load(page) == Load(running=None, waiting=1.0, kv_usage=None)


@pytest.mark.parametrize("value", [b"1.01", b"25", b"-0.1", b"NaN"])
def test_a_cache_usage_outside_its_range_is_unknown(value: bytes) -> None:
    assert load(b"vllm:kv_cache_usage_perc %b\n" % value).kv_usage is None


def test_a_sample_with_a_time_stamp_is_read() -> None:
    assert load(b"vllm:num_requests_waiting 4 1700000000000\n").waiting == 4.0
