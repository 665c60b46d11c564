"""Reads plain JSON of the API server: whatever is missing or of another type is absent.

Pure. Newer operators and servers may say more, older ones less; neither is a failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

__all__ = ["Raw", "at", "int_at", "maps_at", "printable", "text_at"]

Raw: TypeAlias = Mapping[str, object]
"""One JSON object."""


def at(raw: object, *path: str) -> object:
    """Follow keys; None where there is nothing."""
    for key in path:
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    return raw


def text_at(raw: object, *path: str) -> str:
    """A text, safe to print; empty where there is none."""
    found = at(raw, *path)
    return printable(found) if isinstance(found, str) else ""


def int_at(raw: object, *path: str) -> int | None:
    """A whole number; None where there is none."""
    found = at(raw, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def maps_at(raw: object, *path: str) -> Iterator[Raw]:
    """The objects of a list."""
    found = at(raw, *path)
    if isinstance(found, list | tuple):
        yield from (each for each in found if isinstance(each, Mapping))


def printable(text: str) -> str:
    """Put a text on one line and leave out what a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
