"""Running engine requests and shaping what comes out: shared by both completion APIs.

Shell on the event loop. A response that ends early, by a client that left or by a stop string, ends
its engine request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from starlette.responses import Response
from typing_extensions import override

from pdcluster_sim.api.rejections import RequestRejectedError, internal_error
from pdcluster_sim.core.messages import EngineRequest, FinishReason
from pdcluster_sim.core.text import TextBuffer
from pdcluster_sim.errors import EngineDeadError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from pdcluster_sim.api.sampling import Sampling
    from pdcluster_sim.core.results import Output
    from pdcluster_sim.frontend import Frontend

__all__ = [
    "Answer",
    "Delta",
    "EventStream",
    "collect",
    "deltas",
    "error_response",
    "json_response",
    "merged",
    "sse",
    "unless_gone",
]

DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """News of one choice.

    Attributes:
        index: Which choice.
        text: New text.
        tokens: New tokens.
        finish_reason: Why it ended, in the API's words, or None.
        stop_reason: The stop string or stop token that ended it, or None.
        output: The engine's output behind it.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    finish_reason: str | None
    stop_reason: str | int | None
    output: Output


@dataclass(slots=True)
class Answer:
    """One choice as it grows."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    last: Output | None = None

    def add(self, delta: Delta) -> None:
        """Append what is new."""
        self.text += delta.text
        self.tokens += delta.tokens
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason
        self.last = delta.output


async def deltas(
    frontend: Frontend, request: EngineRequest, sampling: Sampling, *, index: int
) -> AsyncGenerator[Delta, None]:
    """Run one engine request and yield its news, stop strings honoured.

    Raises:
        RequestRejectedError: The engine failed the request, or has ended: status 500.
    """
    buffer = TextBuffer(
        sampling.stops, include_stop=sampling.include_stop, skip_special=sampling.skip_special
    )
    try:
        async with aclosing(frontend.run(request)) as outputs:
            async for output in outputs:
                delta = _delta(buffer, output, request, index=index)
                if delta.finish_reason is not None and output.finish is None:
                    frontend.completed(request.request_id)
                yield delta
                if delta.finish_reason is not None:
                    return
    except EngineDeadError as error:
        raise internal_error() from error


def _delta(buffer: TextBuffer, output: Output, request: EngineRequest, *, index: int) -> Delta:
    if output.finish in {FinishReason.ERROR, FinishReason.ABORT}:
        raise internal_error()
    text, stop_reason = "", None
    for token in output.tokens:
        piece = buffer.push(token, is_last=output.finish is not None)
        text += piece.text
        if piece.stop is not None:
            return Delta(
                index=index, text=text, tokens=output.tokens, finish_reason="stop",
                stop_reason=piece.stop, output=output,
            )  # fmt: skip
        if output.finish is FinishReason.STOP and token in request.stop_token_ids:
            stop_reason = token
    return Delta(
        index=index,
        text=text,
        tokens=output.tokens,
        finish_reason=None if output.finish is None else output.finish.value,
        stop_reason=stop_reason,
        output=output,
    )


async def merged(streams: list[AsyncGenerator[Delta, None]]) -> AsyncGenerator[Delta, None]:
    """Yield the news of several choices as they come."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for delta in only:
                yield delta
        return
    queue: asyncio.Queue[Delta | Exception | None] = asyncio.Queue()
    tasks = [asyncio.create_task(_pump(stream, queue)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    stream: AsyncGenerator[Delta, None], queue: asyncio.Queue[Delta | Exception | None]
) -> None:
    try:
        async with aclosing(stream) as source:
            async for delta in source:
                queue.put_nowait(delta)
    except RequestRejectedError as error:
        queue.put_nowait(error)
    else:
        queue.put_nowait(None)


async def collect(stream: AsyncGenerator[Delta, None], *, num_answers: int) -> list[Answer]:
    """Read all choices to their ends."""
    answers = [Answer() for _ in range(num_answers)]
    async with aclosing(stream) as source:
        async for delta in source:
            answers[delta.index].add(delta)
    return answers


_T = TypeVar("_T")


async def unless_gone(request: Request, work: Awaitable[_T]) -> _T | None:
    """Await ``work``, but give it up when the client leaves.

    Starlette does not cancel an endpoint whose client has left.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, watch):
            if not each.done():
                each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events; the client's leaving closes their source at once.

    Args:
        events: Whole events, blank line included.
        cut_after: Close the body after this many events, without its terminator: a planned fault.
    """

    def __init__(
        self, events: AsyncGenerator[bytes, None], *, cut_after: int | None = None
    ) -> None:
        super().__init__(media_type="text/event-stream")
        # The length is not known, so the server frames the body in chunks.
        del self.headers["content-length"]
        self._events = events
        self._cut_after = cut_after

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, unless the client leaves first."""
        del scope
        sending = asyncio.ensure_future(self._send_all(send))
        watch = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sending, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (sending, watch):
                each.cancel()
            await asyncio.gather(sending, watch, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            left = self._cut_after
            async for event in events:
                if left == 0:
                    break
                await send({"type": "http.response.body", "body": event, "more_body": True})
                left = None if left is None else left - 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def sse(content: dict[str, object]) -> bytes:
    """Spell one event."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def json_response(content: object, *, status: int = 200) -> Response:
    """Spell one JSON answer."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def error_response(error: RequestRejectedError) -> Response:
    """Spell one error answer."""
    return json_response(error.body(), status=error.status)


Endpoint = Callable[["Request"], Awaitable[Response]]
