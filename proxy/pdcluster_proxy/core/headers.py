"""Header fields: what goes to the engines, and the ids of exchange and legs.

Pure. An allow-list: everything that is not named here stays with the proxy, internal headers of
routers and engines above all.

Source: ``routing.md`` section 5 of the design.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["ClientHeaders", "leg_headers", "read_client_headers"]

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9-]{1,128}")
_TRACE_PARENT: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_FIXED: Final = (
    (b"content-type", b"application/json"),
    # A compressed answer could be neither edited nor relayed event by event.
    (b"accept-encoding", b"identity"),
)
_FORWARDED: Final = frozenset({b"authorization", b"tracestate", b"user-agent"})

Fields = tuple[tuple[bytes, bytes], ...]


class ClientHeaders:
    """What of a client's header concerns us.

    Attributes:
        request_id: The client's ``x-request-id`` where it is usable, else "".
        forwarded: Fields for both legs, fixed ones first.
        content_encoding: The client's ``content-encoding``, or b"".
    """

    __slots__ = ("content_encoding", "forwarded", "request_id")

    def __init__(self, *, request_id: str, forwarded: Fields, content_encoding: bytes) -> None:
        self.request_id = request_id
        self.forwarded = forwarded
        self.content_encoding = content_encoding


def read_client_headers(headers: Iterable[tuple[bytes, bytes]]) -> ClientHeaders:
    """Sort a client's header fields.

    Args:
        headers: Names in lower case, as ASGI gives them.
    """
    request_id, encoding = "", b""
    forwarded = list(_FIXED)
    for name, value in headers:
        if name in _FORWARDED:
            forwarded.append((name, value))
        elif name == b"x-request-id":
            if _REQUEST_ID.fullmatch(value):
                request_id = value.decode()
        elif name == b"traceparent":
            # A hostile one is dropped; there is nothing to continue.
            if _TRACE_PARENT.fullmatch(value):
                forwarded.append((name, value))
        elif name == b"content-encoding":
            encoding = value
    return ClientHeaders(
        request_id=request_id, forwarded=tuple(forwarded), content_encoding=encoding
    )


def leg_headers(client: ClientHeaders, leg_id: str) -> Fields:
    """Make one leg's fields: both legs of one attempt carry the same, unique id."""
    return (*client.forwarded, (b"x-request-id", leg_id.encode()))
