"""Tasks that run for the life of a process: none of them ends unseen.

Shell. Two ways out, for a loop that ends by itself has failed: :func:`kept_up` runs it again where
the process holds what others still need (a worker's exchanges), :func:`first_end` ends the process
where another can take over from the beginning (the companion).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine

from pdcluster_proxy.errors import BackgroundEndedError

__all__ = ["first_end", "kept_up"]

_LOG = logging.getLogger(__name__)

BACKGROUND_PAUSE_S = 0.1
"""Before a background loop that failed runs again, in seconds."""

Loop = Callable[[], Coroutine[None, None, None]]
"""A background loop: it does not return."""


async def kept_up(run: Loop) -> None:
    """Run a background loop for ever: without its tick a worker could hand nothing over."""
    while True:
        try:
            await run()
        except Exception:  # noqa: BLE001 (an outermost loop: logged, and run again)
            _LOG.exception("background.failed")
            await asyncio.sleep(BACKGROUND_PAUSE_S)


async def first_end(loops: Collection[Loop]) -> None:
    """Run background loops until one of them ends, then cancel the others.

    Raises:
        BackgroundEndedError: One has ended; its own exception, where it has one, is the cause.
    """
    tasks = [asyncio.create_task(run()) for run in loops]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        cause = next((task.exception() for task in done if not task.cancelled()), None)
        raise BackgroundEndedError(
            "A background task has ended; it should run for ever."
        ) from cause
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
