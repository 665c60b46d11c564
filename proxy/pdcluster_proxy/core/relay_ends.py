"""What the end of a relayed stream means for its exchange.

Pure. The wire says how a relay ended, the editor whether the engine reported a failure inside the
stream, the worker whether our own deadline cut it; here they become the machine's event.

Source: ``routing.md`` section 9.3 of the design, rows S1 to S3.
"""

from __future__ import annotations

from typing import assert_never

from pdcluster_proxy.core.exchange import ClientGone, Event, UpstreamEnded, UpstreamFailed
from pdcluster_proxy.core.failures import Leg, broken_stream, request_timeout
from pdcluster_proxy.core.ports import RelayOutcome

__all__ = ["event_of_relay"]


def event_of_relay(
    outcome: RelayOutcome, *, has_failed: bool, is_overdue: bool, request_s: float
) -> Event:
    """Make the event of a relay that has ended.

    Args:
        outcome: How it ended.
        has_failed: An event of the stream told of a failure of the engine.
        is_overdue: We have cut it because the request's time was over.
        request_s: That time, in seconds.
    """
    if outcome is RelayOutcome.CLIENT_GONE:
        return ClientGone()
    if has_failed:
        return _cut_short("decode-failed", "The decode engine failed during the answer.")
    match outcome:
        case RelayOutcome.COMPLETE:
            return UpstreamEnded()
        case RelayOutcome.UPSTREAM_IDLE:
            return _cut_short("decode-idle", "The decode engine fell silent.")
        case RelayOutcome.UNTERMINATED | RelayOutcome.UPSTREAM_LOST:
            if is_overdue:
                return UpstreamFailed(Leg.DECODE, request_timeout(request_s))
            return _cut_short("decode-lost", "The decode engine's stream broke off.")
        case _:
            assert_never(outcome)


def _cut_short(code: str, message: str) -> UpstreamFailed:
    return UpstreamFailed(Leg.DECODE, broken_stream(code, message))
