"""What the end of a relayed stream means, and who is to blame for it."""

from __future__ import annotations

import itertools

import pytest

from pdcluster_proxy.core.exchange import ClientGone, UpstreamEnded, UpstreamFailed
from pdcluster_proxy.core.failures import FailureKind, Leg, blame
from pdcluster_proxy.core.messages import OutcomeKind
from pdcluster_proxy.core.ports import RelayOutcome
from pdcluster_proxy.core.relay_ends import event_of_relay

R = RelayOutcome
BROKE = (R.UNTERMINATED, R.UPSTREAM_LOST)


def failed(
    outcome: RelayOutcome, *, has_failed: bool = False, is_overdue: bool = False
) -> UpstreamFailed:
    event = event_of_relay(outcome, has_failed=has_failed, is_overdue=is_overdue, request_s=60.0)
    assert isinstance(event, UpstreamFailed)
    assert event.leg is Leg.DECODE
    return event


@pytest.mark.parametrize("overdue", [False, True])
def test_a_complete_stream_has_ended_well_even_at_the_last_moment(overdue: bool) -> None:
    event = event_of_relay(R.COMPLETE, has_failed=False, is_overdue=overdue, request_s=60.0)
    assert UpstreamEnded() == event


@pytest.mark.parametrize(
    ("failed_inside", "overdue"), list(itertools.product([False, True], repeat=2))
)
def test_a_client_that_is_gone_is_gone_whatever_else_happened(
    failed_inside: bool, overdue: bool
) -> None:
    event = event_of_relay(
        R.CLIENT_GONE, has_failed=failed_inside, is_overdue=overdue, request_s=60.0
    )
    assert ClientGone() == event


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (R.UPSTREAM_IDLE, "decode-idle"),
        (R.UNTERMINATED, "decode-lost"),
        (R.UPSTREAM_LOST, "decode-lost"),
    ],
)
def test_a_stream_that_breaks_off_is_the_engine_s_fault(outcome: RelayOutcome, code: str) -> None:
    failure = failed(outcome).failure
    assert (502, code) == (failure.status, failure.code)
    assert OutcomeKind.FAILED_UPSTREAM is blame(failure)


@pytest.mark.parametrize("outcome", [o for o in R if o is not R.CLIENT_GONE])
def test_a_failure_told_inside_the_stream_goes_before_everything_else(
    outcome: RelayOutcome,
) -> None:
    assert "decode-failed" == failed(outcome, has_failed=True, is_overdue=True).failure.code


@pytest.mark.parametrize("outcome", BROKE)
def test_our_own_deadline_blames_nobody(outcome: RelayOutcome) -> None:
    failure = failed(outcome, is_overdue=True).failure
    assert (FailureKind.OUT_OF_TIME, "request-timeout") == (failure.kind, failure.code)
    assert blame(failure) is None
    assert "60 s" in failure.message
