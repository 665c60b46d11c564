"""What engines say to each other: notifications over NIXL, the handshake over the side channel.

Pure. Bytes in, values out, and back; no socket. Everything that arrives is decoded into typed
structs: nothing here can execute what a peer sent. Which releases speak which form is a table, so
that a client never sends a request an engine could not parse: one malformed request ends the
listener of vLLM for good.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from pdcluster_lease.errors import LocalProtocolError, RemoteProtocolError
from pdcluster_lease.params import RequestId

__all__ = [
    "CONNECTOR_HISTORY",
    "AgentMetadata",
    "ConnectorRelease",
    "HandshakePayload",
    "HandshakeRequest",
    "Heartbeat",
    "Notification",
    "RequestForm",
    "TransferComplete",
    "Unrecognised",
    "connector_release",
    "decode_agent_metadata",
    "decode_clock",
    "decode_handshake_payload",
    "decode_handshake_request",
    "decode_notification",
    "encode_handshake_request",
    "encode_notification",
]

_GET_META: Final = b"get_meta_msg"
_HEARTBEAT_PREFIX: Final = b"HB:"
_CONSUMERS_MAX_DIGITS: Final = 5
_MSGPACK: Final = msgspec.msgpack.Encoder()


# --- notifications ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """D (or a keeper) to P: extend these leases.

    Attributes:
        request_ids: P's own request ids; those it does not know it ignores without a word.
    """

    request_ids: tuple[RequestId, ...]


@dataclass(frozen=True, slots=True)
class TransferComplete:
    """Reader to owner: the blocks were read, or will not be.

    Attributes:
        request_id: The owner's own request id.
        consumers: How many such messages the owner has to wait for; 1 or more.
    """

    request_id: RequestId
    consumers: int = 1


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """A message that is neither; it is counted and otherwise ignored.

    Attributes:
        length: Its length in bytes; the content is a peer's and is not kept.
    """

    length: int


Notification: TypeAlias = Heartbeat | TransferComplete | Unrecognised


def encode_notification(message: Heartbeat | TransferComplete) -> bytes:
    """Spell a notification.

    Raises:
        LocalProtocolError: No id, an id that would break the spelling, or no consumer.

    Source:
        vLLM 0.22.0 to 0.33.0, ``base_worker._send_heartbeats`` and the pull worker's
        completion message.
    """
    if isinstance(message, Heartbeat):
        if not message.request_ids or any("," in each or not each for each in message.request_ids):
            raise LocalProtocolError("a heartbeat needs at least one id, and none with a comma")
        return _HEARTBEAT_PREFIX + ",".join(message.request_ids).encode()
    if not message.request_id or message.consumers < 1:
        raise LocalProtocolError("a completion needs a request id and at least one consumer")
    return f"{message.request_id}:{message.consumers}".encode()


def decode_notification(payload: bytes) -> Notification:
    """Read a notification; never raises, because anybody can send one.

    Args:
        payload: What NIXL delivered, any bytes.

    Returns:
        :class:`Unrecognised` for whatever is neither heartbeat nor completion.

    Source:
        vLLM 0.22.0 to 0.33.0, ``base_worker._get_new_notifs`` and ``_handle_heartbeat``.
    """
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return Unrecognised(len(payload))
    if payload.startswith(_HEARTBEAT_PREFIX):
        ids = tuple(RequestId(each) for each in text[len(_HEARTBEAT_PREFIX) :].split(",") if each)
        return Heartbeat(ids) if ids else Unrecognised(len(payload))
    request_id, colon, consumers = text.rpartition(":")
    # isdecimal() alone accepts digits of other scripts, and int() has a limit on digits.
    if (
        colon
        and request_id
        and consumers.isascii()
        and consumers.isdecimal()
        and len(consumers) <= _CONSUMERS_MAX_DIGITS
    ):
        number = int(consumers)
        if number:
            return TransferComplete(RequestId(request_id), number)
    return Unrecognised(len(payload))


# --- connector versions -------------------------------------------------------------------------


class RequestForm(Enum):
    """How a handshake request is spelt."""

    RANK = "rank"
    """``(b"get_meta_msg", tp_rank)``: 0.22 to 0.25."""
    PP_AND_TP_RANK = "pp-and-tp-rank"
    """``(b"get_meta_msg", pp_rank, tp_rank)``: 0.26 and later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorRelease:
    """What one vLLM release speaks.

    Attributes:
        release: (major, minor) of vLLM.
        version: ``NIXL_CONNECTOR_VERSION``, part of the compatibility hash; None where unread.
        has_lease: Whether P grants a lease that D renews.
        form: The form of its handshake request.
        scans_all_leases: Whether its reaper visits every lease (#50789, #58222).
        counts_late_reads: Whether ``nixl_num_notifications_after_expiry`` exists.
    """

    release: tuple[int, int]
    version: int | None
    has_lease: bool = True
    form: RequestForm | None = RequestForm.PP_AND_TP_RANK
    scans_all_leases: bool = False
    counts_late_reads: bool = False


