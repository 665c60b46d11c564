"""From a request body to engine requests: vLLM's checks, in vLLM's words.

Pure. What is rejected here was parsed, so a remote lease that came with it must be released; only
:func:`check_stream_options` belongs to the parsing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from pdcluster_sim.api.rejections import bad_request, unknown_model
from pdcluster_sim.core.messages import EngineRequest
from pdcluster_sim.core.tokens import VOCABULARY_SIZE, chat_prompt, encode

if TYPE_CHECKING:
    from pdcluster_lease.engine_params import RequestParams
    from pdcluster_lease.params import RequestId
    from pdcluster_sim.api.schemas import ChatRequest, CompletionRequest, SamplingFields

__all__ = [
    "Sampling",
    "chat_tokens",
    "check_logprobs",
    "check_model",
    "check_stream_options",
    "completion_prompts",
    "engine_requests",
    "read_sampling",
]

_MAX_CHOICES: Final = 16_384
_DEFAULT_COMPLETION_TOKENS: Final = 16
_GREEDY_BELOW: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to continue each prompt of one request.

    Attributes:
        num_choices: Answers per prompt.
        max_tokens: Cap on tokens, or None for all that fit.
        min_tokens: Tokens before which nothing ends the answer.
        ignore_eos: Never end by the end-of-sequence token.
        stops: Stop strings.
        stop_token_ids: Stop tokens.
        include_stop: Whether a stop string is part of the answer.
        skip_special: Whether special tokens are left out of the text.
        cache_salt: Separates prefix caches.
    """

    num_choices: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]
    include_stop: bool
    skip_special: bool
    cache_salt: str


def check_model(model: str | None, served: tuple[str, ...]) -> None:
    """Reject a model that is not served here; none at all means the one there is."""
    if model and model not in served:
        raise unknown_model(model, served)


def check_stream_options(body: SamplingFields) -> None:
    """Check that ``stream_options`` come with a stream; vLLM does so while it parses.

    Raises:
        RequestRejectedError: They don't, status 400.
    """
    if body.stream_options is not None and not body.stream_options.is_empty and not body.stream:
        raise bad_request(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            param="stream_options",
        )


def check_logprobs(wanted: int | None, *, most: int) -> None:
    """Check the number of log probabilities per token; -1 stands for the whole vocabulary.

    Args:
        wanted: What the client asks for, or None.
        most: What ``--max-logprobs`` allows.

    Raises:
        RequestRejectedError: It is more than that, status 400.
    """
    number = VOCABULARY_SIZE if wanted == -1 else wanted or 0
    most = VOCABULARY_SIZE if most == -1 else most
    if number > most:
        raise bad_request(
            f"Requested sample logprobs of {number}, which is greater than max allowed: {most} "
            f"(parameter=logprobs, value={number})",
            param="logprobs",
        )


def read_sampling(body: SamplingFields, *, max_tokens: int | None, max_model_len: int) -> Sampling:
    """Check the sampling fields.

    Args:
        body: The request.
        max_tokens: The cap that counts, or None.
        max_model_len: Most tokens of a prompt and its answer.

    Raises:
        RequestRejectedError: A value is out of range, status 400.
    """
    num_choices = 1 if body.n is None else body.n
    temperature = 1.0 if body.temperature is None else body.temperature
    if temperature < 0:
        raise bad_request(
            f"temperature must be non-negative, got {temperature}. "
            f"(parameter=temperature, value={temperature})",
            param="temperature",
        )
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise bad_request(
            f"top_p must be in (0, 1], got {body.top_p}. (parameter=top_p, value={body.top_p})",
            param="top_p",
        )
    _check_choices(num_choices, is_greedy=temperature < _GREEDY_BELOW)
    _check_caps(max_tokens, body.min_tokens, max_model_len)
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if not all(stops):
        raise bad_request("stop cannot contain an empty string.", param="stop")
    return Sampling(
        num_choices=num_choices,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        stops=stops,
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        include_stop=body.include_stop_str_in_output,
        skip_special=body.skip_special_tokens,
        cache_salt=body.cache_salt or "",
    )


def _check_choices(num_choices: int, *, is_greedy: bool) -> None:
    if num_choices < 1:
        raise bad_request(f"n must be at least 1, got {num_choices}.")
    if num_choices > _MAX_CHOICES:
        raise bad_request(
            f"n must be at most {_MAX_CHOICES}, got {num_choices}. To increase this limit, set the "
            "VLLM_MAX_N_SEQUENCES environment variable."
        )
    if num_choices > 1 and is_greedy:
        raise bad_request(f"n must be 1 when using greedy sampling, got {num_choices}.")


