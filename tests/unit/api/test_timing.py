from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.resources import cluster

from pdcluster_api.proxy_config import KeeperMode
from pdcluster_api.timing import DerivedTiming, derive_timing
from pdcluster_lease.errors import TimingError


def timing_of(*, keeper: KeeperMode = KeeperMode.ABSENT, **fields: object) -> DerivedTiming:
    return derive_timing(cluster(**fields).spec, keeper=keeper)


def test_the_defaults_give_the_documented_times() -> None:
    timing = timing_of()
    assert (
        timing.lease.duration_s,
        timing.lease.heartbeat_interval_s,
        timing.lease.extension_s,
    ) == (30, 5, 20)
    assert (timing.hand_off_cold_s, timing.hand_off_warm_s) == (14, 23)
    assert timing.max_hold_s == 120
    assert (timing.request_s, timing.first_byte_s, timing.idle_s) == (600, 600, 60)
    assert (timing.prefill_shutdown_s, timing.decode_shutdown_s) == (80, 600)
    assert (timing.prefill_grace_s, timing.decode_grace_s) == (155, 605)


@pytest.mark.parametrize(
    ("lease", "cold", "warm"), [(9, 1, 6), (12, 2, 8), (30, 14, 23), (60, 34, 48), (300, 194, 248)]
)
def test_the_hand_off_deadlines_without_keeper(lease: int, cold: int, warm: int) -> None:
    timing = timing_of(kvTransfer={"kvLeaseDurationSeconds": lease})
    assert (timing.hand_off_cold_s, timing.hand_off_warm_s) == (cold, warm)


def test_with_the_keeper_the_lease_is_no_bound() -> None:
    timing = timing_of(
        keeper=KeeperMode.ENABLED,
        kvTransfer={"kvLeaseDurationSeconds": 6},
    )
    assert (timing.hand_off_cold_s, timing.hand_off_warm_s) == (None, None)


def test_a_stated_deadline_replaces_both() -> None:
    timing = timing_of(
        proxy={"handOffDeadlineSeconds": 3}, kvTransfer={"kvLeaseDurationSeconds": 6}
    )
    assert (timing.hand_off_cold_s, timing.hand_off_warm_s) == (3, 3)


@pytest.mark.parametrize("lease", [6, 7, 8])
def test_a_lease_too_short_for_a_first_hand_off_is_rejected_with_the_remedy(lease: int) -> None:
    with pytest.raises(TimingError) as caught:
        timing_of(kvTransfer={"kvLeaseDurationSeconds": lease})
    assert caught.value.field == "spec.kvTransfer.kvLeaseDurationSeconds"
    assert "handOffDeadlineSeconds" in caught.value.remedy


def test_a_longer_lease_than_the_admission_timeout_sets_the_shutdown_timeout() -> None:
    timing = timing_of(kvTransfer={"kvLeaseDurationSeconds": 300})
    assert timing.prefill_shutdown_s == 300 + 200
    assert timing.prefill_grace_s == 5 + 60 + 300 + 200 + 10


def test_a_stated_grace_is_kept_and_what_is_needed_stays_known() -> None:
    timing = timing_of(drain={"terminationGracePeriodSeconds": 100})
    assert (timing.prefill_grace_s, timing.decode_grace_s) == (100, 100)
    assert (timing.prefill_grace_needed_s, timing.decode_grace_needed_s) == (155, 605)


def test_a_stated_hold_and_first_byte_replace_what_is_derived() -> None:
    timing = timing_of(
        proxy={
            "maxHoldSeconds": 60,
            "firstByteTimeoutSeconds": 7,
            "requestTimeoutSeconds": 50,
            "idleTimeoutSeconds": 9,
        }
    )
    assert timing.max_hold_s == 60
    assert (timing.request_s, timing.first_byte_s, timing.idle_s) == (50, 7, 9)
    assert timing.decode_shutdown_s == 50


@given(
    lease=st.integers(9, 3600),
    settle=st.integers(0, 600),
    prefill=st.integers(1, 3600),
    admission=st.integers(1, 3600),
    request=st.integers(1, 3600),
)
def test_a_drain_always_fits_its_grace(
    lease: int, settle: int, prefill: int, admission: int, request: int
) -> None:
    timing = timing_of(
        kvTransfer={"kvLeaseDurationSeconds": lease},
        drain={
            "settleSeconds": settle,
            "maxPrefillSeconds": prefill,
            "decodeAdmissionTimeoutSeconds": admission,
        },
        proxy={"requestTimeoutSeconds": request},
    )
    assert timing.prefill_shutdown_s >= timing.lease.duration_s
    assert timing.prefill_grace_s > settle + prefill + timing.prefill_shutdown_s
    assert timing.decode_grace_s >= settle + timing.decode_shutdown_s
    assert timing.hand_off_cold_s is not None
    assert timing.hand_off_warm_s is not None
    assert 1 <= timing.hand_off_cold_s < timing.hand_off_warm_s < lease
