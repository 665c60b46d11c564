"""The exchange log: one JSON line per ended exchange.

Shell. It tells the story of an exchange from what the engines said and what was measured: which P,
the lease it granted, which D and why, when the lease ended. Never prompts, answers or keys. Lines
are gathered and written once per tick, so that a request pays for neither a system call nor a lock.
"""

from __future__ import annotations

from typing import BinaryIO

import msgspec

__all__ = ["ExchangeRecord", "Journal"]

MAX_BUFFERED_BYTES = 1024 * 1024
"""Where the reader of the log stalls, lines beyond this are dropped and counted."""


class ExchangeRecord(msgspec.Struct, omit_defaults=True, gc=False):
    """One ended exchange; durations in seconds."""

    event: str = ""
    request_id: str = ""
    leg_id: str = ""
    route: str = ""
    stream: bool = False
    state: str = ""
    status: int = 0
    code: str = ""
    prefill: str = ""
    decode: str = ""
    decode_legs: int = 0
    """Legs that were open on D when it was chosen."""
    num_decodes: int = 0
    """Decode engines it was chosen from."""
    engine_id: str = ""
    lease_s: int = 0
    """What P granted."""
    hand_off_bound_s: float = 0.0
    """The hand-off deadline of the pair."""
    num_blocks: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    prefill_legs: int = 0
    decode_tries: int = 0
    prefill_s: float = 0.0
    hand_off_age_s: float = 0.0
    """Age of the lease when the decode leg was sent."""
    first_event_s: float = 0.0
    """From the request's arrival to D's first event or answer; the lease has been read by then."""
    lease_ended_age_s: float = 0.0
    """Age of the lease when D's answer began: P has its blocks back by then."""
    duration_s: float = 0.0


_ENCODER = msgspec.json.Encoder()


class Journal:
    """Writes records.

    Args:
        out: Where lines go, or None to write none.
    """

    def __init__(self, out: BinaryIO | None) -> None:
        self._out = out
        # This is all the mutable state.
        self._buffer = bytearray()
        self.num_dropped = 0

    @property
    def is_on(self) -> bool:
        """Whether records are written at all."""
        return self._out is not None

    def write(self, record: ExchangeRecord) -> None:
        """Take one record."""
        if self._out is None:
            return
        if len(self._buffer) > MAX_BUFFERED_BYTES:
            self.num_dropped += 1
            return
        self._buffer += _ENCODER.encode(record)
        self._buffer += b"\n"

    def flush(self) -> None:
        """Write what was gathered; may block, so it is called off the loop.

        A log that can't be written costs lines, never exchanges: they are counted as dropped.
        """
        if self._out is None or not self._buffer:
            return
        lines, self._buffer = self._buffer, bytearray()
        try:
            self._out.write(lines)
            self._out.flush()
        except (OSError, ValueError):
            self.num_dropped += lines.count(b"\n")
