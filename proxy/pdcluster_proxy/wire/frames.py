"""Length-prefixed frames between companion and workers.

Pure. Four bytes, big-endian, then that many bytes of msgpack.
"""

from __future__ import annotations

from pdcluster_proxy.errors import LinkError

__all__ = ["MAX_FRAME_BYTES", "FrameReader", "frame"]

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Larger frames are a bug: a snapshot of 1,000 endpoints is below 1 MiB."""

_PREFIX_BYTES = 4


def frame(payload: bytes) -> bytes:
    """Prefix a payload with its length."""
    assert len(payload) <= MAX_FRAME_BYTES
    return len(payload).to_bytes(_PREFIX_BYTES, "big") + payload


class FrameReader:
    """Cuts a byte stream into payloads."""

    # This is all the mutable state.
    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; give the payloads that are whole now.

        Raises:
            LinkError: A frame is longer than :data:`MAX_FRAME_BYTES`.
        """
        buffer = self._buffer
        buffer += data
        payloads: list[bytes] = []
        start = 0
        while len(buffer) - start >= _PREFIX_BYTES:
            size = int.from_bytes(buffer[start : start + _PREFIX_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise LinkError(f"A frame of {size} bytes is over {MAX_FRAME_BYTES}.")
            end = start + _PREFIX_BYTES + size
            if len(buffer) < end:
                break
            payloads.append(bytes(buffer[start + _PREFIX_BYTES : end]))
            start = end
        del buffer[:start]
        return payloads
