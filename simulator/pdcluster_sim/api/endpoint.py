"""What both completion APIs do alike: read, check, run, answer whole or as a stream.

Shell on the event loop. The shape of answers is each API's own, in ``completions.py`` and
``chat.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from pdcluster_sim.api.generating import (
    DONE,
    Answer,
    Delta,
    EventStream,
    collect,
    deltas,
    error_response,
    json_response,
    merged,
    sse,
    unless_gone,
)
from pdcluster_sim.api.rejections import RequestRejectedError, internal_error
from pdcluster_sim.api.sampling import Sampling, check_stream_options
from pdcluster_sim.api.schemas import SamplingFields, parse_body
from pdcluster_sim.api.usage import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from pdcluster_lease.engine_params import RequestParams
    from pdcluster_sim.api.context import ApiContext
    from pdcluster_sim.core.messages import EngineRequest

__all__ = ["GeneratingEndpoint", "Work"]

BodyT = TypeVar("BodyT", bound=SamplingFields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[BodyT]):
    """One request, checked and ready to run.

    Attributes:
        api_id: Its id in all answers.
        created: Wall clock, whole seconds.
        model: The model's name in all answers.
        body: What the client sent.
        sampling: How to continue each prompt.
        requests: One per prompt and choice.
        num_prompt_tokens: Over all prompts.
        kv: What its ``kv_transfer_params`` ask, or None.
    """

    api_id: str
    created: int
    model: str
    body: BodyT
    sampling: Sampling
    requests: tuple[EngineRequest, ...]
    num_prompt_tokens: int
    kv: RequestParams | None


class GeneratingEndpoint(ABC, Generic[BodyT]):
    """One endpoint.

    Args:
        context: What all endpoints share.
        body_type: How its bodies are read.
        whole_object: ``object`` of an answer that is not streamed.
        chunk_object: ``object`` of each event of a stream.
    """

    def __init__(
        self,
        context: ApiContext,
        *,
        body_type: type[BodyT],
        whole_object: str,
        chunk_object: str,
    ) -> None:
        self._context = context
        self._body_type = body_type
        self._whole_object = whole_object
        self._chunk_object = chunk_object

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        try:
            body = parse_body(await request.body(), self._body_type)
            self._check_shape(body)
        except RequestRejectedError as error:
            return error_response(error)
        kv = self._context.kv_of(body)
        try:
            work = self._prepare(request, body, kv)
        except RequestRejectedError as error:
            # Rejected after parsing: nobody will read the blocks that came with it.
            self._context.frontend.reject_unread(kv)
            return error_response(error)
        if body.stream:
            cut = self._context.faults.take("truncate-stream")
            return EventStream(self._events(work), cut_after=None if cut is None else cut.chunks)
        try:
            answers = await unless_gone(
                request, collect(self._run(work), num_answers=len(work.requests))
            )
        except RequestRejectedError as error:
            return error_response(error)
        # None: the client has left, so whatever is returned goes nowhere.
        return json_response(None if answers is None else self._whole(work, answers))

    # --- what the APIs differ in ---

    def _check_shape(self, body: BodyT) -> None:
        """Reject what vLLM rejects while it parses: a lease that came with it is not released."""
        check_stream_options(body)

    @abstractmethod
    def _prepare(self, request: Request, body: BodyT, kv: RequestParams | None) -> Work[BodyT]:
        """Check a request that has been parsed, and split it into engine requests.

        Raises:
            RequestRejectedError: It is answered with an error; a lease that came with it is
                released.
        """

    @abstractmethod
    def _choice(self, work: Work[BodyT], index: int, answer: Answer) -> dict[str, object]:
        """Return one choice of an answer that is not streamed."""

    @abstractmethod
    def _chunk_choice(self, work: Work[BodyT], delta: Delta) -> dict[str, object]:
        """Return one choice of an event."""

    def _beside_usage(self, work: Work[BodyT]) -> dict[str, object]:
        """Return the fields of a whole answer that only this API has."""
        del work
        return {}

    def _opening(self, work: Work[BodyT], usage: Usage | None) -> bytes | None:
        """Return the event before the first token, with usage where that is given; or None."""
        del work, usage
        return None

    # --- what they share ---

    def _run(self, work: Work[BodyT]) -> AsyncGenerator[Delta, None]:
        return merged(
            [
                deltas(self._context.frontend, each, work.sampling, index=index)
                for index, each in enumerate(work.requests)
            ]
        )

    def _whole(self, work: Work[BodyT], answers: list[Answer]) -> dict[str, object]:
        usage = Usage(num_prompt=work.num_prompt_tokens)
        for answer in answers:
            usage.num_completion += len(answer.tokens)
            assert answer.last is not None
            self._context.account(usage, answer.last, work.kv)
        first = answers[0].last
        params = None if first is None else self._context.faults.spoil(first.params)
        return {
            "id": work.api_id,
            "object": self._whole_object,
            "created": work.created,
            "model": work.model,
            "choices": [self._choice(work, index, each) for index, each in enumerate(answers)],
            "service_tier": None,
            "system_fingerprint": self._context.fingerprint,
            "usage": usage.whole(details=self._context.settings.prompt_tokens_details),
            **self._beside_usage(work),
            "kv_transfer_params": params,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _finish_reason(self, answer: Answer) -> str | None:
        """Return why an answer ended, or the word of a planned fault."""
        if self._context.faults.take("finish-error") is not None:
            return "error"
        return answer.finish_reason

    async def _events(self, work: Work[BodyT]) -> AsyncGenerator[bytes, None]:
        usage = Usage(num_prompt=work.num_prompt_tokens)
        options = work.body.stream_options
        wants_usage = options is not None and options.wants_usage
        continuous = options is not None and options.wants_continuous_usage
        left = len(work.requests)
        has_begun = False
        try:
            async for delta in self._run(work):
                if not has_begun:
                    has_begun = True
                    opening = self._opening(work, usage if continuous else None)
                    if opening is not None:
                        yield opening
                usage.num_completion += len(delta.tokens)
                self._context.account(usage, delta.output, work.kv)
                left -= delta.finish_reason is not None
                chunk = self._chunk(work, [self._chunk_choice(work, delta)])
                if continuous:
                    chunk["usage"] = usage.counts()
                if not left and not wants_usage:
                    chunk["system_fingerprint"] = self._context.fingerprint
                yield sse(chunk)
        except RequestRejectedError:
            # vLLM opens the answer before it knows how the first step ended.
            opening = None if has_begun else self._opening(work, None)
            if opening is not None:
                yield opening
            yield b"data: " + msgspec.json.encode(internal_error().body()) + b"\n\n"
        else:
            if wants_usage:
                chunk = self._chunk(work, [])
                chunk["usage"] = usage.streamed(
                    details=self._context.settings.prompt_tokens_details
                )
                chunk["system_fingerprint"] = self._context.fingerprint
                yield sse(chunk)
        yield DONE

    def _chunk(self, work: Work[BodyT], choices: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": work.api_id,
            "object": self._chunk_object,
            "created": work.created,
            "model": work.model,
            "choices": choices,
        }
