"""The side channel's own thread: answers peers, asks peers.

Shell. Calls on this socket may wait for seconds, so they never happen on the engine's thread; and a
peer that answers slowly delays nobody else, because every request is a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pdcluster_lease.errors import ProtocolError
from pdcluster_lease.side_channel import (
    HandshakeReply,
    SideChannelAddress,
    SideChannelListener,
    handshake,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdcluster_lease.params import RemoteLease
    from pdcluster_lease.wire import HandshakePayload, HandshakeRequest

__all__ = ["HandshakeAnswered", "HandshakeThread", "HandshakeUnanswered"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandshakeAnswered:
    """A peer answered; whether it is acceptable is for the engine to say."""

    lease: RemoteLease
    reply: HandshakeReply


@dataclass(frozen=True, slots=True)
class HandshakeUnanswered:
    """A peer did not answer, or not in the protocol."""

    lease: RemoteLease
    reason: str


Answer: TypeAlias = HandshakeAnswered | HandshakeUnanswered


class HandshakeThread:
    """Listens on the side channel and shakes hands with peers.

    Args:
        at: Where to listen, and what grants advertise.
        deliver: Called from this thread with each answer; must not block.
    """

    def __init__(self, at: SideChannelAddress, *, deliver: Callable[[Answer], None]) -> None:
        self._at = at
        self._deliver = deliver
        self._payload: HandshakePayload | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._listening: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._bound = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="handshakes", daemon=True)

    def start(self, payload: HandshakePayload) -> None:
        """Listen, answering every rank-0 handshake with ``payload``.

        Raises:
            SideChannelError: The address is taken, or is not this machine's; anything else that
                went wrong on the thread is raised too.
        """
        self._payload = payload
        self._thread.start()
        self._bound.wait()
        if self._failure is not None:
            raise self._failure

    def ask(self, lease: RemoteLease) -> None:
        """Shake hands with a peer; the answer is delivered."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._begin, lease)

    def silence(self) -> None:
        """Answer no more, as vLLM's listener does after a malformed request.

        Waits until that holds, so that what is asked afterwards is surely not answered.
        """
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._silence(), self._loop).result()

    def stop(self) -> None:
        """Close the socket and end the thread; idempotent."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            if self._bound.is_set():
                raise
            self._failure = error  # start() raises it
        finally:
            self._bound.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        listener = SideChannelListener(self._at, answer=self._answer)
        listener.bind()
        self._bound.set()
        self._listening = asyncio.create_task(listener.serve())
        await self._stop.wait()
        for task in (self._listening, *self._tasks):
            task.cancel()
        await asyncio.gather(self._listening, *self._tasks, return_exceptions=True)
        listener.close()

    def _answer(self, request: HandshakeRequest) -> HandshakePayload | None:
        if (request.pp_rank, request.tp_rank) != (0, 0):
            _log.warning(
                "Rejected a handshake for pp rank %d, tp rank %d: there is one rank",
                request.pp_rank,
                request.tp_rank,
            )
            return None
        _log.debug("Received message for pp rank 0, tp rank 0")
        return self._payload

    async def _silence(self) -> None:
        # The socket stays open and takes requests, but nobody reads them: as seen from a peer
        # of a vLLM whose listener has ended.
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    def _begin(self, lease: RemoteLease) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._shake(lease))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shake(self, lease: RemoteLease) -> None:
        try:
            # One rank: the others of a larger peer hold parts this engine could not read.
            reply = await handshake(SideChannelAddress(lease.host, lease.port))
        except ProtocolError as error:
            self._deliver(HandshakeUnanswered(lease, str(error)))
        else:
            self._deliver(HandshakeAnswered(lease, reply))
