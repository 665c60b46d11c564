"""Reads an engine's response head once llhttp has judged it.

Pure. Only what framing and the exchange need is interpreted; everything else passes through.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdcluster_proxy.core.ports import ResponseHead

__all__ = ["BodyFraming", "ParsedHead", "parse_head"]

_FIRST_FINAL_STATUS = 200
_NO_CONTENT = (204, 304)
_EVENT_STREAM = b"text/event-stream"
_STATUS_AT = slice(9, 12)
"""Where the status stands: after ``HTTP/1.x `` (RFC 9112 section 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyFraming:
    """How the body's end is found.

    Attributes:
        is_chunked: By chunk framing.
        length: By length, in bytes; None where it is chunked or ends with the connection.
    """

    is_chunked: bool
    length: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedHead:
    """A final response head.

    Attributes:
        head: What the exchange sees.
        framing: How the body ends.
        end: Offset of the body's first byte in what was parsed.
    """

    head: ResponseHead
    framing: BodyFraming
    end: int


_CHUNKED = BodyFraming(is_chunked=True, length=None)
_UNTIL_CLOSE = BodyFraming(is_chunked=False, length=None)


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
        first, *fields = raw[start:end].split(b"\r\n")
        status = int(first[_STATUS_AT])
        start = end + 4
        if status >= _FIRST_FINAL_STATUS:
            break
    headers = tuple([_field(line) for line in fields])
    named = dict(headers)
    media_type = named.get(b"content-type", b"")
    head = ResponseHead(
        status=status,
        headers=headers,
        is_event_stream=media_type[: len(_EVENT_STREAM)].lower() == _EVENT_STREAM,
    )
    return ParsedHead(head=head, framing=_framing(status, named), end=start)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.lower(), value.strip()


def _framing(status: int, headers: dict[bytes, bytes]) -> BodyFraming:
    """How the body's end is found (RFC 9112 section 6.3)."""
    if status in _NO_CONTENT:
        return BodyFraming(is_chunked=False, length=0)
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        return _CHUNKED if coding.lower().endswith(b"chunked") else _UNTIL_CLOSE
    length = headers.get(b"content-length")
    return _UNTIL_CLOSE if length is None else BodyFraming(is_chunked=False, length=int(length))
