"""What one exchange has to tell: its metrics and its line in the exchange log.

Shell, without decisions. The runner says what happened; figures go out once, at the end, so that a
request pays for one report.
"""

from __future__ import annotations

from pdcluster_lease.params import KVTransferParams
from pdcluster_proxy.core.bodies import ClientRequest
from pdcluster_proxy.core.exchange import State
from pdcluster_proxy.core.failures import Failure, Leg
from pdcluster_proxy.core.messages import EndpointView
from pdcluster_proxy.core.ports import RelayEnd
from pdcluster_proxy.core.replies import PrefillUsage
from pdcluster_proxy.exchange.journal import ExchangeRecord
from pdcluster_proxy.exchange.worker import Worker

__all__ = ["Story"]

EVENT = "exchange.complete"
_CANCELLED = State.CANCELLED
_CLIENT_GONE = 499


class Story:
    """Gathers one exchange's facts.

    Args:
        worker: Gives clock, journal and companion.
        request: The client's request.
        request_id: The id the client is told.

    Attributes:
        started_at: When the exchange began, monotonic seconds.
        code: The stable word of its failure, "" for none.
        record: Its line in the exchange log.
    """

    def __init__(self, worker: Worker, request: ClientRequest, request_id: str) -> None:
        self._worker = worker
        self.started_at = worker.clock()
        self._route: str = request.api
        # This is all the mutable state.
        self.code = ""
        self.record = ExchangeRecord(
            event=EVENT, request_id=request_id, route=self._route, stream=request.stream
        )

    def prefill_picked(self, endpoint: EndpointView) -> None:
        """A prefill engine was chosen."""
        self.record.prefill = endpoint.name

    def granted(
        self,
        endpoint: EndpointView,
        params: KVTransferParams,
        usage: PrefillUsage,
        leg_id: str,
        took_s: float,
    ) -> None:
        """P has answered."""
        record = self.record
        record.engine_id = params.engine_id
        record.leg_id = leg_id
        record.lease_s = endpoint.lease_duration_s
        record.num_blocks = params.num_blocks
        record.num_prompt_tokens = usage.prompt_tokens or 0
        record.num_cached_tokens = usage.cached_tokens or 0
        record.prefill_legs += 1
        record.prefill_s = took_s
        self._worker.companion.observe("prefill_leg_seconds", (), took_s)

    def decode_picked(self, endpoint: EndpointView, bound_s: float | None) -> None:
        """A decode engine was chosen."""
        record = self.record
        worker = self._worker
        mine = worker.legs.by_endpoint.get(endpoint.name)
        record.decode = endpoint.name
        record.decode_legs = (mine.legs if mine else 0) + endpoint.in_flight_elsewhere
        record.num_decodes = len(worker.pool.decode)
        record.hand_off_bound_s = bound_s or 0.0
        record.decode_tries += 1

    def handed_off(self, age_s: float) -> None:
        """The decode leg was sent."""
        self.record.hand_off_age_s = age_s
        self._worker.companion.observe("hand_off_age_seconds", (), age_s)

    def answered(self, lease_age_s: float) -> None:
        """D's answer has begun: it has read the blocks."""
        self.record.first_event_s = self._worker.clock() - self.started_at
        self.record.lease_ended_age_s = lease_age_s
        self._worker.companion.observe(
            "first_event_seconds", (self._route,), self.record.first_event_s
        )

    def leg_failed(self, leg: Leg, failure: Failure) -> None:
        """A leg ended badly; the exchange may go on."""
        self._worker.companion.count("leg_failures_total", (leg.value, failure.code))

    def relayed(self, end: RelayEnd) -> None:
        """A stream ended."""
        self._worker.companion.count("relayed_bytes_total", (), end.num_bytes)

    def failed(self, failure: Failure) -> None:
        """The client is told of a failure."""
        self.code = failure.code

    def end(self, state: State, status: int) -> None:
        """Write the line and the figures of the whole."""
        worker, record = self._worker, self.record
        took_s = worker.clock() - self.started_at
        if state is _CANCELLED:
            status, self.code = _CLIENT_GONE, self.code or "client-gone"
        seen = str(status)
        worker.companion.count("requests_total", (self._route, seen, self.code))
        worker.companion.observe("request_seconds", (self._route,), took_s)
        if record.prefill_legs > 1:
            worker.companion.count("re_prefills_total", (), record.prefill_legs - 1)
        if worker.journal.is_on:
            record.state, record.status, record.code = state, status, self.code
            record.duration_s = took_s
            worker.journal.write(record)
