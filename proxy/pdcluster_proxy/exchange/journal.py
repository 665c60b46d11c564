"""The exchange log: one JSON line per ended exchange.

Shell. It tells the story of an exchange from what the engines said and what was measured: which P,
the lease it granted, which D and why, when the lease ended. Never prompts, answers or keys. Lines
are gathered on the loop and written off it, so that a request pays for neither a system call nor a
lock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import BinaryIO

import msgspec

__all__ = ["ExchangeRecord", "Journal"]

MAX_BUFFERED_BYTES = 1024 * 1024
"""Where the reader of the log stalls, lines beyond this are dropped and counted."""


class ExchangeRecord(msgspec.Struct, omit_defaults=True, gc=False):
    """One ended exchange; durations in seconds."""

    time: str = ""
    """When the line was written, as in every other log line."""
    level: str = ""
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
        now: Seconds since the epoch.

    Attributes:
        num_dropped: Lines lost so far.
    """

    def __init__(self, out: BinaryIO | None, *, now: Callable[[], float] = time.time) -> None:
        self._out = out
        self._now = now
        self._second = -1
        self._stamp = ""
        # This is all the mutable state; it is changed on the loop only.
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
        record.time, record.level = self._time_of_day(), "INFO"
        self._buffer += _ENCODER.encode(record)
        self._buffer += b"\n"

    def _time_of_day(self) -> str:
        """Now, as :mod:`logging` writes it: local time, milliseconds after a comma."""
        now = self._now()
        second = int(now)
        if second != self._second:  # To write it out costs more than the whole record.
            self._second = second
            self._stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._stamp},{int(now * 1000) % 1000:03d}"

    async def write_out(self) -> None:
        """Write what was gathered in a thread: where the log's reader stalls, the loop goes on.

        A log that can't be written costs lines, never exchanges: they are counted as dropped.
        """
        if self._buffer:
            num_lost = await asyncio.to_thread(self._put, self._take())
            self.num_dropped += num_lost

    def flush(self) -> None:
        """Write what was gathered, here and now; may block."""
        if self._buffer:
            self.num_dropped += self._put(self._take())

    def _take(self) -> bytes:
        lines, self._buffer = bytes(self._buffer), bytearray()
        return lines

    def _put(self, lines: bytes) -> int:
        """Write lines; returns how many were lost."""
        assert self._out is not None, "nothing is gathered without it"
        try:
            self._out.write(lines)
            self._out.flush()
        except (OSError, ValueError):
            return lines.count(b"\n")
        return 0
