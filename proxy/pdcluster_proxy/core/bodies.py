"""Bodies: what a client may send, and what each leg is sent.

Pure. Only the top level of a body is decoded; every value stays a slice of what the client sent, so
nested values reach the engines byte for byte, and a key that stands twice collapses to its last
value: two parsers can't read two different requests. The engine validates everything else.

Source: the rules per field are ``routing.md`` sections 3 and 4 of the design.
"""

from __future__ import annotations

import functools
import re
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Raw

from pdcluster_lease.params import PREFILL_REQUEST_RAW
from pdcluster_proxy.core.overridden import check_overridden
from pdcluster_proxy.errors import RejectedError

__all__ = [
    "PATHS",
    "Api",
    "ClientRequest",
    "RequestClass",
    "decode_body",
    "parse_request",
    "prefill_body",
]

Top = dict[str, Raw]

_TOP: Final = msgspec.json.Decoder(dict[str, Raw])
_VALUE: Final = msgspec.json.Decoder()
_ENCODER: Final = msgspec.json.Encoder()

_ONE: Final = Raw(b"1")
_TRUE: Final = Raw(b"true")
_FALSE: Final = Raw(b"false")
_AUTO: Final = Raw(b'"auto"')
_PREFILL_PARAMS: Final = Raw(PREFILL_REQUEST_RAW)

MAX_CHOICES: Final = 8
"""Largest ``n`` a client may ask for. Source: CVE-2026-34756 (vLLM's own cap is 16,384)."""

_BYTES_PER_TOKEN: Final = 4
"""A rough figure for English text, good enough to compare one prompt with another."""

# Doors to the connector: whoever sets these reads other tenants' blocks, pins P's or kills D.
_CONNECTOR_FIELDS: Final = frozenset({"data_parallel_rank", "extra_body", "vllm_xargs"})
_CONNECTOR_PREFIX: Final = "bootstrap_"
_CONNECTOR_SUFFIX: Final = "_transfer_params"
# What all of the above have in common: names without any of these need no second look.
_CONNECTOR_MARKS: Final = re.compile(
    "|".join((_CONNECTOR_SUFFIX, _CONNECTOR_PREFIX, *sorted(_CONNECTOR_FIELDS))), re.IGNORECASE
)
_EMPTY_VALUES: Final = frozenset({b"null", b"{}"})

# The prefill leg makes one token: what asks for more, or could end it early, is taken out.
_NOT_FOR_PREFILL: Final = frozenset(
    {
        "stream_options",
        "min_tokens",
        "best_of",
        "n",
        "stop",
        "stop_token_ids",
        "logprobs",
        "top_logprobs",
        "return_token_ids",
    }
)


_DECIDES_CLASS: Final = frozenset({"n", "best_of", "use_beam_search", "prompt_logprobs"})


class Api(StrEnum):
    """The API families that take two legs."""

    COMPLETIONS = "completions"
    CHAT = "chat"


PATHS: Final = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions"}
"""Where each family is served, by us and by the engines."""


class RequestClass(StrEnum):
    """Which legs a request takes."""

    TWO_LEGS = "two-legs"
    DECODE_ONLY = "decode-only"
    """Several sequences, or rows about the prompt: one hand-off can't carry them."""


# Reading a member off its enum costs as much as a call.
_CHAT: Final = Api.CHAT
_TWO_LEGS: Final = RequestClass.TWO_LEGS


class ClientRequest(msgspec.Struct, frozen=True, gc=False):
    """One client request, its top level decoded.

    Attributes:
        api: The API family.
        top: The top level as the client sent it, connector fields removed.
        request_class: Which legs it takes.
        stream: Whether the client asked for a stream.
        prompt_tokens: Estimated prompt tokens, for load only.
    """

    api: Api
    top: Top
    request_class: RequestClass
    stream: bool
    prompt_tokens: int


def parse_request(body: bytes, *, api: Api, model: str) -> ClientRequest:
    """Read a client's body and reject what must not get through.

    Args:
        body: The whole request body.
        api: The API family of the route.
        model: The served model name.

    Raises:
        RejectedError: Not a JSON object, a connector field, a wrong type where we need one, a cap
            exceeded (400), or another model (404).
    """
    top = _decode_top(body)
    if _CONNECTOR_MARKS.search("\n".join(top)):
        _remove_connector_fields(top)
    _check_model(top, model)
    is_chat = api is _CHAT
    prompt_field = "messages" if is_chat else "prompt"
    prompt = top.get(prompt_field)
    if prompt is None:
        raise _rejected(f"The field {prompt_field!r} is required.", prompt_field)
    if is_chat and _start(prompt) != b"[":
        raise _rejected("'messages' must be a list of messages.", "messages")
    request_class, stream = _classify(top, api), _boolean(top, "stream")
    if request_class is _TWO_LEGS:
        check_overridden(top, stream=stream)
    return ClientRequest(
        api,
        top,
        request_class,
        stream,
        1 + len(body) // _BYTES_PER_TOKEN,
    )


