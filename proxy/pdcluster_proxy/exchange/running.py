"""What one running exchange holds, and what its two legs share.

Shell. This is all the mutable state of an exchange beside the machine's own frozen one: the
connection that is out, what the engines have said, the client's side. ``prefill_leg.py``,
``decode_leg.py`` and ``client_answer.py`` act on it; decisions are ``core/``'s.
"""

from __future__ import annotations

from typing import Final

from pdcluster_lease.params import KVTransferParams
from pdcluster_proxy.core.bodies import PATHS, ClientRequest, RequestClass
from pdcluster_proxy.core.deadlines import is_over, leg_until
from pdcluster_proxy.core.exchange import Exchange, UpstreamFailed
from pdcluster_proxy.core.failures import Failure, Leg, blame, is_final, settle_silence
from pdcluster_proxy.core.headers import ClientHeaders, leg_head
from pdcluster_proxy.core.messages import (
    EndpointView,
    LeaseStep,
    LeaseStepKind,
    Outcome,
    OutcomeKind,
)
from pdcluster_proxy.core.picker import has_decode
from pdcluster_proxy.core.ports import Address, EngineConnection
from pdcluster_proxy.core.replies import PrefillUsage
from pdcluster_proxy.exchange.answer import ClientSide
from pdcluster_proxy.exchange.story import Story
from pdcluster_proxy.exchange.worker import Worker

__all__ = ["RunningExchange"]

# Reading a member off its enum costs as much as a call: the hot path does it here, once.
_GRANTED: Final = LeaseStepKind.GRANTED
_HANDED_OFF: Final = LeaseStepKind.HANDED_OFF
_ENDED: Final = LeaseStepKind.ENDED
_SUCCEEDED: Final = OutcomeKind.SUCCEEDED
_TWO_LEGS: Final = RequestClass.TWO_LEGS


