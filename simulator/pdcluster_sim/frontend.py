"""Between HTTP and the engine's thread: who submitted what, and where its outputs go.

Shell. Lives on the event loop; the engine's news arrive there by ``call_soon_threadsafe``.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pdcluster_sim.core.messages import Cancel, EngineRequest, FinishReason, RejectUnread, Submit
from pdcluster_sim.engine_thread import AbortAll, Drain, EngineNews
from pdcluster_sim.errors import EngineDeadError
from pdcluster_sim.logs import log_notices

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pdcluster_lease.engine_params import RequestParams
    from pdcluster_lease.params import RequestId
    from pdcluster_sim.core.results import EngineGauges, Output
    from pdcluster_sim.engine_thread import EngineThread, Mail
    from pdcluster_sim.metrics import EngineMetrics

__all__ = ["Frontend"]


class Frontend:
    """The event loop's view of one engine.

    Args:
        metrics: Fed with all news.

    Attributes:
        died: Set when the engine has ended by itself.
        death: Why, or None.
        gauges: The figures after the engine's last pass that changed any.
        is_draining: Whether new requests are rejected.
    """

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._engine: EngineThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # This is all the mutable state.
        self._queues: dict[RequestId, asyncio.Queue[Output | None]] = {}
        self._completed: set[RequestId] = set()
        self._drained = asyncio.Event()
        self.died = asyncio.Event()
        self.gauges: EngineGauges | None = None
        self.death: str | None = None
        self.is_draining = False

    def attach(self, engine: EngineThread, loop: asyncio.AbstractEventLoop) -> None:
        """Name the engine and the loop that its news are delivered on."""
        self._engine = engine
        self._loop = loop

    def publish(self, news: EngineNews) -> None:
        """Take news from the engine's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._receive, news)

    def post(self, mail: Mail) -> None:
        """Hand something to the engine's thread."""
        assert self._engine is not None
        self._engine.post(mail)

    def reject_unread(self, kv: RequestParams | None) -> None:
        """Release the remote lease of a request that is rejected before it is submitted."""
        if kv is not None and kv.do_remote_prefill:
            self.post(RejectUnread(kv))

    def completed(self, request_id: RequestId) -> None:
        """Say that a stop string has ended an answer.

        The engine aborts it then, but it is counted as stopped, as in vLLM.
        """
        self._completed.add(request_id)

    async def run(self, request: EngineRequest) -> AsyncGenerator[Output, None]:
        """Submit a request and yield its outputs; leaving early cancels it.

        Raises:
            EngineDeadError: The engine has ended.
        """
        if self.death is not None:
            raise EngineDeadError(self.death)
        queue: asyncio.Queue[Output | None] = asyncio.Queue()
        self._queues[request.request_id] = queue
        has_ended = False
        self.post(Submit(request))
        try:
            while not has_ended:
                output = await queue.get()
                if output is None:
                    raise EngineDeadError(self.death or "the engine has ended")
                has_ended = output.finish is not None
                yield output
        finally:
            del self._queues[request.request_id]
            if not has_ended and self.death is None:
                self.post(Cancel(request.request_id))

    async def drain(self, *, timeout_s: float) -> bool:
        """Wait until no request runs and no lease is held, at most ``timeout_s``.

        Returns:
            Whether nothing was left.
        """
        self.is_draining = True
        if not timeout_s:
            self.post(AbortAll())
            return False
        self.post(Drain())
        try:
            async with asyncio.timeout(timeout_s):
                await self._drained.wait()
        except TimeoutError:
            self.post(AbortAll())
            return False
        return True

    def _receive(self, news: EngineNews) -> None:
        self._metrics.record(replace(news, outputs=tuple(map(self._counted, news.outputs))))
        log_notices(news.notices, now=time.monotonic())
        if news.gauges is not None:
            self.gauges = news.gauges
        for output in news.outputs:
            queue = self._queues.get(output.request_id)
            if queue is not None:
                queue.put_nowait(output)
        if news.is_drained:
            self._drained.set()
        if news.death is not None and self.death is None:
            self.death = news.death
            for queue in self._queues.values():
                queue.put_nowait(None)
            self.died.set()

    def _counted(self, output: Output) -> Output:
        """Return an output as the metrics shall see it."""
        if output.finish is None or output.request_id not in self._completed:
            return output
        self._completed.discard(output.request_id)
        return replace(output, finish=FinishReason.STOP)
