"""Fields that the prefill leg overrides: checked here, because P never sees the client's value.

Pure. What D would reject after P has read and pinned the whole prompt costs a prefill, and P's
blocks for as long as the lease lasts. Only what every engine rejects is rejected here; the rest is
the engine's to judge.

Source: vLLM 0.32, entrypoints/openai (protocol models) and sampling_params.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from pdcluster_proxy.errors import RejectedError

__all__ = ["check_overridden"]

_CAPS: Final = ("max_tokens", "max_completion_tokens")
_FIELDS: Final = frozenset({*_CAPS, "min_tokens", "stream_options"})
_LONGEST: Final = 24
"""Bytes of the longest number that is worth a look."""
_NULL: Final = b"null"
_BOOLEANS: Final = {b"true": 1.0, b"false": 0.0}


def check_overridden(top: Mapping[str, msgspec.Raw], *, stream: bool) -> None:
    """Reject what would come to light on the decode leg only.

    Args:
        top: The top level of the client's body.
        stream: Whether the client asked for a stream.

    Raises:
        RejectedError: A field has a value that no engine takes (400); names it and the remedy.
    """
    if _FIELDS.isdisjoint(top):
        return
    caps = [cap for name in _CAPS if (cap := _count(top, name, at_least=1)) is not None]
    least = _count(top, "min_tokens", at_least=0)
    if least is not None and caps and least > caps[-1]:
        raise _rejected(f"'min_tokens' must be at most {caps[-1]}, the most tokens.", "min_tokens")
    options = top.get("stream_options")
    if options is None or bytes(options) == _NULL:
        return
    if bytes(memoryview(options)[:1]) != b"{":
        raise _rejected("'stream_options' must be an object.", "stream_options")
    if not stream:
        raise _rejected(
            "'stream_options' needs 'stream': true; add that or leave it out.", "stream_options"
        )


def _count(top: Mapping[str, msgspec.Raw], name: str, *, at_least: int) -> int | None:
    raw = top.get(name)
    if raw is None:
        return None
    text = bytes(memoryview(raw)[:_LONGEST])
    if text == _NULL:
        return None
    # Engines take "16", 16.0 and true as well.
    try:
        number = _BOOLEANS[text] if text in _BOOLEANS else float(text.strip(b'"'))
    except ValueError:
        number = math.nan
    if not number.is_integer() or number < at_least:
        raise _rejected(f"{name!r} must be a whole number of at least {at_least}.", name)
    return int(number)


def _rejected(message: str, param: str) -> RejectedError:
    return RejectedError(message, status_code=400, code="invalid-request", param=param)
