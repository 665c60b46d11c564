"""The exchange machine: from a client's request to its answer, over two legs.

Pure. One table, (state, event) to (state, commands). The runner executes commands and feeds what
happened back as events; it decides nothing.

Theory of operation. NEW exchanges wait for admission. ADMITTED ones look for a prefill engine (or,
without a prefill leg, at once for a decode engine). PREFILLING: the prefill leg is out. GRANTED: P
has answered, its blocks are pinned under a lease whose clock runs; a decode engine is chosen only
now, with fresh load. HANDING_OFF: a connection to it is being made; nothing was sent. With the
connection in hand the clock is checked: a lease that may run out before D's first heartbeat counts
is not handed over, the prompt is prefilled again. DECODING: D has the request, the params are spent
whatever happens, and the client has not seen a byte. STREAMING: the client has; nothing is retried
any more. DONE, FAILED, CANCELLED are final.

Fail-over has three classes. Class 1, D never accepted a byte: another D, the same params. Class 2,
D may have read: another prefill and another D, once. Class 3, a byte went out: never, the stream
ends visibly.

Source: ``routing.md`` sections 1, 9 to 12 of the design.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from pdcluster_proxy.core.failures import Failure, Leg
from pdcluster_proxy.core.picker import Lack

__all__ = [
    "AbortLeg",
    "Admitted",
    "AwaitDecode",
    "ClientGone",
    "Command",
    "ConnectDecode",
    "DeadlinePassed",
    "Decision",
    "DecodeConnected",
    "DecodePicked",
    "EndLease",
    "Event",
    "Exchange",
    "FirstEvent",
    "HeldLease",
    "NoEndpoint",
    "PickDecode",
    "PickPrefill",
    "PrefillPicked",
    "PrefillReplied",
    "Relay",
    "Respond",
    "RespondError",
    "SendDecode",
    "SendPrefill",
    "State",
    "StreamError",
    "UpstreamEnded",
    "UpstreamFailed",
]

MAX_PREFILL_TRIES: Final = 3
"""Prefill engines tried for one prefill leg, where the failure speaks of the engine."""
MAX_PREFILL_TRIES_BROKEN: Final = 2
"""The same where the failure may be the request's: one other engine at most (P3, P4, P6)."""
MAX_LATE_HAND_OFFS: Final = 2
"""Times a hand-off may come too late before the client is told."""
MAX_SPENT_PARAMS: Final = 1
"""Times a decode engine may fail after it accepted a request (class 2)."""


class State(StrEnum):
    """States of one exchange."""

    # The table is looked up several times per request; Enum's own hash is a Python function.
    __hash__ = str.__hash__

    NEW = "NEW"
    ADMITTED = "ADMITTED"
    PREFILLING = "PREFILLING"
    GRANTED = "GRANTED"
    HANDING_OFF = "HANDING_OFF"
    DECODING = "DECODING"
    STREAMING = "STREAMING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


FINAL_STATES: Final = frozenset({State.DONE, State.FAILED, State.CANCELLED})


class HeldLease(msgspec.Struct, frozen=True, gc=False):
    """A lease as the exchange holds it.

    Attributes:
        request_id: Its key on P.
        clock_start: Monotonic instant from which its age is counted.
    """

    request_id: str
    clock_start: float


class Exchange(msgspec.Struct, frozen=True, gc=False):
    """One exchange.

    Attributes:
        two_legs: Whether it has a prefill leg.
        state: Where it is.
        prefill: The prefill endpoint in use, "" for none.
        decode: The decode endpoint in use, "" for none.
        lease: The lease it holds, or None.
        hand_off_s: How long after the clock's start a decode leg may begin on the chosen pair;
            None where the lease is no bound.
        prefill_tries: Prefill engines tried for the present prefill leg.
        late_hand_offs: Hand-offs that came too late.
        spent_params: Decode engines that failed after they accepted.
        bad_prefill: Prefill endpoints this exchange failed on.
        bad_decode: Decode endpoints it failed on.
        failure: How the last try ended: what the client is told where there is nobody to try next.
    """

    two_legs: bool
    state: State = State.NEW
    prefill: str = ""
    decode: str = ""
    lease: HeldLease | None = None
    hand_off_s: float | None = None
    prefill_tries: int = 0
    late_hand_offs: int = 0
    spent_params: int = 0
    bad_prefill: frozenset[str] = frozenset()
    bad_decode: frozenset[str] = frozenset()
    failure: Failure | None = None


