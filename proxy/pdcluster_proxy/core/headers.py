"""Header fields: what goes to the engines, and the ids of exchange and legs.

Pure. An allow-list: everything that is not named here stays with the proxy, internal headers of
routers and engines above all.

Source: ``routing.md`` section 5 of the design.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

__all__ = ["ClientHeaders", "leg_head", "read_client_headers"]

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9-]{1,128}")
_TRACE_PARENT: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
# A compressed answer could be neither edited nor relayed event by event.
_FIXED: Final = b"content-type: application/json\r\naccept-encoding: identity\r\n"
_FORWARDED: Final = frozenset({b"authorization", b"tracestate", b"user-agent"})
_CONCERNING: Final = _FORWARDED | {b"traceparent", b"x-request-id", b"content-encoding"}


class ClientHeaders(msgspec.Struct, frozen=True, gc=False):
    """What of a client's header concerns us.

    Attributes:
        request_id: The client's ``x-request-id`` where it is usable, else "".
        forwarded: Field lines for both legs, ready for the wire, fixed ones first.
        content_encoding: The client's ``content-encoding``, all of them, or b"".
    """

    request_id: str
    forwarded: bytes
    content_encoding: bytes


def read_client_headers(headers: Iterable[tuple[bytes, bytes]]) -> ClientHeaders:
    """Sort a client's header fields.

    Args:
        headers: Names in lower case, as ASGI gives them.
    """
    request_id, encoding = "", b""
    forwarded = _FIXED
    for name, value in headers:
        if name in _CONCERNING:
            if name in _FORWARDED or (name == b"traceparent" and _TRACE_PARENT.fullmatch(value)):
                # A line end in a value would make it two fields; servers reject such requests.
                if b"\n" not in value and b"\r" not in value:
                    forwarded += b"%b: %b\r\n" % (name, value)
            elif name == b"x-request-id":
                if _REQUEST_ID.fullmatch(value):
                    request_id = value.decode()
            elif name == b"content-encoding":
                encoding = b"%b,%b" % (encoding, value) if encoding else value
    return ClientHeaders(request_id, forwarded, encoding)


def leg_head(path: str, authority: str, client: ClientHeaders, leg_id: str, body_len: int) -> bytes:
    """Make the head of one leg's request: both legs of one attempt carry the same, unique id.

    Args:
        path: The route's path.
        authority: The engine's ``host:port``.
        client: What of the client's header goes along.
        leg_id: The id, of letters, digits and hyphens.
        body_len: Length of the body in bytes.
    """
    return (
        (
            f"POST {path} HTTP/1.1\r\nhost: {authority}\r\nx-request-id: {leg_id}\r\n"
            f"content-length: {body_len}\r\n"
        ).encode()
        + client.forwarded
        + b"\r\n"
    )
