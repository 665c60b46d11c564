"""``POST /v1/chat/completions``, in vLLM's shape.

Shell on the event loop.

Source:
    vLLM 0.32.0, ``entrypoints/openai/chat_completion`` and answers of a running engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from pdcluster_sim.api.logprobs import chat_logprobs
from pdcluster_sim.api.refusals import RequestRefusedError, internal_error
from pdcluster_sim.api.sampling import (
    Sampling,
    chat_tokens,
    check_model,
    engine_requests,
    read_sampling,
)
from pdcluster_sim.api.schemas import ChatRequest, parse_body
from pdcluster_sim.api.usage import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from pdcluster_lease.engine_params import RequestParams
    from pdcluster_sim.api.context import ApiContext
    from pdcluster_sim.core.messages import EngineRequest

__all__ = ["ChatApi"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One request, checked and ready to run."""

    api_id: str
    created: int
    model: str
    body: ChatRequest
    sampling: Sampling
    requests: tuple[EngineRequest, ...]
    prompt: tuple[int, ...]
    kv: RequestParams | None


class ChatApi:
    """The endpoint.

    Args:
        context: What all endpoints share.
    """

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        try:
            body = parse_body(await request.body(), ChatRequest)
        except RequestRefusedError as error:
            return error_response(error)
        kv = self._context.kv_of(body)
        try:
            work = self._prepare(request, body, kv)
        except RequestRefusedError as error:
            # Refused after parsing: nobody will read the blocks that came with it.
            self._context.frontend.refuse_unread(kv)
            return error_response(error)
        if body.stream:
            cut = self._context.faults.take("truncate-stream")
            return EventStream(self._events(work), cut_after=None if cut is None else cut.chunks)
        try:
            answers = await unless_gone(
                request, collect(self._run(work), num_answers=len(work.requests))
            )
        except RequestRefusedError as error:
            return error_response(error)
        # None: the client has left, so whatever is returned goes nowhere.
        return json_response(None if answers is None else self._whole(work, answers))

    def _prepare(self, request: Request, body: ChatRequest, kv: RequestParams | None) -> _Work:
        context, settings = self._context, self._context.settings
        check_model(body.model, settings.served_names)
        cap = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        sampling = read_sampling(body, max_tokens=cap, max_model_len=settings.max_model_len)
        prompt = chat_tokens(body)
        api_id = context.api_id(request, "chatcmpl")
        requests = engine_requests(
            prompt,
            sampling,
            request_ids=[context.engine_id_of(api_id) for _ in range(sampling.num_choices)],
            max_model_len=settings.max_model_len,
            kv=kv,
            is_chat=True,
        )
        return _Work(
            api_id=api_id,
            created=context.created(),
            model=body.model or settings.served_names[0],
            body=body,
            sampling=sampling,
            requests=requests,
            prompt=prompt,
            kv=kv,
        )

    def _run(self, work: _Work) -> AsyncGenerator[Delta, None]:
        return merged(
            [
                deltas(self._context.frontend, each, work.sampling, index=index)
                for index, each in enumerate(work.requests)
            ]
        )

    # --- not streamed ---

    def _whole(self, work: _Work, answers: list[Answer]) -> dict[str, object]:
        usage = Usage(num_prompt=len(work.prompt))
        for answer in answers:
            usage.num_completion += len(answer.tokens)
            assert answer.last is not None
            self._context.account(usage, answer.last, work.kv)
        first = answers[0].last
        params = None if first is None else self._context.faults.spoil(first.params)
        return {
            "id": work.api_id,
            "object": "chat.completion",
            "created": work.created,
            "model": work.model,
            "choices": [self._choice(work, index, each) for index, each in enumerate(answers)],
            "service_tier": None,
            "system_fingerprint": self._context.fingerprint,
            "usage": usage.whole(details=self._context.settings.prompt_tokens_details),
            "prompt_logprobs": None,
            "prompt_token_ids": work.prompt if work.body.return_token_ids else None,
            "prompt_text": None,
            "kv_transfer_params": params,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, work: _Work, index: int, answer: Answer) -> dict[str, object]:
        failed = self._context.faults.take("finish-error") is not None
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": answer.text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": self._logprobs(work, answer.tokens),
            "finish_reason": "error" if failed else answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "token_ids": answer.tokens if work.body.return_token_ids else None,
            "routed_experts": None,
        }

    def _logprobs(
        self, work: _Work, tokens: list[int] | tuple[int, ...]
    ) -> dict[str, object] | None:
        return chat_logprobs(
            tokens, wanted=bool(work.body.logprobs), num_top=work.body.top_logprobs or 0
        )

    # --- streamed ---

    async def _events(self, work: _Work) -> AsyncGenerator[bytes, None]:
        usage = Usage(num_prompt=len(work.prompt))
        options = work.body.stream_options
        wants_usage = options is not None and options.wants_usage
        continuous = options is not None and options.wants_continuous_usage
        left = len(work.requests)
        has_begun = False
        try:
            async for delta in self._run(work):
                if not has_begun:
                    has_begun = True
                    yield self._opening(work, usage if continuous else None)
                usage.num_completion += len(delta.tokens)
                self._context.account(usage, delta.output, work.kv)
                left -= delta.finish_reason is not None
                chunk = self._chunk(work, [self._chunk_choice(work, delta)])
                if continuous:
                    chunk["usage"] = usage.counts()
                if not left and not wants_usage:
                    chunk["system_fingerprint"] = self._context.fingerprint
                yield sse(chunk)
        except RequestRefusedError:
            if not has_begun:
                # vLLM opens the answer before it knows how the first step ended.
                yield self._opening(work, None)
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

    def _opening(self, work: _Work, usage: Usage | None) -> bytes:
        choices: list[dict[str, object]] = [
            {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            for index in range(len(work.requests))
        ]
        chunk = self._chunk(work, choices)
        if usage is not None:
            chunk["usage"] = usage.counts()
        chunk["prompt_token_ids"] = work.prompt if work.body.return_token_ids else None
        chunk["prompt_text"] = None
        return sse(chunk)

    def _chunk(self, work: _Work, choices: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": work.api_id,
            "object": "chat.completion.chunk",
            "created": work.created,
            "model": work.model,
            "choices": choices,
        }

    def _chunk_choice(self, work: _Work, delta: Delta) -> dict[str, object]:
        choice: dict[str, object] = {
            "index": delta.index,
            "delta": {"content": delta.text},
            "logprobs": self._logprobs(work, delta.tokens),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        choice["token_ids"] = delta.tokens if work.body.return_token_ids else None
        return choice
