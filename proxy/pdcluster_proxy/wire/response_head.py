"""Reads an engine's response head once llhttp has judged it.

Pure. Only what framing and the exchange need is interpreted; everything else passes through.
"""

from __future__ import annotations

import msgspec

from pdcluster_proxy.core.ports import ResponseHead

__all__ = ["ParsedHead", "parse_head"]

_FIRST_FINAL_STATUS = 200
_NO_CONTENT = (204, 304)
_EVENT_STREAM = b"text/event-stream"
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
        end = raw.find(b"\r\n\r\n", start)
        if end < 0:
            return None
        status = int(raw[start + _STATUS_AT : start + _STATUS_END])
        if status >= _FIRST_FINAL_STATUS:
            break
        start = end + 4
    headers = []
    for line in raw[start:end].split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        headers.append((name.lower(), value.strip()))
    named = dict(headers)
    is_chunked, length = _framing(status, named)
    media_type = named.get(b"content-type", b"")
    head = ResponseHead(
        status=status,
        headers=tuple(headers),
        is_event_stream=media_type[: len(_EVENT_STREAM)].lower() == _EVENT_STREAM,
    )
    return ParsedHead(head=head, is_chunked=is_chunked, length=length, end=end + 4)


def _framing(status: int, headers: dict[bytes, bytes]) -> tuple[bool, int | None]:
    """How the body's end is found (RFC 9112 section 6.3)."""
    if status in _NO_CONTENT:
        return False, 0
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        return coding.lower().endswith(b"chunked"), None
    length = headers.get(b"content-length")
    return False, None if length is None else int(length)
