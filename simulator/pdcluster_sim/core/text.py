"""From tokens to the text that leaves the engine, with stop strings held back.

Pure. One buffer per answer. Text that might be the beginning of a stop string is kept until it is
clear that it is not, so that a client never sees a part of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pdcluster_sim.core.tokens import decode, token_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Piece", "TextBuffer"]

_REPLACEMENT: Final = "\ufffd"
_UTF8_MAX_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token added.

    Attributes:
        text: New text to send, possibly none.
        stop: The stop string that ended the answer, or None.
    """

    text: str
    stop: str | None = None


class TextBuffer:
    """The text of one answer.

    Args:
        stops: Stop strings.
        include_stop: Whether the stop string itself is part of the answer.
        skip_special: Whether special tokens are left out.
    """

    def __init__(
        self, stops: Sequence[str] = (), *, include_stop: bool = False, skip_special: bool = True
    ) -> None:
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._skip_special = skip_special
        longest = max(map(len, self._stops), default=1)
        self._hold_back = 0 if include_stop else longest - 1
        # This is all the mutable state.
        self._text = ""
        self._num_sent = 0
        self._unspelt: list[int] = []

    def push(self, token: int, *, is_last: bool) -> Piece:
        """Add one token.

        Args:
            token: The token.
            is_last: Whether the answer ends with it: then nothing is held back.
        """
        added = self._spell(token, is_last=is_last)
        before = len(self._text)
        self._text += added
        stop = self._find_stop(before)
        if stop is not None:
            at, found = stop
            self._text = self._text[: at + len(found)] if self._include_stop else self._text[:at]
            return Piece(self._send(len(self._text)), found)
        return Piece(self._send(len(self._text) - (0 if is_last else self._hold_back)))

    def _spell(self, token: int, *, is_last: bool) -> str:
        """Spell the token, or keep it while its bytes are only a part of a character."""
        self._unspelt.append(token)
        text = decode(self._unspelt, skip_special=self._skip_special)
        num_bytes = sum(len(token_bytes(each)) for each in self._unspelt)
        if text.endswith(_REPLACEMENT) and num_bytes < _UTF8_MAX_BYTES and not is_last:
            return ""
        self._unspelt = []
        return text

    def _find_stop(self, before: int) -> tuple[int, str] | None:
        """Return where the first stop string begins that was not there before, and which it is."""
        found = None
        for stop in self._stops:
            at = self._text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0 and (found is None or at < found[0]):
                found = (at, stop)
        return found

    def _send(self, until: int) -> str:
        until = max(until, self._num_sent)
        text = self._text[self._num_sent : until]
        self._num_sent = until
        return text
