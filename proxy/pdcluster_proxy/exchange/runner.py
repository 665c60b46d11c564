"""Runs one exchange: steps the machine, executes its commands, feeds back what happened.

Shell. It decides nothing: what follows from an event stands in ``core/exchange_table.py``, what a
command does in the functions that ``exchange/actions.py`` lists.

A client that leaves and a deadline that passes interrupt whatever is awaited: both cancel the task,
and the loop turns the cancellation into their event. While a stream is relayed they don't: there
the relay sees the client leave, and a deadline closes D's connection.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pdcluster_proxy.core.bodies import ClientRequest
from pdcluster_proxy.core.exchange import (
    FINAL_STATES,
    Admitted,
    ClientGone,
    DeadlinePassed,
    DecodePicked,
    Event,
    PrefillPicked,
    State,
    UpstreamFailed,
)
from pdcluster_proxy.core.exchange_table import step
from pdcluster_proxy.core.failures import failure_of_rejection, proxy_stopping, request_timeout
from pdcluster_proxy.core.headers import ClientHeaders
from pdcluster_proxy.errors import RejectedError
from pdcluster_proxy.exchange.actions import ACTIONS
from pdcluster_proxy.exchange.answer import ClientSide
from pdcluster_proxy.exchange.running import RunningExchange
from pdcluster_proxy.exchange.worker import Worker

__all__ = ["Runner"]


_PICKED: Final = (PrefillPicked, DecodePicked)


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
        self._running = RunningExchange(worker, request, headers, client)
        self._interrupt: Event | None = None
        self._task: asyncio.Task[object] | None = None
        self._admitted = False

    async def run(self) -> None:
        """Run to a final state; every way out gives back connections, counts and leases."""
        worker, running, client = self._worker, self._running, self._client
        # With the loop given, it need not be looked up (a system call in 3.11).
        self._task = asyncio.current_task(asyncio.get_running_loop())
        worker.running[self] = running.deadline_at
        client.watch(self._on_gone)
        try:
            await self._drive()
        finally:
            client.unwatch()
            del worker.running[self]
            running.close()
            if self._admitted:
                worker.gate.leave()
            if running.x.state in FINAL_STATES:
                # Otherwise it was our own fault, and the endpoint counts it.
                running.story.end(running.x.state, client.status)

    async def _drive(self) -> None:
        running, clock = self._running, self._worker.clock
        event: Event | None = Admitted()
        owes_retry = False
        if self._worker.gate.enter_at_once():
            self._enter()
        else:
            event = await self._wait_admitted()
        while event is not None:
            running.x, commands = step(running.x, event, now=clock())
            if type(event) is UpstreamFailed:
                owes_retry = True
            elif owes_retry and type(event) in _PICKED:
                # Only now another leg goes out: a retry that nobody can serve costs nothing.
                owes_retry = False
                self._worker.spend_retry()
            try:
                # In order; at most the last one brings an event.
                for command in commands:
                    waits, act = ACTIONS[type(command)]
                    event = await act(running, command) if waits else act(running, command)
                if not commands:
                    event = None
            except asyncio.CancelledError:
                event = self._interruption()
                if event is None:
                    if running.x.state is State.STREAMING:
                        # The server's grace is over (S4): the truncation is made visible.
                        await self._client.end_stream(proxy_stopping())
                    raise

    def _interruption(self) -> Event | None:
        """Tell our own interruption from somebody else's cancellation, which goes on."""
        event, self._interrupt = self._interrupt, None
        if event is None or self._task is None or self._task.uncancel() > 0:
            return None
        return event

    async def _wait_admitted(self) -> Event:
        try:
            await self._worker.gate.enter()
        except RejectedError as error:
            return DeadlinePassed(failure_of_rejection(error))
        except asyncio.CancelledError:
            event = self._interruption()
            if event is None:
                raise
            return event
        self._enter()
        return Admitted()

    def _enter(self) -> None:
        self._admitted = True
        self._worker.num_uncredited += 1

    def _on_gone(self) -> None:
        if self._running.x.state is not State.STREAMING:
            self._break_in(ClientGone())

    def on_deadline(self) -> None:
        """End it: the overall deadline has passed."""
        if self._running.x.state is State.STREAMING:
            self._running.overrun()
            return
        self._break_in(DeadlinePassed(request_timeout(self._worker.bounds.request_s)))

    def _break_in(self, event: Event) -> None:
        over = self._running.x.state in FINAL_STATES
        if not over and self._interrupt is None and self._task is not None:
            self._interrupt = event
            self._task.cancel()
