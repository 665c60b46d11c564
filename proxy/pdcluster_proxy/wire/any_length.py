"""The content length of an answer that ends with its connection.

Shell, a part of the protocol class. uvicorn chunks every answer of unknown length, which an
HTTP/1.0 client cannot read.
"""

from __future__ import annotations

from typing_extensions import override

__all__ = ["AnyLength"]


class AnyLength(int):
    """A length that no sum of bytes is too long or too short for."""

    @override
    def __sub__(self, _other: object) -> AnyLength:
        return self

    @override
    def __lt__(self, _other: object) -> bool:
        return False

    @override
    def __ne__(self, _other: object) -> bool:
        return False

    __hash__ = int.__hash__
