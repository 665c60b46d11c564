"""Answers of the engines: what a prefill leg must bring, and what a client gets of a decode leg.

Pure. Connector fields never reach a client, and the cached tokens a client is told are P's: D
counts the whole transferred prompt as cached.

Source: ``routing.md`` sections 6 and 7 of the design.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from pdcluster_lease.errors import RemoteProtocolError
from pdcluster_lease.params import DEFAULT_LIMITS, KVTransferParams, parse_params
from pdcluster_proxy.core.messages import EndpointView
from pdcluster_proxy.errors import HandOffError, UpstreamFailureError

__all__ = [
    "PrefillUsage",
    "check_side_channel",
    "client_answer",
    "client_usage",
    "is_connector_field",
    "parse_prefill_reply",
    "upstream_error_message",
]

_NULL: Final = Raw(b"null")
_ENCODER: Final = msgspec.json.Encoder()
_TOP: Final = msgspec.json.Decoder(dict[str, Raw])
_CONNECTOR_SUFFIX: Final = "_transfer_params"
FINISH_ERROR: Final = "error"


class PrefillUsage(msgspec.Struct, frozen=True, gc=False):
    """What P said about the prompt.

    Attributes:
        prompt_tokens: Tokens of the prompt, or None where P did not say.
        cached_tokens: How many of them P found in its prefix cache, or None likewise.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None


NO_PREFILL: Final = PrefillUsage()


class _Choice(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    message: Raw = _NULL
    text: Raw = _NULL


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _PrefillReply(msgspec.Struct, gc=False):
    choices: list[_Choice]
    usage: _Usage | None = None
    # `Raw | None` would decode into plain objects; a default keeps the slice.
    kv_transfer_params: Raw = _NULL


class _Answer(msgspec.Struct, gc=False):
    choices: list[_Choice]


class _Error(msgspec.Struct, gc=False):
    message: str = ""


class _ErrorBody(msgspec.Struct, gc=False):
    error: _Error | None = None
    message: str = ""


_PREFILL: Final = msgspec.json.Decoder(_PrefillReply)
_ANSWER: Final = msgspec.json.Decoder(_Answer)
_ERROR: Final = msgspec.json.Decoder(_ErrorBody)
DECODE_FAILURES: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What decoding bytes of others can raise."""


def parse_prefill_reply(body: bytes) -> tuple[KVTransferParams, PrefillUsage]:
    """Check P's answer and take the hand-off out of it.

    Raises:
        UpstreamFailureError: Not JSON, no choice, or the choice ended in an error (P5, P6).
        HandOffError: No ``kv_transfer_params``, or not usable (P5): nothing may be forwarded.
    """
    try:
        reply = _PREFILL.decode(body)
    except DECODE_FAILURES as error:
        raise UpstreamFailureError(f"The prefill answer is not what vLLM sends: {error}") from error
    if not reply.choices or reply.choices[0].finish_reason == FINISH_ERROR:
        raise UpstreamFailureError("The prefill engine answered without a usable choice.")
    raw = bytes(reply.kv_transfer_params)
    if raw == b"null":
        raise HandOffError(
            "The prefill answer carries no kv_transfer_params: is the engine started with "
            "--kv-transfer-config?"
        )
    try:
        params = parse_params(raw, DEFAULT_LIMITS)
    except RemoteProtocolError as error:
        raise HandOffError(
            f"The prefill answer's kv_transfer_params are unusable: {error}"
        ) from error
    usage = reply.usage or _Usage()
    details = usage.prompt_tokens_details
    cached = params.cached_tokens if details is None else details.cached_tokens
    return params, PrefillUsage(usage.prompt_tokens, cached)


def check_side_channel(params: KVTransferParams, endpoint: EndpointView) -> None:
    """Demand the side channel that discovery published: P names it itself.

    Raises:
        HandOffError: It names another one, which is never handed on.
    """
    host, port = endpoint.side_channel_host, endpoint.side_channel_port
    if params.port != port or params.host != host:
        raise HandOffError(
            f"The prefill answer names the side channel {params.host}:{params.port}, but discovery "
            f"published {host}:{port} for {endpoint.name}."
        )


def client_answer(body: bytes, prefill: PrefillUsage | None) -> bytes:
    """Make the client's answer of D's: connector fields out, P's cached tokens in.

    Args:
        body: D's whole answer, status 200.
        prefill: P's figures, or None for a request without a prefill leg.

    Raises:
        UpstreamFailureError: Not a JSON answer, no choice, no content, or a choice that ended in an
            error (D5, D6).
    """
    try:
        answer = _ANSWER.decode(body)
    except DECODE_FAILURES as error:
        raise UpstreamFailureError(f"The decode answer is not what vLLM sends: {error}") from error
    if not answer.choices:
        raise UpstreamFailureError("The decode engine answered without a choice.")
    for choice in answer.choices:
        if choice.finish_reason == FINISH_ERROR:
            raise UpstreamFailureError("The decode engine ended the answer with an error.")
        if choice.message == _NULL and choice.text == _NULL:
            raise UpstreamFailureError("The decode engine's choice holds no content.")
    has_params = b"_transfer_params" in body or b"\\u" in body
    has_cached = prefill is not None and b'"cached_tokens"' in body
    return _edited(body, prefill) if has_params or has_cached else body


def _edited(body: bytes, prefill: PrefillUsage | None) -> bytes:
    top = _TOP.decode(body)
    strip_connector_fields(top)
    usage = top.get("usage")
    if prefill is not None and usage is not None:
        top["usage"] = client_usage(usage, prefill)
    return _ENCODER.encode(top)


def strip_connector_fields(top: dict[str, Raw]) -> None:
    """Remove whatever engines tell each other from an answer's top level."""
    for name in [name for name in top if is_connector_field(name)]:
        del top[name]


def is_connector_field(name: str) -> bool:
    """Tell whether an answer's field is only meant for engines."""
    return name.endswith(_CONNECTOR_SUFFIX)


def client_usage(usage: Raw, prefill: PrefillUsage) -> Raw:
    """Put P's cached tokens into D's usage; everything else in it is D's own.

    D that does not report details keeps not reporting them. Where P said nothing the figure is 0,
    never D's.
    """
    try:
        top = _TOP.decode(usage)
    except DECODE_FAILURES:
        return usage
    details = top.get("prompt_tokens_details", _NULL)
    if bytes(details) == b"null":
        return usage
    try:
        inner = _TOP.decode(details)
    except DECODE_FAILURES:
        return usage
    inner["cached_tokens"] = Raw(b"%d" % (prefill.cached_tokens or 0))
    top["prompt_tokens_details"] = Raw(_ENCODER.encode(inner))
    return Raw(_ENCODER.encode(top))


def upstream_error_message(body: bytes) -> str:
    """Take the words out of an engine's 4xx body, whatever its shape; at most 2,000 characters."""
    try:
        parsed = _ERROR.decode(body)
        message = (parsed.error.message if parsed.error else "") or parsed.message
    except DECODE_FAILURES:
        message = body.decode("utf-8", "replace")
    return message.strip()[:2000] or "The engine rejected the request without saying why."
