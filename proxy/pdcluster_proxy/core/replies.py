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
    "mentions_connector",
    "parse_prefill_reply",
    "rejection_body",
    "strip_connector_fields",
    "upstream_error_message",
]

_NULL: Final = Raw(b"null")
_ENCODER: Final = msgspec.json.Encoder()
_TOP: Final = msgspec.json.Decoder(dict[str, Raw])
_ITEMS: Final = msgspec.json.Decoder(list[Raw])
_CONNECTOR_SUFFIX: Final = "_transfer_params"
_CONNECTOR_MARK: Final = _CONNECTOR_SUFFIX.encode()
_ESCAPE: Final = b"\\u"
_MAX_DEPTH: Final = 32
"""Levels of an answer that are looked through; what lies deeper and looks suspicious is dropped."""

FINISH_FAILURES: Final = frozenset({"error", "abort"})
"""Finish reasons that end an answer before its end: it is never passed off as complete."""

_NO_REASON: Final = "The engine rejected the request without saying why."
_WITHHELD: Final = "The engine rejected the request; its words tell of the hand-off and stay here."
_MAX_MESSAGE_CHARS: Final = 2000


class PrefillUsage(msgspec.Struct, frozen=True, gc=False):
    """What P said about the prompt.

    Attributes:
        prompt_tokens: Tokens of the prompt, or None where P did not say.
        cached_tokens: How many of them P found in its prefix cache, or None likewise.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None


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
    error: Raw = _NULL
    object: str = ""


class _Error(msgspec.Struct, gc=False):
    message: str = ""


class _ErrorBody(msgspec.Struct, gc=False):
    error: _Error | None = None
    message: str = ""
    object: str = ""

    @property
    def words(self) -> str:
        """What it says, where it has the shape of an error."""
        if self.error is not None:
            return self.error.message
        return self.message if self.object == "error" else ""


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
    if not reply.choices or reply.choices[0].finish_reason in FINISH_FAILURES:
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
        HandOffError: It names another one, which is never handed on. A client reads the message,
            so it names no address.
    """
    host, port = endpoint.side_channel_host, endpoint.side_channel_port
    if params.port != port or params.host != host:
        raise HandOffError(
            "The prefill answer names another side channel than discovery published for "
            f"{endpoint.name}. Check its VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT."
        )


def client_answer(body: bytes, prefill: PrefillUsage | None) -> bytes:
    """Make the client's answer of D's: connector fields out, P's cached tokens in.

    Args:
        body: D's whole answer, status 200.
        prefill: P's figures, or None for a request without a prefill leg.

    Raises:
        UpstreamFailureError: Not a JSON answer, an error, no choice, no content, or a choice that
            ended in an error or was aborted (D5, D6).
    """
    try:
        answer = _ANSWER.decode(body)
        _check_text(body)
    except DECODE_FAILURES as error:
        raise UpstreamFailureError(f"The decode answer is not what vLLM sends: {error}") from error
    if answer.error != _NULL or answer.object == "error":
        raise UpstreamFailureError("The decode engine answered with an error.")
    if not answer.choices:
        raise UpstreamFailureError("The decode engine answered without a choice.")
    for choice in answer.choices:
        if choice.finish_reason in FINISH_FAILURES:
            raise UpstreamFailureError("The decode engine ended the answer before its end.")
        if choice.message == _NULL and choice.text == _NULL:
            raise UpstreamFailureError("The decode engine's choice holds no content.")
    has_params = mentions_connector(body)
    has_cached = prefill is not None and b'"cached_tokens"' in body
    return _edited(body, prefill) if has_params or has_cached else body


def _edited(body: bytes, prefill: PrefillUsage | None) -> bytes:
    top = _TOP.decode(body)
    strip_connector_fields(top)
    usage = top.get("usage")
    if prefill is not None and usage is not None:
        top["usage"] = client_usage(usage, prefill)
    return _ENCODER.encode(top)


def _check_text(body: bytes) -> None:
    """Demand UTF-8 all through: the decoder skips what it does not read."""
    if not body.isascii():
        body.decode()


def mentions_connector(data: bytes) -> bool:
    """Tell whether JSON may hold a connector field; an escape may hide its name."""
    return _CONNECTOR_MARK in data or _ESCAPE in data


def strip_connector_fields(top: dict[str, Raw], depth: int = 0) -> bool:
    """Remove whatever engines tell each other from an answer, at any depth.

    Values that are left alone stay byte for byte.

    Returns:
        Whether there was any.
    """
    num_fields = len(top)
    for name in [name for name in top if is_connector_field(name)]:
        del top[name]
    has_changed = len(top) != num_fields
    for name, value in top.items():
        stripped = _without_connector_fields(value, depth + 1)
        if stripped is not value:
            top[name] = stripped
            has_changed = True
    return has_changed


def _without_connector_fields(value: Raw, depth: int) -> Raw:
    data = bytes(value)
    start = data[:1]
    if start not in {b"{", b"["} or not mentions_connector(data):
        return value
    if depth > _MAX_DEPTH:
        return _NULL
    try:
        if start == b"{":
            fields = _TOP.decode(data)
            return Raw(_ENCODER.encode(fields)) if strip_connector_fields(fields, depth) else value
        items = _ITEMS.decode(data)
    except DECODE_FAILURES:
        return _NULL
    stripped = [_without_connector_fields(item, depth + 1) for item in items]
    has_changed = any(new is not old for new, old in zip(stripped, items, strict=True))
    return Raw(_ENCODER.encode(stripped)) if has_changed else value


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


def rejection_body(body: bytes) -> bytes | None:
    """Make the client's error body of an engine's 4xx: its own, connector fields out.

    Returns:
        None where it does not have the shape of an error, or speaks of the hand-off: then its
        words go into an error of ours (:func:`upstream_error_message`).
    """
    try:
        _check_text(body)
        top = _TOP.decode(body)
        words = _ERROR.decode(body).words.strip()
    except DECODE_FAILURES:
        return None
    if not words or _CONNECTOR_SUFFIX in words:
        return None
    if not mentions_connector(body):
        return body
    strip_connector_fields(top)
    stripped = _ENCODER.encode(top)
    return None if _CONNECTOR_MARK in stripped else stripped


def upstream_error_message(body: bytes) -> str:
    """Take the words out of an engine's 4xx body, whatever its shape; at most 2,000 characters."""
    text = body.decode("utf-8", "replace")
    try:
        parsed = _ERROR.decode(body)
    except DECODE_FAILURES:
        message = text
    else:
        message = parsed.words or parsed.message or text
    message = message.strip()
    if _CONNECTOR_SUFFIX in message:
        return _WITHHELD
    return message[:_MAX_MESSAGE_CHARS] if message.strip("{}[] ") else _NO_REASON
