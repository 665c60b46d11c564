"""Reads an engine's response head once llhttp has judged it.

Pure. Only what framing and the exchange need is interpreted; everything else passes through.
"""

from __future__ import annotations

import re

import msgspec

from pdcluster_proxy.core.ports import ResponseHead

__all__ = ["ParsedHead", "parse_head"]

_FIRST_FINAL_STATUS = 200
_NO_CONTENT = (204, 304)
_FRAMING_FIELDS = re.compile(
    rb"\r\n(?:content-length:[ \t]*([0-9]+)"
    rb"|transfer-encoding:[ \t]*([^\r]*[^\r \t])"
    rb"|content-type:[ \t]*(text/event-stream))",
    re.IGNORECASE,
)
"""Finds the fields that decide how the body is read (RFC 9112 section 6.3); one pass in C."""

_STATUS_AT, _STATUS_END = 9, 12
"""Where the status stands: after ``HTTP/1.x `` (RFC 9112 section 4)."""


class ParsedHead(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A final response head.

    Attributes:
        head: What the exchange sees.
        is_chunked: The body ends by chunk framing.
        length: The body ends after this many bytes; None where it is chunked, or ends with the
            connection.
        end: Offset of the body's first byte in what was parsed.
    """

    head: ResponseHead
    is_chunked: bool
    length: int | None
    end: int


def parse_head(raw: bytes) -> ParsedHead | None:
    """Parse the final head at the start of ``raw``, skipping interim (1xx) ones.

    Args:
        raw: What the engine has sent so far; llhttp has accepted it.

    Returns:
        The head, or None while it is not complete.
    """
    start = 0
    while True:
        while raw.startswith((b"\r", b"\n"), start):  # llhttp, too, passes over empty lines.
            start += 1
        end = raw.find(b"\r\n\r\n", start)
        if end < 0:
            return None
        status = int(raw[start + _STATUS_AT : start + _STATUS_END])
        if status >= _FIRST_FINAL_STATUS:
            break
        start = end + 4
    length: int | None = None
    coding = media_type = b""
    for found in _FRAMING_FIELDS.findall(raw, start, end):
        length = int(found[0]) if found[0] else length
        coding = found[1] or coding
        media_type = found[2] or media_type
    is_chunked = coding.lower().endswith(b"chunked")
    if coding:
        length = None
    elif status in _NO_CONTENT:
        length = 0
    head = ResponseHead(
        status=status,
        is_event_stream=bool(media_type),
        field_lines=raw[raw.find(b"\r\n", start) : end],
    )
    return ParsedHead(head=head, is_chunked=is_chunked, length=length, end=end + 4)
