"""What goes into the engine's core, and what it wants done.

Pure. Inputs come from the HTTP side, the agent and the handshake thread; effects are what the
engine's thread has to do. What else comes out is in ``results.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from pdcluster_lease.wire import Heartbeat, TransferComplete

if TYPE_CHECKING:
    from pdcluster_lease.agent import BlockId, Peer
    from pdcluster_lease.engine_params import RequestParams
    from pdcluster_lease.params import EngineId, RemoteLease, RequestId

__all__ = [
    "Cancel",
    "DropPeer",
    "Effect",
    "EngineRequest",
    "FinishReason",
    "HandshakeFailed",
    "HandshakeSucceeded",
    "Input",
    "PeerLost",
    "ReadArrived",
    "ReadBroke",
    "RejectUnread",
    "SendNote",
    "ShakeHands",
    "StartRead",
    "Submit",
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
class RejectUnread:
    """A request with a remote lease was rejected before it was submitted: release it unread."""

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
    | RejectUnread
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


@dataclass(frozen=True, slots=True)
class DropPeer:
    """Forget a peer that another engine has replaced at its address."""

    peer: Peer


Effect: TypeAlias = ShakeHands | StartRead | SendNote | DropPeer
