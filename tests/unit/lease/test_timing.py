"""What follows from a lease duration, against the protocol's own figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_lease.errors import TimingError
from pdcluster_lease.timing import LeaseTiming, clock_start

DURATIONS = st.integers(min_value=6, max_value=100_000)


@pytest.mark.parametrize(
    ("duration", "interval", "extension"),
    [(6, 1, 4), (10, 1, 6), (12, 2, 8), (30, 5, 20), (60, 10, 40)],
)
def test_interval_and_extension_are_those_of_vllm(
    duration: int, interval: int, extension: int
) -> None:
    timing = LeaseTiming.from_duration(duration)
    assert (interval, extension) == (timing.heartbeat_interval_s, timing.extension_s)


@pytest.mark.parametrize("duration", [5, 1, 0, -30])
def test_a_duration_below_six_names_inequality_field_and_remedy(duration: int) -> None:
    with pytest.raises(TimingError) as caught:
        LeaseTiming.from_duration(duration)
    assert f"lease duration >= 6 (it is {duration})" == caught.value.inequality
    assert caught.value.field == "spec.kvTransfer.kvLeaseDurationSeconds"
    assert "6 or more" in caught.value.remedy


@given(DURATIONS)
def test_an_extension_outlasts_three_intervals(duration: int) -> None:
    timing = LeaseTiming.from_duration(duration)
    assert timing.extension_s >= 3 * timing.heartbeat_interval_s
    assert timing.heartbeat_interval_s >= 1


@given(DURATIONS, st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_renewal_never_shortens(duration: int, end: float, now: float) -> None:
    timing = LeaseTiming.from_duration(duration)
    renewed = timing.renewed_until(end, now=now)
    assert renewed >= end
    assert renewed >= now + timing.extension_s


@pytest.mark.parametrize(
    ("duration", "cold", "warm"), [(30, 14.0, 23.0), (60, 34.0, 48.0), (9, 1.0, 6.0)]
)
def test_the_hand_off_deadline_without_keeper(duration: int, cold: float, warm: float) -> None:
    timing = LeaseTiming.from_duration(duration)
    assert cold == timing.hand_off_deadline_s(met=False, keeper=False, override_s=None)
    assert warm == timing.hand_off_deadline_s(met=True, keeper=False, override_s=None)


@pytest.mark.parametrize("met", [True, False])
def test_with_the_keeper_the_lease_is_no_bound(met: bool) -> None:
    timing = LeaseTiming.from_duration(6)
    assert timing.hand_off_deadline_s(met=met, keeper=True, override_s=None) is None


@pytest.mark.parametrize("met", [True, False])
def test_an_override_replaces_both_figures(met: bool) -> None:
    timing = LeaseTiming.from_duration(6)
    assert timing.hand_off_deadline_s(met=met, keeper=False, override_s=3) == 3.0


@pytest.mark.parametrize("override", [0, -1, 4, 1000])
@pytest.mark.parametrize("keeper", [True, False])
def test_an_override_outside_its_bounds_is_rejected(override: int, keeper: bool) -> None:
    timing = LeaseTiming.from_duration(6)  # 6 - 1 - 2 leaves 1..3
    with pytest.raises(TimingError, match=r"spec\.proxy\.handOffDeadlineSeconds") as caught:
        timing.hand_off_deadline_s(met=True, keeper=keeper, override_s=override)
    assert "1..3" in caught.value.remedy
    assert f"1 <= {override} <= 3" in caught.value.inequality


@pytest.mark.parametrize("duration", [6, 7, 8])
@pytest.mark.parametrize("met", [True, False])
def test_without_keeper_and_override_a_lease_below_nine_is_rejected(
    duration: int, met: bool
) -> None:
    timing = LeaseTiming.from_duration(duration)
    with pytest.raises(TimingError, match="9 or more") as caught:
        timing.hand_off_deadline_s(met=met, keeper=False, override_s=None)
    assert caught.value.field == "spec.kvTransfer.kvLeaseDurationSeconds"


@given(st.integers(min_value=9, max_value=100_000))
def test_a_deadline_leaves_a_whole_heartbeat_of_the_lease(duration: int) -> None:
    timing = LeaseTiming.from_duration(duration)
    cold = timing.hand_off_deadline_s(met=False, keeper=False, override_s=None)
    warm = timing.hand_off_deadline_s(met=True, keeper=False, override_s=None)
    assert cold is not None
    assert warm is not None
    assert 1 <= cold < warm < timing.duration_s - timing.heartbeat_interval_s


@pytest.mark.parametrize(
    ("answered_at", "last_tick_at", "start"),
    [(100.0, 99.95, 98.95), (100.0, 97.0, 96.0), (100.0, 100.0, 99.0), (100.0, 101.0, 99.0)],
)
def test_the_clock_starts_a_second_before_the_earlier_instant(
    answered_at: float, last_tick_at: float, start: float
) -> None:
    assert start == clock_start(answered_at=answered_at, last_tick_at=last_tick_at)
