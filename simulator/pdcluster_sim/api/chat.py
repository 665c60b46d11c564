"""``POST /v1/chat/completions``, in vLLM's shape.

Shell on the event loop. Tools are checked and become part of the prompt, but never called: every
answer is text.

Source:
    vLLM 0.32.0, ``entrypoints/openai/chat_completion`` and answers of a running engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from pdcluster_sim.api.endpoint import GeneratingEndpoint, Work
from pdcluster_sim.api.generating import Answer, Delta, sse
from pdcluster_sim.api.logprobs import chat_logprobs
from pdcluster_sim.api.sampling import (
    chat_tokens,
    check_logprobs,
    check_model,
    engine_requests,
    read_sampling,
)
from pdcluster_sim.api.schemas import ChatRequest
from pdcluster_sim.api.tools import check_tool_fields, check_tool_parsing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from pdcluster_lease.engine_params import RequestParams
    from pdcluster_sim.api.context import ApiContext
    from pdcluster_sim.api.usage import Usage

__all__ = ["ChatApi"]


class ChatApi(GeneratingEndpoint[ChatRequest]):
    """The endpoint.

    Args:
        context: What all endpoints share.
    """

    def __init__(self, context: ApiContext) -> None:
        super().__init__(
            context,
            body_type=ChatRequest,
            whole_object="chat.completion",
            chunk_object="chat.completion.chunk",
        )

    @override
    def _check_shape(self, body: ChatRequest) -> None:
        super()._check_shape(body)
        check_tool_fields(body)

    @override
    def _prepare(
        self, request: Request, body: ChatRequest, kv: RequestParams | None
    ) -> Work[ChatRequest]:
        context, settings = self._context, self._context.settings
        check_model(body.model, settings.served_names)
        check_tool_parsing(body, parses_tools=settings.parses_tools)
        cap = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        check_logprobs(body.top_logprobs if body.logprobs else None, most=settings.max_logprobs)
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
        return Work(
            api_id=api_id,
            created=context.created(),
            model=body.model or settings.served_names[0],
            body=body,
            sampling=sampling,
            requests=requests,
            num_prompt_tokens=len(prompt),
            kv=kv,
        )

    @override
    def _beside_usage(self, work: Work[ChatRequest]) -> dict[str, object]:
        return {
            "prompt_logprobs": None,
            "prompt_token_ids": _shown_prompt(work),
            "prompt_text": None,
        }

    @override
    def _choice(self, work: Work[ChatRequest], index: int, answer: Answer) -> dict[str, object]:
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
            "logprobs": _logprobs(work, answer.tokens),
            "finish_reason": self._finish_reason(answer),
            "stop_reason": answer.stop_reason,
            "token_ids": answer.tokens if work.body.return_token_ids else None,
            "routed_experts": None,
        }

    @override
    def _opening(self, work: Work[ChatRequest], usage: Usage | None) -> bytes:
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
        chunk["prompt_token_ids"] = _shown_prompt(work)
        chunk["prompt_text"] = None
        return sse(chunk)

    @override
    def _chunk_choice(self, work: Work[ChatRequest], delta: Delta) -> dict[str, object]:
        choice: dict[str, object] = {
            "index": delta.index,
            "delta": {"content": delta.text},
            "logprobs": _logprobs(work, delta.tokens),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        choice["token_ids"] = delta.tokens if work.body.return_token_ids else None
        return choice


def _shown_prompt(work: Work[ChatRequest]) -> tuple[int, ...] | None:
    return work.requests[0].prompt if work.body.return_token_ids else None


def _logprobs(work: Work[ChatRequest], tokens: Sequence[int]) -> dict[str, object] | None:
    return chat_logprobs(
        tokens, wanted=bool(work.body.logprobs), num_top=work.body.top_logprobs or 0
    )
