"""Edits of single events of a decode stream.

Pure, but for the editor's own memory of whether the stream failed. Framing is ``core/framing.py``.
The relay hands over only events that carry one of ``EDIT_MARKS``; all others pass untouched.

Source: ``routing.md`` section 8 of the design.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from pdcluster_proxy.core.replies import (
    DECODE_FAILURES,
    FINISH_ERROR,
    PrefillUsage,
    client_usage,
    strip_connector_fields,
)

__all__ = ["DONE", "StreamEditor", "event_data", "is_failure_event"]

DONE: Final = b"[DONE]"
_ENCODER: Final = msgspec.json.Encoder()
_TOP: Final = msgspec.json.Decoder(dict[str, Raw])
_NULL: Final = b"null"


class _Choice(msgspec.Struct, gc=False):
    finish_reason: str | None = None


_CHOICES: Final = msgspec.json.Decoder(list[_Choice])


def event_data(event: bytes) -> bytes:
    """Join the ``data`` lines of one event; b"" where it has none."""
    lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return b"\n".join(
        line[6:] if line.startswith(b"data: ") else line[5:]
        for line in lines
        if line.startswith(b"data:")
    )


def is_failure_event(event: bytes) -> bool:
    """Tell whether an event says that the engine gave up (``error``, or such a finish reason)."""
    if b'"error"' not in event:
        return False
    try:
        top = _TOP.decode(event_data(event))
    except DECODE_FAILURES:
        return False
    return _says_error(top)


def _says_error(top: dict[str, Raw]) -> bool:
    error = top.get("error")
    if error is not None and bytes(error) != _NULL:
        return True
    choices = top.get("choices")
    if choices is None:
        return False
    try:
        return any(choice.finish_reason == FINISH_ERROR for choice in _CHOICES.decode(choices))
    except DECODE_FAILURES:
        return False


class StreamEditor:
    """Edits one stream's marked events.

    Attributes:
        failed: The stream carried a failure; it and the terminator after it were dropped, so that
            the exchange ends the stream itself, visibly.
    """

    # This is all the mutable state.
    __slots__ = ("_prefill", "failed")

    def __init__(self, prefill: PrefillUsage | None) -> None:
        self._prefill = prefill
        self.failed = False

    def __call__(self, event: bytes) -> bytes:
        """Return what replaces one whole event; b"" drops it."""
        if self.failed:
            return b""
        data = event_data(event)
        if not data or data == DONE:
            return event
        try:
            top = _TOP.decode(data)
        except DECODE_FAILURES:
            # Never let bytes with a connector field's name through, however they are dressed.
            return b"" if b"_transfer_params" in event else event
        if _says_error(top):
            self.failed = True
            return b""
        return self._edited(event, top)

    def _edited(self, event: bytes, top: dict[str, Raw]) -> bytes:
        num_fields = len(top)
        strip_connector_fields(top)
        usage = top.get("usage")
        changed = len(top) != num_fields
        if self._prefill is not None and usage is not None and bytes(usage) != _NULL:
            edited = client_usage(usage, self._prefill)
            changed = changed or edited is not usage
            top["usage"] = edited
        return b"data: " + _ENCODER.encode(top) + b"\n\n" if changed else event