def prefill_body(request: ClientRequest) -> bytes:
    """Make the prefill leg's body: the same prompt, one token, not streamed, with our template.

    What makes the prompt stays byte-equal on both legs, tools and their order included.
    """
    top = request.top.copy()
    for name in _NOT_FOR_PREFILL & top.keys():
        del top[name]
    top["max_tokens"] = _ONE
    if "max_completion_tokens" in top:
        # The newer cap wins in vLLM, so both must be one.
        top["max_completion_tokens"] = _ONE
    # A first token that matches a stop condition yields no params on older engines.
    top["ignore_eos"] = _TRUE
    top["stream"] = _FALSE
    choice = top.get("tool_choice")
    if choice is not None and bytes(choice) not in {b'"none"', b'"auto"', b"null"}:
        # Forced tools with one token are cut JSON, which vLLM's parser answers with 400. Not
        # "none": some servers then leave the tools out of the prompt.
        top["tool_choice"] = _AUTO
    top["kv_transfer_params"] = _PREFILL_PARAMS
    return _ENCODER.encode(top)


def decode_body(request: ClientRequest, params: bytes | None) -> bytes:
    """Make the decode leg's body: the client's own, plus P's object byte for byte.

    Args:
        request: The client's request.
        params: P's raw ``kv_transfer_params``, or None for a request without a prefill leg, which
            must carry no object at all.
    """
    if params is None:
        return _ENCODER.encode(request.top)
    top = request.top.copy()
    top["kv_transfer_params"] = Raw(params)
    return _ENCODER.encode(top)


def _decode_top(body: bytes) -> Top:
    if not body.strip():
        raise _rejected("The request body is empty; send a JSON object.", None)
    try:
        return _TOP.decode(body)
    except msgspec.ValidationError:
        raise _rejected("The request body must be a JSON object.", None) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _rejected(f"The request body is not valid JSON: {error}.", None) from None


def _remove_connector_fields(top: Top) -> None:
    for name in [name for name in top if _is_connector_field(name)]:
        if bytes(top[name]) not in _EMPTY_VALUES:
            raise _rejected(
                f"The field {name!r} is reserved for the engines; remove it from the request.", name
            )
        del top[name]


def _is_connector_field(name: str) -> bool:
    folded = name.lower()
    return (
        folded.endswith(_CONNECTOR_SUFFIX)
        or folded in _CONNECTOR_FIELDS
        or folded.startswith(_CONNECTOR_PREFIX)
    )


def _check_model(top: Top, model: str) -> None:
    raw = top.get("model")
    if raw is not None and bytes(raw) == _quoted(model):
        return
    given = _value(top, "model")
    if given is None:
        raise _rejected(f"The field 'model' is required; this cluster serves {model!r}.", "model")
    if not isinstance(given, str):
        raise _rejected(f"'model' must be a string; this cluster serves {model!r}.", "model")
    if given != model:
        raise RejectedError(
            f"The model {given[:256]!r} does not exist; this cluster serves {model!r}.",
            status_code=404,
            code="model-not-found",
            param="model",
        )


@functools.lru_cache(maxsize=8)
def _quoted(model: str) -> bytes:
    return msgspec.json.encode(model)


def _classify(top: Top, api: Api) -> RequestClass:
    """Name the legs: one hand-off carries one sequence of one prompt, and no rows about it."""
    if api is _CHAT and _DECIDES_CLASS.isdisjoint(top):
        return _TWO_LEGS
    several = _count(top, "n") > 1 or _count(top, "best_of") > 1
    if several or _boolean(top, "use_beam_search"):
        return RequestClass.DECODE_ONLY
    if _value(top, "prompt_logprobs") is not None:
        return RequestClass.DECODE_ONLY
    if api is Api.COMPLETIONS:
        if _boolean(top, "echo"):
            return RequestClass.DECODE_ONLY
        if _is_list_of_prompts(top["prompt"]):
            return RequestClass.DECODE_ONLY
    return RequestClass.TWO_LEGS


def _is_list_of_prompts(prompt: Raw) -> bool:
    """Tell a list of prompts from one prompt given as token ids."""
    text = _start(prompt, 64)
    if not text.startswith(b"["):
        return False
    inner = text[1:].lstrip()[:1]
    return not inner.isdigit()


def _start(raw: Raw, size: int = 1) -> bytes:
    """Peek at a value without copying all of it."""
    return bytes(memoryview(raw)[:size])


def _value(top: Top, name: str) -> object:
    raw = top.get(name)
    if raw is None:
        return None
    try:
        return _VALUE.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise _rejected(f"{name!r} is not a value this server can read.", name) from None


def _boolean(top: Top, name: str) -> bool:
    raw = top.get(name)
    if raw is None:
        return False
    text = bytes(raw)
    if text == b"true":
        return True
    if text in {b"false", b"null"}:
        return False
    raise _rejected(f"{name!r} must be true or false.", name)


def _count(top: Top, name: str) -> int:
    given = _value(top, name)
    if given is None:
        return 1
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise _rejected(f"{name!r} must be a whole number of at least 1.", name)
    if given > MAX_CHOICES:
        raise _rejected(f"{name!r} must be at most {MAX_CHOICES}.", name)
    return given


def _rejected(message: str, param: str | None) -> RejectedError:
    return RejectedError(message, status_code=400, code="invalid-request", param=param)
