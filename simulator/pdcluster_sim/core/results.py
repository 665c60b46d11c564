"""What comes out of the engine's core: outputs for HTTP, notices to count and log, figures.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pdcluster_lease.lease import Expired, LateRead, Released, Renewed

if TYPE_CHECKING:
    from pdcluster_lease.params import EngineId, RequestId
    from pdcluster_sim.core.messages import Effect, FinishReason

__all__ = [
    "Advance",
    "EngineGauges",
    "InvalidParams",
    "LoadFailed",
    "Notice",
    "Output",
    "Preempted",
    "PrefixLookup",
    "RequestStats",
    "TransferFailed",
]


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


# --- figures --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What one call of :meth:`EngineCore.advance` brought about.

    Attributes:
        outputs: For HTTP.
        effects: For the engine's thread to do.
        notices: To count and log.
        step_tokens: Tokens computed in the step that ended, or None where none did.
        next_at: When to call again at the latest, or None where only an input can change anything.
    """

    outputs: tuple[Output, ...]
    effects: tuple[Effect, ...]
    notices: tuple[Notice, ...]
    step_tokens: int | None
    next_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGauges:
    """Figures of one moment.

    Attributes:
        num_running: Requests in the batch.
        num_waiting: Requests that are not.
        num_deferred: Those of them that wait for a peer's blocks.
        num_to_fetch: Waiting requests that will read a peer's blocks.
        num_fetching: Requests whose blocks are being read.
        num_fetched: Requests whose blocks have arrived and that wait to run.
        kv_usage: Share of blocks in use, leased ones included, 0 to 1.
        num_leases: Leases held as P.
        num_tracked: Remote leases being renewed as D.
    """

    num_running: int
    num_waiting: int
    num_deferred: int
    num_to_fetch: int
    num_fetching: int
    num_fetched: int
    kv_usage: float
    num_leases: int
    num_tracked: int