CONNECTOR_HISTORY: Final = (
    ConnectorRelease(release=(0, 21), version=3, has_lease=False, form=None),
    ConnectorRelease(release=(0, 22), version=4, form=RequestForm.RANK),
    ConnectorRelease(release=(0, 23), version=4, form=RequestForm.RANK),
    ConnectorRelease(release=(0, 24), version=4, form=RequestForm.RANK),
    # 0.25 was not read and its neighbours differ: nothing may be sent to it.
    ConnectorRelease(release=(0, 25), version=None, form=None),
    ConnectorRelease(release=(0, 26), version=5),
    ConnectorRelease(release=(0, 27), version=5),
    ConnectorRelease(release=(0, 28), version=7),
    ConnectorRelease(release=(0, 29), version=9),
    ConnectorRelease(release=(0, 30), version=11),
    ConnectorRelease(release=(0, 31), version=13, scans_all_leases=True),
    ConnectorRelease(release=(0, 32), version=14, scans_all_leases=True, counts_late_reads=True),
    ConnectorRelease(release=(0, 33), version=15, scans_all_leases=True, counts_late_reads=True),
)
"""Releases whose protocol was read. Source: released packages of vLLM, ``nixl/metadata.py``."""

_RELEASE_PATTERN: Final = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\D|$)")
_BY_RELEASE: Final = {each.release: each for each in CONNECTOR_HISTORY}


def connector_release(engine_version: str) -> ConnectorRelease | None:
    """Look up what an engine speaks.

    Args:
        engine_version: The answer of its ``GET /version``, for example ``0.32.0`` or
            ``0.32.0+cpu``.

    Returns:
        None for a release nobody has read: send it nothing.

    Source:
        :data:`CONNECTOR_HISTORY`.
    """
    found = _RELEASE_PATTERN.match(engine_version)
    return _BY_RELEASE.get((int(found[1]), int(found[2]))) if found else None


# --- handshake ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeRequest:
    """Ask one rank of an engine for its NIXL metadata.

    Attributes:
        pp_rank: Pipeline-parallel rank, below ``pp_size``.
        tp_rank: Tensor-parallel rank, below ``tp_size``.
    """

    pp_rank: int = 0
    tp_rank: int = 0


class HandshakePayload(msgspec.Struct, frozen=True, kw_only=True):
    """First frame of the reply.

    Attributes:
        compatibility_hash: Compared by the reader; a keeper need not care.
        agent_metadata_bytes: :class:`AgentMetadata` in msgpack, decoded only after the hash agreed.
    """

    compatibility_hash: str
    agent_metadata_bytes: bytes


class AgentMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer needs to reach one rank's memory; vLLM sends more fields, which are skipped.

    Attributes:
        engine_id: Compared with the ``remote_engine_id`` of the params.
        agent_metadata: NIXL's own description, for ``add_remote_agent``.
        kv_caches_base_addr: First byte of each registered region.
        device_id: Device of each region; 0 for host memory.
        num_blocks: Blocks per region.
        block_lens: Bytes per block and region.
        kv_cache_layout: ``"HND"``, ``"NHD"`` and so on.
        block_size: Tokens per block.
    """

    engine_id: str
    agent_metadata: bytes
    kv_caches_base_addr: tuple[int, ...]
    device_id: int = 0
    num_blocks: int
    block_lens: tuple[int, ...]
    kv_cache_layout: str = ""
    block_size: int = 0


_REQUEST_DECODER: Final = msgspec.msgpack.Decoder(tuple[bytes, int, int])
_PAYLOAD_DECODER: Final = msgspec.msgpack.Decoder(HandshakePayload)
_METADATA_DECODER: Final = msgspec.msgpack.Decoder(AgentMetadata)
_CLOCK_DECODER: Final = msgspec.msgpack.Decoder(float)


def encode_handshake_request(
    request: HandshakeRequest,
    *,
    tp_size: int,
    pp_size: int,
    form: RequestForm = RequestForm.PP_AND_TP_RANK,
) -> bytes:
    """Spell a handshake request that the peer is sure to parse.

    Args:
        request: The rank to ask.
        tp_size: The peer's tensor-parallel size, from its params.
        pp_size: The peer's pipeline-parallel size, from its params.
        form: The form its release speaks.

    Raises:
        LocalProtocolError: The rank does not exist at that peer. Sent, it would end the listener.

    Source:
        vLLM, ``nixl/base_worker.py``, ``_nixl_handshake``: :class:`RequestForm` says which release
        sends which form.
    """
    if not (0 <= request.pp_rank < pp_size and 0 <= request.tp_rank < tp_size):
        raise LocalProtocolError(
            f"no rank (pp {request.pp_rank}, tp {request.tp_rank}) in a peer of "
            f"pp {pp_size}, tp {tp_size}"
        )
    if form is RequestForm.RANK:
        if request.pp_rank:
            raise LocalProtocolError("this release knows no pipeline-parallel ranks")
        return _MSGPACK.encode((_GET_META, request.tp_rank))
    return _MSGPACK.encode((_GET_META, request.pp_rank, request.tp_rank))


def decode_handshake_request(frame: bytes) -> HandshakeRequest:
    """Read a request as a listener.

    Args:
        frame: The request's frame, any bytes.

    Raises:
        RemoteProtocolError: Anything but ``(b"get_meta_msg", pp_rank, tp_rank)``.

    Source:
        vLLM 0.26.0 to 0.33.0, ``nixl/base_scheduler.py``, the side channel's listener.
    """
    try:
        verb, pp_rank, tp_rank = _REQUEST_DECODER.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RemoteProtocolError(f"malformed handshake request: {error}") from error
    if verb != _GET_META:
        raise RemoteProtocolError(f"unknown side-channel request {verb[:32]!r}")
    return HandshakeRequest(pp_rank=pp_rank, tp_rank=tp_rank)


def decode_handshake_payload(frame: bytes) -> HandshakePayload:
    """Read the first frame of a reply.

    Raises:
        RemoteProtocolError: Not the msgpack map we expect.

    Source:
        vLLM 0.22.0 to 0.33.0, ``NixlHandshakePayload`` of ``nixl/metadata.py``.
    """
    try:
        return _PAYLOAD_DECODER.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RemoteProtocolError(f"malformed handshake reply: {error}") from error


def decode_agent_metadata(raw: bytes) -> AgentMetadata:
    """Read the inner metadata of a reply.

    Raises:
        RemoteProtocolError: Not the msgpack map we expect; ``field`` says which message.

    Source:
        vLLM 0.22.0 to 0.33.0, ``NixlAgentMetadata`` of ``nixl/metadata.py``.
    """
    try:
        return _METADATA_DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RemoteProtocolError(
            f"malformed agent metadata: {error}", field="agent_metadata_bytes"
        ) from error


def decode_clock(frame: bytes) -> float:
    """Read the second frame of a reply: the peer's monotonic clock in seconds.

    Returns:
        Seconds on the peer's own monotonic clock; only differences of it mean anything here.

    Raises:
        RemoteProtocolError: Not a msgpack number.

    Source:
        vLLM 0.26.0 to 0.33.0: the reply's second frame is ``time.perf_counter()``.
    """
    try:
        return _CLOCK_DECODER.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RemoteProtocolError(f"malformed clock in a handshake reply: {error}") from error
