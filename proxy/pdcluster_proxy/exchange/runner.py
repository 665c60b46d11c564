"""Runs one exchange: steps the machine, executes its commands, feeds back what happened.

Shell. It decides nothing: what follows from an event stands in ``core/exchange_table.py``, what a
command does in ``exchange/actions.py``.

A client that leaves and a deadline that passes interrupt whatever is awaited: both cancel the task,
and the loop turns the cancellation into their event. While a stream is relayed they don't: there
the relay sees the client leave, and a deadline closes D's connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from pdcluster_proxy.core.bodies import ClientRequest
from pdcluster_proxy.core.exchange import (
    FINAL_STATES,
    Admitted,
    ClientGone,
    DeadlinePassed,
    Event,
    State,
)
from pdcluster_proxy.core.exchange_table import step
from pdcluster_proxy.core.failures import Failure, FailureKind
from pdcluster_proxy.core.headers import ClientHeaders
from pdcluster_proxy.errors import RejectedError
from pdcluster_proxy.exchange.actions import Actions
from pdcluster_proxy.exchange.answer import ClientSide
from pdcluster_proxy.exchange.worker import Worker

__all__ = ["Runner"]


class Runner:
    """One exchange.

    Args:
        worker: What the worker's exchanges share.
        request: The client's request.
        headers: What of its header concerns us.
        client: Its connection.
    """

    def __init__(
        self, worker: Worker, request: ClientRequest, headers: ClientHeaders, client: ClientSide
    ) -> None:
        self._worker = worker
        self._client = client
        # This is all the mutable state.
        self._actions = Actions(worker, request, headers, client)
        self._interrupt: Event | None = None
        self._task: asyncio.Task[object] | None = None
        self._admitted = False

    async def run(self) -> None:
        """Run to a final state; every way out gives back connections, counts and leases."""
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._worker.bounds.request_s, self._on_deadline)
        self._client.watch(self._on_gone)
        try:
            await self._drive()
        finally:
            self._client.unwatch()
            timer.cancel()
            self._actions.close()
            if self._admitted:
                self._worker.gate.leave()
            self._actions.story.end(self._actions.x.state, self._client.status)

    async def _drive(self) -> None:
        actions = self._actions
        event = await self._interruptible(self._admit())
        while event is not None:
            actions.x, commands = step(actions.x, event, now=self._worker.clock())
            event = await self._interruptible(actions.execute(commands))

    async def _admit(self) -> Event:
        try:
            await self._worker.gate.enter()
        except RejectedError as error:
            return DeadlinePassed(
                Failure(
                    FailureKind.BUSY,
                    error.status_code,
                    error.code,
                    str(error),
                    retry_after_s=error.retry_after_s,
                )
            )
        self._admitted = True
        return Admitted()

    async def _interruptible(self, work: Coroutine[None, None, Event | None]) -> Event | None:
        """Await, and turn our own interruption into its event."""
        try:
            return await work
        except asyncio.CancelledError:
            event, self._interrupt = self._interrupt, None
            # Somebody else's cancellation (the server's shutdown) goes on.
            if event is None or self._task is None or self._task.uncancel() > 0:
                raise
            return event

    def _on_gone(self) -> None:
        if self._actions.x.state is not State.STREAMING:
            self._break_in(ClientGone())

    def _on_deadline(self) -> None:
        if self._actions.x.state is State.STREAMING:
            self._actions.overrun()
            return
        message = f"No answer within {self._worker.bounds.request_s:g} s. Retry the request."
        failure = Failure(FailureKind.SILENT, 504, "request-timeout", message)
        self._break_in(DeadlinePassed(failure))

    def _break_in(self, event: Event) -> None:
        over = self._actions.x.state in FINAL_STATES
        if not over and self._interrupt is None and self._task is not None:
            self._interrupt = event
            self._task.cancel()
