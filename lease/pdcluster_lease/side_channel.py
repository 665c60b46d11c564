"""The side channel over ZeroMQ: where a reader asks an engine for its NIXL metadata.

Shell. A client never sends a request the peer could not parse, because one such request ends the
listener of vLLM for good; our own listener counts what it cannot parse and goes on. There is no
authentication on this socket: keep it on an isolated network.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import zmq
import zmq.asyncio

from pdcluster_lease import defaults
from pdcluster_lease.errors import HandshakeTimeoutError, RemoteProtocolError, SideChannelError
from pdcluster_lease.wire import (
    AgentMetadata,
    HandshakePayload,
    HandshakeRequest,
    RequestForm,
    decode_agent_metadata,
    decode_clock,
    decode_handshake_payload,
    decode_handshake_request,
    encode_handshake_request,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HandshakeReply", "SideChannelAddress", "SideChannelListener", "handshake"]

_REQUEST_MAX_BYTES: Final = 4096
_REPLY_MAX_BYTES: Final = 16 * 1024 * 1024
_REQUEST_PARTS: Final = 3  # identity, the empty delimiter of REQ, the request
_REPLY_PARTS: Final = 2


@dataclass(frozen=True, slots=True)
class SideChannelAddress:
    """Where a side channel listens, as its engine advertises it."""

    host: str
    port: int

    @property
    def endpoint(self) -> str:
        """ZeroMQ's spelling."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeReply:
    """What one rank answered.

    Attributes:
        payload: The compatibility hash and the metadata behind it.
        peer_clock: The peer's monotonic clock, in seconds, about when it answered.
        clock_offset_s: Peer's clock less ours, by the midpoint of sending and receiving.
        round_trip_s: Seconds from sending to receiving; bounds the offset's error.
    """

    payload: HandshakePayload
    peer_clock: float
    clock_offset_s: float
    round_trip_s: float

    def agent_metadata(self) -> AgentMetadata:
        """Decode the inner metadata; do so only once the hash is acceptable.

        Raises:
            RemoteProtocolError: It is malformed.
        """
        return decode_agent_metadata(self.payload.agent_metadata_bytes)


async def handshake(
    at: SideChannelAddress,
    *,
    pp_rank: int = 0,
    tp_rank: int = 0,
    pp_size: int = 1,
    tp_size: int = 1,
    form: RequestForm = RequestForm.PP_AND_TP_RANK,
    timeout_s: float = defaults.HANDSHAKE_TIMEOUT_S,
) -> HandshakeReply:
    """Ask one existing rank of an engine for its NIXL metadata.

    Args:
        at: The side channel, from the engine's params.
        pp_rank: Pipeline-parallel rank, below ``pp_size``.
        tp_rank: Tensor-parallel rank, below ``tp_size``.
        pp_size: From the engine's params.
        tp_size: From the engine's params.
        form: What the engine's release speaks (:func:`~pdcluster_lease.wire.connector_release`).
        timeout_s: Seconds to wait for the reply; vLLM allows 5 per rank.

    Raises:
        HandshakeTimeoutError: No reply in time.
        LocalProtocolError: The rank does not exist; nothing was sent.
        RemoteProtocolError: The reply is malformed, or the address is none.
    """
    request = encode_handshake_request(
        HandshakeRequest(pp_rank=pp_rank, tp_rank=tp_rank),
        tp_size=tp_size,
        pp_size=pp_size,
        form=form,
    )
    sent_at = time.perf_counter()
    frames = await _ask(at, request, timeout_s=timeout_s)
    received_at = time.perf_counter()
    if len(frames) != _REPLY_PARTS:
        raise RemoteProtocolError(f"handshake reply of {len(frames)} frames, expected 2")
    peer_clock = decode_clock(frames[1])
    return HandshakeReply(
        payload=decode_handshake_payload(frames[0]),
        peer_clock=peer_clock,
        clock_offset_s=peer_clock - (sent_at + received_at) / 2,
        round_trip_s=received_at - sent_at,
    )


async def _ask(at: SideChannelAddress, request: bytes, *, timeout_s: float) -> list[bytes]:
    with zmq.asyncio.Context.instance().socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, _REPLY_MAX_BYTES)
        socket.setsockopt(zmq.IPV6, int(":" in at.host))
        try:
            socket.connect(at.endpoint)
            async with asyncio.timeout(timeout_s):
                await socket.send(request)
                return await socket.recv_multipart()
        except TimeoutError as error:
            raise HandshakeTimeoutError(
                f"no handshake reply from {at.endpoint} within {timeout_s} s"
            ) from error
        except zmq.ZMQError as error:
            # A host that is no address, for example: what a peer advertises is not ours to trust.
            raise RemoteProtocolError(
                f"{at.endpoint} can't be used as a side channel: {error}"
            ) from error


class SideChannelListener:
    """Answers handshakes for the ranks of one engine, whatever else it is sent.

    Args:
        at: Where to listen. The same address is advertised, as in vLLM: ``0.0.0.0`` would
            advertise ``0.0.0.0``.
        answer: Returns the payload of a rank, or None for a rank that does not exist.
        clock: Monotonic seconds, sent along with each reply.
    """

    def __init__(
        self,
        at: SideChannelAddress,
        *,
        answer: Callable[[HandshakeRequest], HandshakePayload | None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._at = at
        self._answer = answer
        self._clock = clock
        self._socket: zmq.asyncio.Socket | None = None
        self.num_answered = 0
        self.num_rejected = 0

    def bind(self) -> None:
        """Listen.

        Raises:
            SideChannelError: The address is taken, or is not this machine's.
        """
        socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, _REQUEST_MAX_BYTES)
        socket.setsockopt(zmq.IPV6, int(":" in self._at.host))
        try:
            socket.bind(self._at.endpoint)
        except zmq.ZMQError as error:
            socket.close()
            raise SideChannelError(
                f"the side channel cannot listen on {self._at.endpoint}: {error}. Free the port, "
                "or set VLLM_NIXL_SIDE_CHANNEL_HOST and VLLM_NIXL_SIDE_CHANNEL_PORT to an address "
                "of this machine that is free."
            ) from error
        self._socket = socket

    async def serve(self) -> None:
        """Answer until cancelled; :meth:`close` is still the caller's."""
        socket = self._socket
        assert socket is not None, "bind() comes first"
        while True:
            reply = self._reply(await socket.recv_multipart())
            if reply is not None:
                await socket.send_multipart(reply)

    def close(self) -> None:
        """Listen no more; idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _reply(self, frames: list[bytes]) -> list[bytes] | None:
        """Return the frames to send back, or None for what deserves no reply."""
        if len(frames) != _REQUEST_PARTS or frames[1]:
            self.num_rejected += 1
            return None
        try:
            payload = self._answer(decode_handshake_request(frames[2]))
        except RemoteProtocolError:
            payload = None
        if payload is None:
            self.num_rejected += 1
            return None
        self.num_answered += 1
        encode = msgspec.msgpack.encode
        return [frames[0], b"", encode(payload), encode(self._clock())]
