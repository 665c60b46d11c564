"""The guard at the client's edge: what a request's head may look like.

Pure. Only messages that every server and every parser behind us would read the same way pass; the
rest is rejected before any application code runs.

Source:
    ``reliability.md`` 4.2 of the design for the rules; RFC 9112 for the messages.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from pdcluster_proxy.core.error_bodies import REASON_HEADER
from pdcluster_proxy.errors import RejectedError

__all__ = [
    "EdgeLimits",
    "head_too_large",
    "judge_head",
    "judge_size",
    "malformed",
    "pipeline_full",
    "render",
    "too_slow",
    "version_unsupported",
]

Fields = Sequence[tuple[bytes, bytes]]
"""Header fields in order, names in lower case."""

_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]+)(?::[0-9]{1,5})?")
_REJECTED_METHODS = (b"TRACE", b"CONNECT")


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLimits:
    """Bounds on what a client may send before any application code runs, and on how it reads.

    Attributes:
        head_bytes: Request line and fields together.
        num_fields: Header fields; vLLM has a cap of this kind since CVE-2025-48956. Trailer fields
            are dropped, within the same two bounds; so are chunk extensions.
        num_waiting: Pipelined requests of one connection that may wait for their turn.
        head_timeout_s: From the connection's or request's first byte to the end of the head.
        body_bytes_per_s: Slowest body, measured from the head's first byte.
        body_grace_s: A body may take this long whatever its rate.
        body_timeout_s: No body may take longer, whatever its rate.
        keep_alive_s: Idle time between two requests of a connection.
        linger_s: How long a rejected client's bytes are read and dropped.
        farewell_s: How long a connection waits for one more request when the server leaves.
        read_bytes_per_s: Slowest reader of an answer that is whole, or that waits for its reader.
        read_grace_s: It may read nothing for so long.
    """

    head_bytes: int = 64 * 1024
    num_fields: int = 100
    num_waiting: int = 128
    head_timeout_s: float = 10.0
    body_bytes_per_s: float = 1024.0
    body_grace_s: float = 10.0
    body_timeout_s: float = 120.0
    keep_alive_s: float = 75.0
    linger_s: float = 2.0
    farewell_s: float = 1.0
    read_bytes_per_s: float = 1024.0
    read_grace_s: float = 10.0


def judge_size(target: bytes, fields: Fields, limits: EdgeLimits) -> None:
    """Reject a head whose target and fields together are over the bound.

    Raises:
        RejectedError: They are (431).
    """
    size = len(target) + sum(len(name) + len(value) + len(b": \r\n") for name, value in fields)
    if size > limits.head_bytes:
        raise head_too_large(limits)


def judge_head(
    *,
    method: bytes,
    target: bytes,
    fields: Fields,
    is_http_1_0: bool,
    is_upgrade: bool,
    limits: EdgeLimits,
) -> None:
    """Reject a head that breaks a rule; llhttp has found its syntax good.

    Args:
        method: As sent.
        target: As sent.
        fields: All of them.
        is_http_1_0: The request is HTTP/1.0, which has fewer rules and fewer means.
        is_upgrade: It asks for another protocol, and llhttp has skipped its body.
        limits: The bounds.

    Raises:
        RejectedError: Too many fields (431); a method or a transfer coding that is never served
            (501); not exactly one valid Host, a target that is neither a path nor a URL,
            Transfer-Encoding in HTTP/1.0, or a body together with Upgrade (400).
    """
    if len(fields) > limits.num_fields:
        raise head_too_large(limits)
    if method in _REJECTED_METHODS:
        raise RejectedError(
            f"{method.decode()} is not served.",
            status_code=HTTPStatus.NOT_IMPLEMENTED,
            code="method-rejected",
        )
    if not target.startswith((b"/", b"http://", b"https://")) or b"#" in target:
        raise malformed("its target must be a path or an absolute URL, without a fragment")
    hosts: list[bytes] = []
    codings: list[bytes] = []
    for name, value in fields:
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            codings.append(value)
    if len(hosts) != 1 or not _is_host(hosts[0]):
        _judge_hosts(hosts, is_http_1_0=is_http_1_0)
    if codings:
        _judge_codings(codings, is_http_1_0=is_http_1_0)
    if is_upgrade and _announces_body(fields):
        raise malformed("it asks for an upgrade and has a body; send it without Upgrade")


def _judge_hosts(hosts: Sequence[bytes], *, is_http_1_0: bool) -> None:
    if len(hosts) != 1 and not (is_http_1_0 and not hosts):
        raise malformed(f"it has {len(hosts)} Host fields, not one")
    if hosts:
        raise malformed("its Host field is not valid")


def _judge_codings(codings: Sequence[bytes], *, is_http_1_0: bool) -> None:
    if is_http_1_0:
        raise malformed("HTTP/1.0 has no Transfer-Encoding")
    if b",".join(codings).strip(b" \t").lower() != b"chunked":
        raise RejectedError(
            "The only transfer coding is 'chunked'; send the body as it is.",
            status_code=HTTPStatus.NOT_IMPLEMENTED,
            code="transfer-coding",
        )


@functools.lru_cache(maxsize=256)
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


def _announces_body(fields: Fields) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in fields
    )


def head_too_large(limits: EdgeLimits) -> RejectedError:
    """Make the rejection of a head over its bounds."""
    return RejectedError(
        f"The request's head or trailer is over {limits.head_bytes} bytes or {limits.num_fields}"
        " fields; send less.",
        status_code=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        code="head-too-large",
    )


def malformed(why: str) -> RejectedError:
    """Make the rejection of what is not valid HTTP/1.1."""
    return RejectedError(
        f"The request is not valid HTTP/1.1: {why}.",
        status_code=HTTPStatus.BAD_REQUEST,
        code="malformed-request",
    )


def version_unsupported() -> RejectedError:
    """Make the rejection of another version of HTTP."""
    return RejectedError(
        "Only HTTP/1.0 and HTTP/1.1 are served.",
        status_code=HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
        code="version-unsupported",
    )


def pipeline_full(limits: EdgeLimits) -> RejectedError:
    """Make the rejection of one pipelined request too many."""
    return RejectedError(
        f"More than {limits.num_waiting} requests wait on this connection; read answers first.",
        status_code=HTTPStatus.TOO_MANY_REQUESTS,
        code="pipeline-full",
    )


def too_slow(what: str) -> RejectedError:
    """Make the rejection of a request that drips."""
    return RejectedError(
        f"Send the request's {what}.",
        status_code=HTTPStatus.REQUEST_TIMEOUT,
        code="request-too-slow",
    )


def render(rejection: RejectedError, *, default_fields: Fields, request_id: str) -> bytes:
    """The whole response to a rejected request: a JSON error in vLLM's shape, then close.

    Args:
        rejection: What is wrong.
        default_fields: Fields of every answer, for example Date.
        request_id: Names the request; of our making, for its head was not read to the end.
    """
    body = msgspec.json.encode(
        {
            "error": {
                "message": str(rejection),
                "type": "invalid_request_error",
                "param": None,
                "code": rejection.code,
            }
        }
    )
    status = HTTPStatus(rejection.status_code)
    lines = [b"HTTP/1.1 %d %b" % (status, status.phrase.encode())]
    lines += [b"%b: %b" % field for field in default_fields]
    lines += [
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"x-request-id: %b" % request_id.encode(),
        b"%b: %b" % (REASON_HEADER, rejection.code.encode()),
        b"connection: close",
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
