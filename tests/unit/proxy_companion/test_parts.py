"""Small pure parts: endpoint files, check timing, restart delays, metric declarations, frames."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_lease.errors import ConfigurationError
from pdcluster_proxy.companion.checks import check_timing
from pdcluster_proxy.companion.discovery import parse_endpoints
from pdcluster_proxy.companion.roster import CHECK_FAILURES_TO_EJECT
from pdcluster_proxy.errors import LinkError
from pdcluster_proxy.metrics import METRICS, Kind
from pdcluster_proxy.supervisor import restart_delay_s
from pdcluster_proxy.wire.frames import MAX_FRAME_BYTES, FrameReader, frame

ENGINE = {
    "name": "p-0",
    "role": "prefill",
    "url": "http://10.0.0.1:8000",
    "sideChannel": "10.0.0.1:5600",
    "revision": "r1",
}


def text(*engines: Mapping[str, object]) -> bytes:
    return json.dumps({"endpoints": engines}).encode()


def test_an_endpoints_file_is_json_or_yaml() -> None:
    as_yaml = b"endpoints:\n- {name: p-0, role: prefill, url: 'http://10.0.0.1:8000',"
    as_yaml += b" sideChannel: '10.0.0.1:5600', revision: r1}\n"
    parsed = parse_endpoints(text(ENGINE), where="file")
    assert [e.name for e in parsed.endpoints] == ["p-0"]
    assert parse_endpoints(as_yaml, where="file") == parsed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "file: the document: "),
        (b"{", "neither valid JSON nor YAML"),
        (b"a: [", "neither valid JSON nor YAML"),
        (b"[]", "file: the document: "),
        (text({**ENGINE, "role": "both"}), "endpoints.0.role"),
        (text({**ENGINE, "colour": 1}), "endpoints.0.colour"),
        (text(ENGINE, ENGINE), "'p-0' stands twice"),
        (text({**ENGINE, "url": "https://a:1"}), "p-0.url: 'https://a:1' is not http://host:port"),
        (text({**ENGINE, "url": "http://a"}), "p-0.url"),
        (text({**ENGINE, "url": "http://a:x"}), "p-0.url"),
        (text({**ENGINE, "sideChannel": "a"}), "p-0.sideChannel: 'a' is not host:port"),
        (text({**ENGINE, "sideChannel": "a:b"}), "p-0.sideChannel"),
    ],
)
def test_a_bad_endpoints_file_names_the_place(content: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_endpoints(content, where="file")
    assert message in str(caught.value)


@given(st.integers(6, 3600))
def test_a_dead_engine_shows_before_the_shortest_lease_ends(lease_s: int) -> None:
    timing = check_timing(lease_s)
    assert CHECK_FAILURES_TO_EJECT * (timing.interval_s + timing.timeout_s) < lease_s


def test_restarts_slow_down_to_a_bound() -> None:
    delays = [restart_delay_s(failures) for failures in range(1, 30)]
    assert delays[0] == 0.1
    assert delays == sorted(delays)
    assert delays[-1] == 5.0


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.short)
def test_metrics_are_named_by_the_rules(metric: object) -> None:
    assert metric in METRICS.values()
    declared = next(m for m in METRICS.values() if m is metric)
    assert declared.name == f"pdcluster_proxy_{declared.short}"
    assert declared.short.endswith("_total") == (declared.kind is Kind.COUNTER)
    assert bool(declared.buckets) == (declared.kind is Kind.HISTOGRAM)
    assert list(declared.buckets) == sorted(set(declared.buckets))
    assert declared.help.endswith(".")


@given(payloads=st.lists(st.binary(max_size=30), max_size=6), size=st.integers(1, 9))
def test_frames_cut_anywhere_arrive_whole(payloads: list[bytes], size: int) -> None:
    wire = b"".join(frame(payload) for payload in payloads)
    reader, got = FrameReader(), []
    for start in range(0, len(wire), size):
        got += reader.feed(wire[start : start + size])
    assert payloads == got


def test_a_frame_over_the_bound_is_an_error() -> None:
    with pytest.raises(LinkError, match="is over"):
        FrameReader().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