def _check_caps(max_tokens: int | None, min_tokens: int, max_model_len: int) -> None:
    if max_tokens is not None and max_tokens < 1:
        raise bad_request(
            f"max_tokens must be at least 1, got {max_tokens}. "
            f"(parameter=max_tokens, value={max_tokens})",
            param="max_tokens",
        )
    if max_tokens is not None and max_tokens > max_model_len:
        raise bad_request(
            f"max_tokens={max_tokens} cannot be greater than max_model_len={max_model_len}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={max_tokens})",
            param="max_tokens",
        )
    if min_tokens < 0:
        raise bad_request(f"min_tokens must be greater than or equal to 0, got {min_tokens}.")
    if max_tokens is not None and min_tokens > max_tokens:
        raise bad_request(
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}."
        )


def completion_prompts(body: CompletionRequest) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of every prompt of a completion request.

    Raises:
        RequestRejectedError: None, an empty one, or not what a prompt may be, status 400.
    """
    given = body.prompt
    if not given:
        raise bad_request(
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            param="prompt",
        )
    if isinstance(given, str) or (isinstance(given, list) and isinstance(given[0], int)):
        given = [given]
    if not isinstance(given, list):
        raise bad_request("prompt must be a text, token ids, or a list of either", param="prompt")
    return tuple(_prompt_tokens(each) for each in given)


def _prompt_tokens(given: object) -> tuple[int, ...]:
    if isinstance(given, str):
        return encode(given)
    if isinstance(given, Sequence) and all(
        isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in given
    ):
        for token in given:
            if token >= VOCABULARY_SIZE:
                raise bad_request(f"Token id {token} is out of vocabulary")
        return tuple(given)
    raise bad_request("prompt must be a text, token ids, or a list of either", param="prompt")


def chat_tokens(body: ChatRequest) -> tuple[int, ...]:
    """Return the token ids of a conversation, by the one chat template there is.

    Raises:
        RequestRejectedError: No message, or one that is not text, status 400.
    """
    tools: list[dict[str, object]] = []
    if body.tools:
        # Most templates put them before everything else, whatever ``tool_choice`` says.
        spelt = msgspec.json.encode(body.tools).decode()
        tools.append({"role": "tools", "content": spelt})
    return message_tokens(
        [*tools, *body.messages] if body.messages else (),
        generate=body.add_generation_prompt and not body.continue_final_message,
    )


def message_tokens(messages: Sequence[dict[str, object]], *, generate: bool) -> tuple[int, ...]:
    """Render messages and spell them in tokens; see :func:`chat_tokens`."""
    if not messages:
        raise bad_request(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    turns = [(_role(message), _text(message.get("content"))) for message in messages]
    return encode(chat_prompt(turns, generate=generate))


def _role(message: dict[str, object]) -> str:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise bad_request("every message needs a role", param="messages")
    return role


def _text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request("content must be a text or a list of parts", param="messages")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise bad_request("this is not a multimodal model: only text parts are taken")
        texts.append(text)
    return "\n".join(texts)


def engine_requests(
    prompt: tuple[int, ...],
    sampling: Sampling,
    *,
    request_ids: Sequence[RequestId],
    max_model_len: int,
    kv: RequestParams | None,
    is_chat: bool,
) -> tuple[EngineRequest, ...]:
    """Return one engine request per choice.

    Raises:
        RequestRejectedError: The prompt, or prompt and answer, are longer than the model allows.
    """
    room = max_model_len - len(prompt)
    if room < 1:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {len(prompt)} input tokens, which exceeds this limit even without any "
            "output tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={len(prompt)})",
            param="input_tokens",
        )
    wanted = sampling.max_tokens
    if wanted is None and not is_chat:
        wanted = min(_DEFAULT_COMPLETION_TOKENS, room)
    if wanted is not None and wanted > room:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {wanted} output tokens and your prompt contains {len(prompt)} input "
            f"tokens, for a total of {len(prompt) + wanted} tokens. Please reduce the length of "
            "the input prompt or the number of requested output tokens. "
            f"(parameter=input_tokens, value={len(prompt)})",
            param="input_tokens",
        )
    return tuple(
        EngineRequest(
            request_id=request_id,
            prompt=prompt,
            max_tokens=room if wanted is None else wanted,
            min_tokens=sampling.min_tokens,
            ignore_eos=sampling.ignore_eos,
            stop_token_ids=sampling.stop_token_ids,
            choice=choice,
            cache_salt=sampling.cache_salt,
            kv=kv,
        )
        for choice, request_id in enumerate(request_ids)
    )
