"""``POST /v1/completions``, in vLLM's shape.

Shell on the event loop.

Source:
    vLLM 0.32.0, ``entrypoints/openai/completion`` and answers of a running engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from pdcluster_sim.api.endpoint import GeneratingEndpoint, Work
from pdcluster_sim.api.generating import Answer, Delta
from pdcluster_sim.api.logprobs import completion_logprobs
from pdcluster_sim.api.sampling import (
    check_logprobs,
    check_model,
    completion_prompts,
    engine_requests,
    read_sampling,
)
from pdcluster_sim.api.schemas import CompletionRequest
from pdcluster_sim.core.tokens import decode

if TYPE_CHECKING:
    from starlette.requests import Request

    from pdcluster_lease.engine_params import RequestParams
    from pdcluster_sim.api.context import ApiContext
    from pdcluster_sim.core.messages import EngineRequest

__all__ = ["CompletionsApi"]


class CompletionsApi(GeneratingEndpoint[CompletionRequest]):
    """The endpoint.

    Args:
        context: What all endpoints share.
    """

    def __init__(self, context: ApiContext) -> None:
        super().__init__(
            context,
            body_type=CompletionRequest,
            whole_object="text_completion",
            chunk_object="text_completion",
        )

    @override
    def _prepare(
        self, request: Request, body: CompletionRequest, kv: RequestParams | None
    ) -> Work[CompletionRequest]:
        context, settings = self._context, self._context.settings
        check_model(body.model, settings.served_names)
        check_logprobs(body.logprobs, most=settings.max_logprobs)
        sampling = read_sampling(
            body, max_tokens=body.max_tokens, max_model_len=settings.max_model_len
        )
        prompts = completion_prompts(body)
        api_id = context.api_id(request, "cmpl")
        requests: list[EngineRequest] = []
        for index, prompt in enumerate(prompts):
            requests += engine_requests(
                prompt,
                sampling,
                request_ids=[
                    context.engine_id_of(f"{api_id}-{index}") for _ in range(sampling.num_choices)
                ],
                max_model_len=settings.max_model_len,
                kv=kv,
                is_chat=False,
            )
        return Work(
            api_id=api_id,
            created=context.created(),
            model=body.model or settings.served_names[0],
            body=body,
            sampling=sampling,
            requests=tuple(requests),
            num_prompt_tokens=sum(map(len, prompts)),
            kv=kv,
        )

    @override
    def _choice(
        self, work: Work[CompletionRequest], index: int, answer: Answer
    ) -> dict[str, object]:
        body, prompt = work.body, work.requests[index].prompt
        return {
            "index": index,
            "text": (decode(prompt) if body.echo else "") + answer.text,
            "logprobs": completion_logprobs(answer.tokens, num_top=body.logprobs),
            "finish_reason": self._finish_reason(answer),
            "stop_reason": answer.stop_reason,
            "token_ids": answer.tokens if body.return_token_ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": prompt if body.return_token_ids else None,
            "routed_experts": None,
        }

    @override
    def _chunk_choice(self, work: Work[CompletionRequest], delta: Delta) -> dict[str, object]:
        body, prompt = work.body, work.requests[delta.index].prompt
        echo = decode(prompt) if body.echo and delta.output.is_first else ""
        shows_prompt = body.return_token_ids and delta.output.is_first
        return {
            "index": delta.index,
            "text": echo + delta.text,
            "logprobs": completion_logprobs(delta.tokens, num_top=body.logprobs),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "prompt_token_ids": prompt if shows_prompt else None,
            "token_ids": delta.tokens if body.return_token_ids else None,
        }
