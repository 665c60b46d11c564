"""What goes into the engine's core and what comes out.

Pure. Inputs come from the HTTP side, the agent and the handshake thread; outputs go back to HTTP,
effects are what the engine's thread has to do, notices are what it has to count and log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from pdcluster_lease.lease import Expired, LateRead, Released, Renewed
from pdcluster_lease.wire import Heartbeat, TransferComplete

if TYPE_CHECKING:
    from pdcluster_lease.agent import BlockId, Peer
    from pdcluster_lease.engine_params import RequestParams
    from pdcluster_lease.params import EngineId, RemoteLease, RequestId

__all__ = [
    "Cancel",
    "Effect",
    "EngineRequest",
    "FinishReason",
    "HandshakeFailed",
    "HandshakeSucceeded",
    "Input",
    "LoadFailed",
    "Notice",
    "Output",
    "PeerLost",
    "Preempted",
    "ReadArrived",
    "ReadBroke",
    "RefuseUnread",
    "RequestStats",
    "SendNote",
    "ShakeHands",
    "StartRead",
    "Submit",
    "TransferFailed",
]


class FinishReason(StrEnum):
    """Why a request ended, in the words of the API."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One request as the engine's core sees it: tokens in, tokens out.

    Attributes:
        request_id: The engine's internal id; the lease's key if it grants one.
        prompt: Token ids, at least one.
        max_tokens: Most tokens to generate, at least one.
        min_tokens: Tokens before which neither the end nor a stop token ends it.
        ignore_eos: Never choose the end-of-sequence token.
        stop_token_ids: Tokens that end the answer.
        choice: Which of several answers to one prompt.
        cache_salt: Separates prefix caches.
        kv: What its ``kv_transfer_params`` ask, or None.
    """

    request_id: RequestId
    prompt: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    choice: int = 0
    cache_salt: str = ""
    kv: RequestParams | None = None


# --- inputs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """A request has arrived."""

    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client left, or the answer was complete by a stop string."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class RefuseUnread:
    """A request with a remote lease was refused before it was submitted: release it unread."""

    kv: RequestParams


@dataclass(frozen=True, slots=True)
class HandshakeSucceeded:
    """A peer was added to the agent."""

    engine_id: EngineId
    peer: Peer


@dataclass(frozen=True, slots=True)
class HandshakeFailed:
    """A peer did not answer, or is not the one that was expected."""

    engine_id: EngineId
    reason: str


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A peer turned out to be gone; it has to shake hands anew."""

    engine_id: EngineId


@dataclass(frozen=True, slots=True)
class ReadArrived:
    """All blocks of a request have been read."""

    request_id: RequestId
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ReadBroke:
    """A request's blocks will not arrive."""

    request_id: RequestId
    kind: str
    reason: str


Input: TypeAlias = (
    Submit
    | Cancel
    | RefuseUnread
    | HandshakeSucceeded
    | HandshakeFailed
    | PeerLost
    | ReadArrived
    | ReadBroke
    | Heartbeat
    | TransferComplete
)


# --- effects: what the engine's thread has to do --------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShakeHands:
    """Ask an engine's side channel for its metadata and add it as a peer."""

    lease: RemoteLease


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRead:
    """Read a peer's blocks into ours, pair by pair, and notify it when done."""

    request_id: RequestId
    engine_id: EngineId
    peer: Peer
    local: tuple[BlockId, ...]
    remote: tuple[BlockId, ...]
    note: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SendNote:
    """Send a notification."""

    engine_id: EngineId
    peer: Peer
    payload: bytes
    is_heartbeat: bool


Effect: TypeAlias = ShakeHands | StartRead | SendNote


# --- outputs: what HTTP gets ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """Times and counts of one ended request; instants are monotonic seconds.

    Attributes:
        arrived_at: When it was submitted.
        scheduled_at: When it first ran, or None.
        first_token_at: When it had its first token, or None.
        last_token_at: When it had its last token, or None.
        ended_at: When it ended.
        num_prompt_tokens: Length of its prompt.
        num_output_tokens: Tokens generated.
        max_tokens: Its cap.
        num_preemptions: How often it had to give its blocks up.
    """

    arrived_at: float
    scheduled_at: float | None
    first_token_at: float | None
    last_token_at: float | None
    ended_at: float
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One step's news of one request.

    Attributes:
        request_id: Whose.
        tokens: New tokens; none where it ended without one.
        is_first: Whether the first of them is the request's first.
        gap_s: Seconds since its last token, None for the first.
        finish: Why it ended, or None.
        params: P's grant, on the last output of a prefill for a remote decode.
        num_cached_tokens: Prompt tokens found in the local prefix cache.
        num_external_tokens: Prompt tokens read from a peer.
        stats: On the last output only.
    """

    request_id: RequestId
    tokens: tuple[int, ...] = ()
    is_first: bool = False
    gap_s: float | None = None
    finish: FinishReason | None = None
    params: dict[str, object] | None = None
    num_cached_tokens: int = 0
    num_external_tokens: int = 0
    num_prompt_tokens: int = 0
    stats: RequestStats | None = None


# --- notices: what to count and log ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running request gave its blocks up and waits again."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """A handshake, a read or a notification failed; ``kind`` is vLLM's word for it."""

    kind: str
    engine_id: EngineId
    request_id: RequestId | None
    reason: str


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """A request's KV could not be loaded; the policy decided what becomes of it."""

    request_id: RequestId
    policy: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PrefixLookup:
    """A request was looked up in the prefix cache, and remotely where it asked for that."""

    num_tokens: int
    num_hits: int
    num_external: int
    asked_remote: bool


@dataclass(frozen=True, slots=True)
class InvalidParams:
    """Params named blocks but not whose: the request waits for ever, as in vLLM."""

    request_id: RequestId


Notice: TypeAlias = (
    Renewed
    | Released
    | Expired
    | LateRead
    | Preempted
    | TransferFailed
    | LoadFailed
    | PrefixLookup
    | InvalidParams
)
