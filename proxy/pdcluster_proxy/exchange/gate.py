"""The gate: exchanges that run, exchanges that wait, exchanges that are turned away.

Shell around ``core/admission.py``. First come, first served; who leaves the queue frees its place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import assert_never

from pdcluster_proxy.core.admission import Admission, AdmissionLimits, decide
from pdcluster_proxy.errors import RejectedError

__all__ = ["Gate"]

_START = Admission.START


class Gate:
    """Bounds the exchanges of one worker.

    Args:
        limits: The worker's share of the configured bounds.
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        # This is all the mutable state.
        self.running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Exchanges in the queue."""
        return len(self._waiting)

    def enter_at_once(self) -> bool:
        """Take a place where one is free and nobody waits; :meth:`leave` gives it back."""
        verdict = decide(self._limits, running=self.running, waiting=len(self._waiting))
        if verdict is not _START:
            return False
        self.running += 1
        return True

    async def enter(self) -> None:
        """Wait for a place; :meth:`leave` gives it back.

        Raises:
            RejectedError: The queue is full, or the wait took longer than its bound (429).
        """
        match decide(self._limits, running=self.running, waiting=len(self._waiting)):
            case Admission.START:
                self.running += 1
            case Admission.WAIT:
                await self._wait()
            case Admission.REJECT:
                raise _rejected("rejected-queue-full", "The queue is full. Retry later.")
            case verdict:
                assert_never(verdict)

    def leave(self) -> None:
        """Give a place back; the longest waiting exchange takes it over."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._limits.queue_timeout_s):
                await turn
        except TimeoutError:
            self._abandon(turn)
            raise _rejected(
                "evicted-queue-timeout",
                f"Waited {self._limits.queue_timeout_s:g} s in the queue. Retry later.",
            ) from None
        except asyncio.CancelledError:
            self._abandon(turn)
            raise

    def _abandon(self, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            # The place came in the same pass as the end of the wait: hand it on.
            self.leave()
        elif turn in self._waiting:
            self._waiting.remove(turn)


def _rejected(code: str, message: str) -> RejectedError:
    return RejectedError(message, status_code=429, code=code, retry_after_s=1)
