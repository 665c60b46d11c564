"""Edits of single events of a decode stream.

Pure, but for the editor's own memory of whether the stream failed. Framing is ``core/framing.py``.
The relay hands over only events that carry one of ``EDIT_MARKS``; all others pass untouched.

Source: ``routing.md`` section 8 of the design.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from pdcluster_proxy.core.replies import (
    DECODE_FAILURES,
    FINISH_FAILURES,
    PrefillUsage,
    client_usage,
    mentions_connector,
    strip_connector_fields,
)

__all__ = ["DONE", "StreamEditor", "begins_answer", "event_data", "is_whole_event"]

DONE: Final = b"[DONE]"
_ENCODER: Final = msgspec.json.Encoder()
_TOP: Final = msgspec.json.Decoder(dict[str, Raw])
_NULL: Final = b"null"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_ERROR_EVENT: Final = re.compile(rb"(?:^|[\r\n])event: ?error[ \t]*(?:[\r\n]|$)")


class _Choice(msgspec.Struct, gc=False):
    finish_reason: str | None = None


_CHOICES: Final = msgspec.json.Decoder(list[_Choice])


def event_data(event: bytes) -> bytes:
    """Join the ``data`` lines of one event; b"" where it has none."""
    event = event.removeprefix(_BYTE_ORDER_MARK)
    lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return b"\n".join(
        line[6:] if line.startswith(b"data: ") else line[5:]
        for line in lines
        if line.startswith(b"data:")
    )


def is_whole_event(event: bytes) -> bool:
    """Tell whether an event without its blank line was only lacking that: it is not half of one."""
    data = event_data(event)
    return _is_terminator(data) or _fields(data) is not None


def begins_answer(event: bytes) -> bool:
    """Tell whether a stream may begin with this event: part of an answer, and no failure."""
    fields = _fields(event_data(event))
    return fields is not None and not _ERROR_EVENT.search(event) and not _says_error(fields)


def _is_terminator(data: bytes) -> bool:
    return data.rstrip(b" \t") == DONE


def _fields(data: bytes) -> dict[str, Raw] | None:
    """Read an event's data; None where it is no JSON object."""
    try:
        return _TOP.decode(data)
    except DECODE_FAILURES:
        return None


def _says_error(top: dict[str, Raw]) -> bool:
    error = top.get("error")
    if error is not None and bytes(error) != _NULL:
        return True
    kind = top.get("object")
    if kind is not None and bytes(kind) == b'"error"':
        return True
    choices = top.get("choices")
    if choices is None:
        return False
    try:
        return any(choice.finish_reason in FINISH_FAILURES for choice in _CHOICES.decode(choices))
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
        if _is_terminator(data):
            return event
        top = _fields(data)
        if _ERROR_EVENT.search(event) or (top is not None and _says_error(top)):
            self.failed = True
            return b""
        if top is None:
            # Never let bytes with a connector field's name through, however they are dressed.
            return b"" if mentions_connector(event) else event
        return self._edited(event, top)

    def _edited(self, event: bytes, top: dict[str, Raw]) -> bytes:
        has_changed = mentions_connector(event) and strip_connector_fields(top)
        usage = top.get("usage")
        if self._prefill is not None and usage is not None and bytes(usage) != _NULL:
            edited = client_usage(usage, self._prefill)
            has_changed = has_changed or edited is not usage
            top["usage"] = edited
        return b"data: " + _ENCODER.encode(top) + b"\n\n" if has_changed else event