# Events --------------------------------------------------------------------------------------


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The exchange may start."""


class PrefillPicked(msgspec.Struct, frozen=True, gc=False):
    """A prefill engine was chosen."""

    endpoint: str


class DecodePicked(msgspec.Struct, frozen=True, gc=False):
    """A decode engine was chosen; ``hand_off_s`` is the bound of that pair (see Exchange)."""

    endpoint: str
    hand_off_s: float | None


class NoEndpoint(msgspec.Struct, frozen=True, gc=False):
    """Nobody could be chosen.

    Attributes:
        lack: What is missing.
        message: For people.
        may_prefill_locally: The configuration lets D prefill where no prefill engine is ready.
    """

    lack: Lack
    message: str
    may_prefill_locally: bool = False


class PrefillReplied(msgspec.Struct, frozen=True, gc=False):
    """P answered with usable params."""

    lease: HeldLease


class DecodeConnected(msgspec.Struct, frozen=True, gc=False):
    """A connection to D is in hand; nothing was sent on it."""


class FirstEvent(msgspec.Struct, frozen=True, gc=False):
    """D answered 200 and its first event is in hand, unsent."""


class UpstreamEnded(msgspec.Struct, frozen=True, gc=False):
    """D's answer is complete."""


class UpstreamFailed(msgspec.Struct, frozen=True, gc=False):
    """A leg ended badly.

    Attributes:
        leg: Which.
        failure: How.
        retry_allowed: The retry budget has one left.
        other_decode: Another decode engine is ready.
    """

    leg: Leg
    failure: Failure
    retry_allowed: bool = True
    other_decode: bool = True


class ClientGone(msgspec.Struct, frozen=True, gc=False):
    """The client closed its connection."""


class DeadlinePassed(msgspec.Struct, frozen=True, gc=False):
    """A bound of the exchange was reached; ``failure`` is what the client gets."""

    failure: Failure


Event: TypeAlias = (
    Admitted
    | PrefillPicked
    | DecodePicked
    | NoEndpoint
    | PrefillReplied
    | DecodeConnected
    | FirstEvent
    | UpstreamEnded
    | UpstreamFailed
    | ClientGone
    | DeadlinePassed
)


# Commands ------------------------------------------------------------------------------------


class PickPrefill(msgspec.Struct, frozen=True, gc=False):
    """Choose a prefill engine."""


class SendPrefill(msgspec.Struct, frozen=True, gc=False):
    """Run the prefill leg on the chosen engine."""


class PickDecode(msgspec.Struct, frozen=True, gc=False):
    """Choose a decode engine, with the load of this moment."""


class AwaitDecode(msgspec.Struct, frozen=True, gc=False):
    """Wait until the pool changes, then choose again; at most to the hand-off deadline."""


class ConnectDecode(msgspec.Struct, frozen=True, gc=False):
    """Get a connection to the chosen decode engine; send nothing."""


class SendDecode(msgspec.Struct, frozen=True, gc=False):
    """Send the decode leg on it, and wait for its first event or its whole answer."""


class Relay(msgspec.Struct, frozen=True, gc=False):
    """Commit the status and forward the stream."""


class Respond(msgspec.Struct, frozen=True, gc=False):
    """Send D's whole answer to the client."""


class AbortLeg(msgspec.Struct, frozen=True, gc=False):
    """Close the connection of the leg that is out; the engine then aborts it."""


class EndLease(msgspec.Struct, frozen=True, gc=False):
    """Take the lease out of the ledger.

    Attributes:
        release: Nobody will read any more, so P may have its blocks back at once. Without it only
            the renewing stops: a D that may still read must not find reused blocks.
        was_read: D's answer has begun, so it has read the blocks: the pair has met.
    """

    release: bool
    was_read: bool = False


class RespondError(msgspec.Struct, frozen=True, gc=False):
    """Answer the client with an error; nothing was sent to it yet."""

    failure: Failure


class StreamError(msgspec.Struct, frozen=True, gc=False):
    """End the client's stream with an error event, without ``[DONE]``, and close."""

    failure: Failure


Command: TypeAlias = (
    PickPrefill
    | SendPrefill
    | PickDecode
    | AwaitDecode
    | ConnectDecode
    | SendDecode
    | Relay
    | Respond
    | AbortLeg
    | EndLease
    | RespondError
    | StreamError
)

Decision: TypeAlias = tuple[Exchange, tuple[Command, ...]]
"""The exchange after an event, and what to do, in order."""
