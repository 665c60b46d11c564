"""Log probabilities in shape: numbers that look like some, since there is no model.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdcluster_sim.core.tokens import VOCABULARY_SIZE, token_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["chat_logprobs", "completion_logprobs"]

_CHOSEN: Final = -0.25
_STEP: Final = -1.0


def _text(token: int) -> str:
    return token_bytes(token).decode(errors="replace")


def _top(token: int, number: int) -> list[tuple[int, float]]:
    """Return the chosen token and the ones after it in the vocabulary, less and less likely."""
    return [
        ((token + rank) % VOCABULARY_SIZE, _CHOSEN + rank * _STEP) for rank in range(max(1, number))
    ]


def completion_logprobs(tokens: Sequence[int], *, num_top: int | None) -> dict[str, object] | None:
    """Shape the ``logprobs`` of a completion choice; None where none were asked for."""
    if num_top is None:
        return None
    offsets, at = [], 0
    for token in tokens:
        offsets.append(at)
        at += len(_text(token))
    return {
        "text_offset": offsets,
        "token_logprobs": [_CHOSEN] * len(tokens),
        "tokens": [_text(token) for token in tokens],
        "top_logprobs": [
            {_text(other): value for other, value in _top(token, num_top)} for token in tokens
        ],
    }


def chat_logprobs(tokens: Sequence[int], *, wanted: bool, num_top: int) -> dict[str, object] | None:
    """Shape the ``logprobs`` of a chat choice; None where none were asked for."""
    if not wanted:
        return None
    return {
        "content": [
            {
                **_entry(token, _CHOSEN),
                "top_logprobs": [_entry(*each) for each in _top(token, num_top)][:num_top],
            }
            for token in tokens
        ]
    }


def _entry(token: int, logprob: float) -> dict[str, object]:
    return {"token": _text(token), "logprob": logprob, "bytes": list(token_bytes(token))}