class RunningExchange:
    """One exchange's means.

    Args:
        worker: What the worker's exchanges share.
        request: The client's request.
        headers: What of its header concerns us.
        client: Its connection.

    Attributes:
        x: The exchange, as the machine last left it.
        story: What it has to tell once it has ended.
        deadline_at: Monotonic instant at which its time is over.
        is_overdue: The deadline passed while the stream was relayed.
        connection: The connection of the leg that is out.
        prefill: The prefill engine in use.
        decode: The decode engine in use.
        params: What P returned last.
        usage: P's figures.
        answer: D's whole answer, as the client gets it.
        leg_id: The request id of the present pair of legs.
    """

    def __init__(
        self, worker: Worker, request: ClientRequest, headers: ClientHeaders, client: ClientSide
    ) -> None:
        self.worker = worker
        self.request = request
        self.client = client
        self._headers = headers
        # This is all the mutable state.
        self.x = Exchange(two_legs=request.request_class is _TWO_LEGS)
        self.story = Story(worker, request, client.request_id)
        self.is_overdue = False
        self.deadline_at = self.story.started_at + worker.bounds.request_s
        self.connection: EngineConnection | None = None
        self.prefill: EndpointView | None = None
        self.decode: EndpointView | None = None
        self.params: KVTransferParams | None = None
        self.usage: PrefillUsage | None = None
        self.answer = b""
        self.leg_id = ""
        self._leg: EndpointView | None = None
        self._leg_tokens = 0
        self._outcome: Outcome | None = None

    def close(self) -> None:
        """Give back whatever is still held, on whichever way out."""
        self.abort_leg()
        if self.x.lease is not None:
            self._tell_lease(_ENDED)

    def overrun(self) -> None:
        """Cut a relayed stream whose time is over; the relay then ends by itself."""
        self.is_overdue = True
        if self.connection is not None:
            self.connection.abort()

    # The leg that is out ---------------------------------------------------------------------

    def enter_leg(self, endpoint: EndpointView, prompt_tokens: int) -> None:
        """Count a leg in; exactly one of :meth:`close_leg` and :meth:`abort_leg` counts it out."""
        self._leg, self._leg_tokens = endpoint, prompt_tokens
        self.worker.legs.enter(endpoint.name, prompt_tokens)

    def new_leg_id(self) -> None:
        """Make an id for the next pair of legs that no other exchange has."""
        self.leg_id = f"{self.client.request_id}-{self.worker.new_id()}"

    def leg_until(self, now: float) -> float:
        """Instant by which a leg that begins now must have begun to answer."""
        return leg_until(
            now, deadline_at=self.deadline_at, first_byte_s=self.worker.bounds.first_byte_s
        )

    async def connect(self, endpoint: EndpointView, left_s: float) -> EngineConnection:
        """Get a connection; nothing is sent.

        Raises:
            ConnectError: Not connected within ``left_s`` or the connect bound.
        """
        worker = self.worker
        self.connection = connection = await worker.engines.connect(
            Address(endpoint.host, endpoint.port), timeout_s=min(worker.bounds.connect_s, left_s)
        )
        return connection

    def send(self, connection: EngineConnection, endpoint: EndpointView, body: bytes) -> None:
        """Send the leg's request."""
        authority = f"{endpoint.host}:{endpoint.port}"
        path = PATHS[self.request.api]
        connection.send(leg_head(path, authority, self._headers, self.leg_id, len(body)), body)

    def praise(self, endpoint: EndpointView) -> None:
        """Note for the leg's end that the engine has done its work."""
        self._outcome = Outcome(endpoint.name, _SUCCEEDED)

    def blame(self, endpoint: EndpointView, failure: Failure) -> None:
        """Note for the leg's end how the engine failed, where it is to blame."""
        kind = blame(failure)
        if kind is not None:
            self._outcome = Outcome(endpoint.name, kind, failure.code)

    def fail_leg(
        self, leg: Leg, endpoint: EndpointView, failure: Failure, *, is_held: bool = False
    ) -> UpstreamFailed:
        """End a leg that failed, and gather what the machine's decision needs.

        Args:
            leg: Which leg.
            endpoint: Its engine.
            failure: What the wire or the engine said.
            is_held: The lease's hold bound was the nearer one.
        """
        worker = self.worker
        failure = settle_silence(
            failure,
            is_held=is_held,
            is_over=is_over(self.deadline_at, worker.clock()),
            request_s=worker.bounds.request_s,
        )
        self.blame(endpoint, failure)
        self.story.leg_failed(leg, failure)
        # A leg that has given its connection back already has nothing left to abort.
        self.abort_leg()
        if is_final(failure):
            return UpstreamFailed(leg, failure)
        return UpstreamFailed(
            leg,
            failure,
            retry_allowed=worker.may_retry(),
            other_decode=has_decode(
                worker.pool,
                excluded=self.x.bad_decode | {self.x.decode},
                prefill=self.prefill if self.x.lease is not None else None,
            ),
        )

    def close_leg(self) -> None:
        """Count out a leg that has ended by itself; its connection is back in the pool already."""
        self.connection = None
        endpoint, self._leg = self._leg, None
        if endpoint is not None:
            outcome, self._outcome = self._outcome, None
            self.worker.legs.leave(endpoint.name, self._leg_tokens, outcome)

    def abort_leg(self) -> None:
        """Close the connection that is out, if any; the engine then aborts the request."""
        if self.connection is not None:
            self.connection.abort()
        self.close_leg()

    # The lease -------------------------------------------------------------------------------

    def tell_granted(self, age_s: float) -> None:
        """Enter a lease into the ledger."""
        # The params are what a keeper needs; without one nobody looks at them.
        params = self.params
        raw = params.raw if params is not None and self.worker.keeper else b""
        self._tell_lease(_GRANTED, age_s, params=raw)

    def tell_handed_off(self, age_s: float) -> None:
        """Tell the ledger that D has been sent the params."""
        self._tell_lease(_HANDED_OFF, age_s, decode=self.decode)

    def tell_ended(self, *, release: bool, was_read: bool) -> None:
        """Take the lease out of the ledger; the keeper, where there is one, releases it."""
        self._tell_lease(_ENDED, decode=self.decode if was_read else None, release=release)

    def _tell_lease(
        self,
        kind: LeaseStepKind,
        age_s: float = 0.0,
        *,
        decode: EndpointView | None = None,
        params: bytes = b"",
        release: bool = False,
    ) -> None:
        known, prefill = self.params, self.prefill
        if known is None or prefill is None:
            return
        self.worker.companion.lease(
            LeaseStep(
                kind,
                prefill.name,
                known.request_id,
                age_s,
                known.engine_id,
                decode.name if decode is not None else "",
                decode.incarnation if decode is not None else 0,
                params,
                release,
            )
        )
