"""Sentences out of words of our own and of others'.

Pure. Others end what they say with a full stop or without one, and a line of theirs may be long:
what is told has one full stop after each sentence, and three where we cut.
"""

from __future__ import annotations

from typing import Final

__all__ = ["cut", "joined", "without_end"]

_CUT: Final = "..."
_ENDS: Final = (_CUT, "!", "?")


def cut(said: str, longest: int) -> str:
    """Words on one line; three full stops where they were longer.

    Args:
        said: The words.
        longest: The most characters to keep.
    """
    text = " ".join(said.split())
    return text if len(text) <= longest else text[:longest].rstrip(" .") + _CUT


def without_end(said: str) -> str:
    """Words without their full stop, but with the three that tell of a cut."""
    return said if said.endswith(_CUT) else said.rstrip(".")


def joined(*parts: str) -> str:
    """Make each part a sentence, one after the other; empty ones are left out."""
    return " ".join(_sentence(part) for part in map(str.strip, parts) if part)


def _sentence(part: str) -> str:
    return part if part.endswith(_ENDS) else without_end(part) + "."
