"""Request bodies, read as leniently as vLLM reads them.

Pure. Fields that change nothing in this engine are accepted unread, like all unknown ones.

Source:
    vLLM 0.32.0, ``entrypoints/openai/{completion,chat_completion}/protocol.py``.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from pdcluster_sim.api.rejections import RequestRejectedError, not_validated

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "SamplingFields",
    "StreamOptions",
    "TokenizeRequest",
    "parse_body",
]


class StreamOptions(msgspec.Struct):
    """``stream_options``."""

    include_usage: bool | msgspec.UnsetType | None = msgspec.UNSET
    continuous_usage_stats: bool | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for: vLLM takes that even without ``stream``."""
        return self.include_usage is msgspec.UNSET and self.continuous_usage_stats is msgspec.UNSET

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with a chunk of usage."""
        return self.include_usage is True

    @property
    def wants_continuous_usage(self) -> bool:
        """Whether every chunk carries usage."""
        return self.continuous_usage_stats is True


class SamplingFields(msgspec.Struct, kw_only=True):
    """What both completion APIs share."""

    model: str | None = None
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    echo: bool | None = False
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None  # opaque: read by the lease library


class CompletionRequest(SamplingFields, kw_only=True):
    """``POST /v1/completions``."""

    # A text, token ids, or a list of either: told apart by hand, msgspec cannot.
    prompt: Any = None
    logprobs: int | None = None
    add_special_tokens: bool = True
    best_of: int | None = None


class ChatRequest(SamplingFields, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]]  # content is a text or a list of parts, by the OpenAI API
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[dict[str, Any]] | None = None  # kept as sent: they become part of the prompt
    tool_choice: Any = msgspec.UNSET  # a word or an object; absent is not null


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /tokenize``: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: list[Annotated[int, Meta(ge=0)]]


_Body = TypeVar("_Body", bound=msgspec.Struct)
_UNREAD: Final = msgspec.Raw(b"")


def parse_body(raw: bytes, kind: type[_Body]) -> _Body:
    """Read a request body.

    Raises:
        RequestRejectedError: Not JSON, not an object, or a field without its type: status 400, and
            ``param`` says where.
    """
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except msgspec.ValidationError:
        raise _shape_fault(raw, kind) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise not_validated(
            "JSON decode error", kind="json_invalid", location="body", given=str(error)
        ) from error


def _shape_fault(raw: bytes, kind: type[_Body]) -> RequestRejectedError:
    """Find the first field without its type; only run once something is known to be wrong."""
    try:
        given = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, ValueError):
        return not_validated(
            "Input should be a valid dictionary or object to extract fields from",
            kind="model_attributes_type",
            location="body",
        )
    for field in msgspec.structs.fields(kind):
        value = given.get(field.name, _UNREAD)
        location = f"body.{field.name}"
        if value is _UNREAD:
            if field.required:
                return not_validated("Field required", kind="missing", location=location)
            continue
        try:
            msgspec.json.decode(value, type=field.type, strict=False)
        except msgspec.DecodeError as error:
            shown = bytes(value)[:100].decode(errors="replace")
            return not_validated(
                str(error).replace("'", "`"), kind="type_error", location=location, given=shown
            )
    return not_validated("Invalid body", kind="value_error", location="body")
