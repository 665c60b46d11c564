"""The ports between the exchange and the wire.

Pure. Connect and send are apart, so that the lease clock's check and the proof that an engine never
accepted a byte fit between them. ``wire/`` implements these; tests use fakes held under contract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import msgspec

from pdcluster_proxy.core.messages import LeaseStep, Outcome, PoolSnapshot

__all__ = [
    "Address",
    "CompanionPort",
    "EngineConnection",
    "Engines",
    "EventEditor",
    "RelayEnd",
    "RelayOutcome",
    "ResponseHead",
]


HTTP_OK: Final = 200


class Address(NamedTuple):
    """Where an engine's HTTP API listens; a tuple, since it is hashed several times per request."""

    host: str
    port: int


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An engine's response head.

    Attributes:
        status: HTTP status; interim (1xx) answers are never seen here.
        is_event_stream: The media type is ``text/event-stream``.
        field_lines: The header section as sent, without its blank line; read by few, so parsed on
            demand.
    """

    status: int
    is_event_stream: bool
    field_lines: bytes = b""

    @property
    def is_ok(self) -> bool:
        """The engine has done what it was asked for."""
        return self.status == HTTP_OK

    @property
    def is_encoded(self) -> bool:
        """The body is compressed or otherwise encoded, though nobody asked for that."""
        if b"content-encoding" not in self.field_lines.lower():
            return False
        codings = [value for name, value in self.headers if name == b"content-encoding"]
        return any(coding.lower() not in {b"", b"identity"} for coding in codings)

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """All fields in order, names in lower case, hop-by-hop fields included."""
        fields = [line.partition(b":") for line in self.field_lines.split(b"\r\n") if line]
        return tuple([(name.lower(), value.strip()) for name, _, value in fields])


class RelayOutcome(StrEnum):
    """How a relayed stream ended."""

    COMPLETE = "complete"
    """The body ended by its framing and the stream carried its terminator (``data: [DONE]``)."""
    UNTERMINATED = "unterminated"
    """The body ended by its framing but without the terminator."""
    UPSTREAM_LOST = "upstream-lost"
    """Reset, malformed framing, or an event over the cap."""
    UPSTREAM_IDLE = "upstream-idle"
    """Nothing came for longer than the idle bound."""
    CLIENT_GONE = "client-gone"
    """The client closed its connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayEnd:
    """What one relay did.

    Attributes:
        outcome: How it ended.
        reads: Upstream reads that were forwarded (a proxy for chunks).
        num_bytes: Payload and framing bytes given to the client.
        first_at: Monotonic instant of the first forwarded byte, or None.
        last_at: Monotonic instant of the last one, or None.
    """

    outcome: RelayOutcome
    reads: int
    num_bytes: int
    first_at: float | None
    last_at: float | None


EventEditor = Callable[[bytes], bytes]
"""Gets one whole SSE event (blank line included), returns what replaces it; b"" drops it.

Called only for events that contain one of :data:`EDIT_MARKS`.
"""

EDIT_MARKS: tuple[bytes, ...] = (
    b'"usage"',
    b"_transfer_params",
    b'"error"',
    b'"abort"',
    b"[DONE]",
    b"event:",
    rb"\u00",
)
"""A read without any of these is forwarded untouched (``performance.md`` 3.3 of the design).

The last one stands for the others: an escaped letter may hide any name.
"""


class EngineConnection(Protocol):
    """One open connection to an engine, carrying at most one request at a time."""

    @property
    def bytes_accepted(self) -> int:
        """Request bytes handed to the kernel; 0 proves that the engine saw nothing."""

    def send(self, head: bytes, body: bytes) -> None:
        """Write one request. ``head`` ends in the blank line and states the body's length."""

    async def head(self, *, timeout_s: float) -> ResponseHead:
        """Wait for the final response head.

        Raises:
            ConnectionLostError: Closed or reset first, or not HTTP.
            UpstreamTimeoutError: Nothing within ``timeout_s``.
        """

    async def first_event(self, *, timeout_s: float, limit: int) -> bytes:
        """Wait until one whole SSE event (or the body's end) is buffered, and peek at it.

        The event is not consumed: a later :meth:`relay` forwards it.

        Returns:
            The first event, decoded from its chunk framing, or b"" where the body ended
            without one.

        Raises:
            ConnectionLostError: Closed or reset first, or the event is larger than ``limit`` bytes.
            UpstreamTimeoutError: None within ``timeout_s``.
        """

    async def collect(self, limit: int, *, timeout_s: float) -> bytes:
        """Read the whole body, decoded from its framing, and give the connection back to the pool.

        Raises:
            ConnectionLostError: Closed or reset before the body's end.
            UpstreamFailureError: The body is larger than ``limit`` bytes.
            UpstreamTimeoutError: Not complete within ``timeout_s``.
        """

    def abort(self) -> None:
        """Close at once (the engine then aborts the request). Idempotent."""


class Engines(Protocol):
    """The pooled engine client of one worker."""

    async def connect(self, address: Address, *, timeout_s: float) -> EngineConnection:
        """Take an idle connection or open one; nothing is sent.

        Raises:
            ConnectError: Nobody listens, unreachable, or not connected within ``timeout_s``.
        """


class CompanionPort(Protocol):
    """The worker's side of the link to its companion: never blocks, survives its death.

    What is reported is summed up and sent at most once per loop pass. Metric names and labels are
    those of ``metrics.py``.
    """

    @property
    def snapshot(self) -> PoolSnapshot:
        """The last pool snapshot received; seq 0 before the first."""

    @property
    def is_draining(self) -> bool:
        """The companion has said that the proxy is on its way out."""

    def on_snapshot(self, callback: Callable[[PoolSnapshot], None]) -> None:
        """Have ``callback`` called with each new snapshot."""

    def leg_began(self, endpoint: str, prompt_tokens: int) -> None:
        """Report a leg that goes out."""

    def leg_ended(self, endpoint: str, prompt_tokens: int, outcome: Outcome | None) -> None:
        """Report its end; without an outcome the endpoint is neither to praise nor to blame."""

    def lease(self, event: LeaseStep) -> None:
        """Report one step of one lease."""

    def count(self, name: str, labels: tuple[str, ...], amount: float = 1.0) -> None:
        """Add to a counter."""

    def observe(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """Add one value to a histogram."""
