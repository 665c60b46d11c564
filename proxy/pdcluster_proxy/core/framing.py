"""Framing of a relayed event stream: chunks off, events whole, chunks on.

Pure. Theory of operation. An engine sends server-sent events in HTTP chunks, and reads cut both at
any byte. What the client gets must hold three promises: every event arrives once, in order and
unchanged, save those the editor changes; only whole events are forwarded, so that an error event of
ours can follow at any time; no field that must not leave the proxy leaves it in two halves.

* Fast path: nothing is held back, the read is made of whole chunks, each of which ends on an event
  boundary, and none of :data:`~pdcluster_proxy.core.ports.EDIT_MARKS` is in it. The read goes out
  as it came. As each chunk is whole events, no mark can hide in two chunks.
* Slow path: everything else. Chunk framing comes off, complete events are taken from the front,
  those with a mark are edited, the rest is held, and what goes out is one new chunk.

Lines may end in LF or CRLF (a stream with bare CR is held until it ends or breaks the cap: no
engine sends one). Deliberately not here: reading, writing, time, and the validity of the HTTP
message, which llhttp has judged before.

Source:
    WHATWG HTML, server-sent events; RFC 9112 section 7.1.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import ClassVar, assert_never

from pdcluster_proxy.core.ports import EDIT_MARKS, EventEditor
from pdcluster_proxy.core.sse import is_whole_event
from pdcluster_proxy.errors import UpstreamFailureError

__all__ = [
    "MAX_EVENT_BYTES",
    "ChunkDecoder",
    "FramingError",
    "StreamFraming",
    "first_event",
    "frame_chunk",
    "is_whole_events",
]

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Largest event held back, in bytes (a branch of vllm-router has the same figure)."""

_MAX_LINE_BYTES = 16 * 1024
"""Longest chunk-size or trailer line, in bytes; llhttp itself sets no bound on extensions."""

_EVENT_AND_CHUNK_END = (b"\n\n\r\n", b"\n\r\n\r\n")
_EVENT_END = re.compile(rb"\n\r?\n")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?\r?", re.DOTALL)
_TERMINATOR = re.compile(rb"(?:^|\n)data: ?\[DONE\][ \t]*\r?\n")
_UNREAD_LINES = re.compile(
    rb"(?:\xef\xbb\xbf)?+(?:(?::|id:|retry:)[^\r\n]*+\r?\n|\r?\n)*+",
)
"""Lines at a stream's start that tell a client nothing: comments, blank lines."""
_MAX_UNREAD_BYTES = 64 * 1024
_SIZES = {b"%x" % size: size for size in range(1, 2048)}
"""Sizes of common chunks as written: looking one up is faster than reading it."""
_USAGE, _PARAMS, _ERROR, _ABORT, _DONE, _EVENT, _ESCAPE = EDIT_MARKS


class FramingError(UpstreamFailureError):
    """The engine's chunk framing is malformed, or an event is larger than the cap."""

    reason: ClassVar[str] = "BadFraming"


class _Expect(Enum):
    """What a chunk decoder's next byte belongs to."""

    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    NOTHING = auto()


class ChunkDecoder:
    """Takes the chunk framing off one body, fed in pieces cut at any byte.

    Attributes:
        excess: Bytes seen after the end of the body; more than none means a broken peer.
    """

    # This is all the mutable state.
    __slots__ = ("_expect", "_left", "_line", "excess")

    def __init__(self) -> None:
        self._expect = _Expect.SIZE
        self._left = 0
        self._line = b""
        self.excess = 0

    @property
    def is_at_boundary(self) -> bool:
        """Whether the next byte starts a chunk."""
        return self._expect is _Expect.SIZE and not self._line

    @property
    def is_complete(self) -> bool:
        """Whether the last chunk and the trailers were seen."""
        return self._expect is _Expect.NOTHING

    def feed(self, data: bytes) -> bytes:
        """Decode the next piece.

        Returns:
            The payload in it; may be empty.

        Raises:
            FramingError: A chunk size is no hexadecimal number, a chunk is not followed by CRLF,
                or a line is longer than 16 KiB.
        """
        payload: list[bytes] = []
        pos, end = 0, len(data)
        while pos < end:
            match self._expect:
                case _Expect.DATA:
                    taken = data[pos : pos + self._left]
                    payload.append(taken)
                    pos += len(taken)
                    self._left -= len(taken)
                    if not self._left:
                        self._expect, self._left = _Expect.DATA_END, 2
                case _Expect.DATA_END:
                    taken = data[pos : pos + self._left]
                    if not b"\r\n"[2 - self._left :].startswith(taken):
                        raise FramingError(
                            "A chunk of the engine's answer is not followed by CRLF."
                        )
                    pos += len(taken)
                    self._left -= len(taken)
                    if not self._left:
                        self._expect = _Expect.SIZE
                case _Expect.SIZE | _Expect.TRAILER:
                    pos = self._take_line(data, pos)
                case _Expect.NOTHING:
                    self.excess += end - pos
                    break
                case _ as never:
                    assert_never(never)
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _take_line(self, data: bytes, pos: int) -> int:
        line_end = data.find(b"\n", pos)
        if line_end < 0:
            self._line += data[pos:]
            self._check_line()
            return len(data)
        self._line += data[pos:line_end]
        self._check_line()
        line, self._line = self._line, b""
        if self._expect is _Expect.TRAILER:
            if line in (b"\r", b""):
                self._expect = _Expect.NOTHING
        else:
            found = _CHUNK_SIZE.fullmatch(line)
            if found is None:
                raise FramingError(f"The engine sent {line[:40]!r} where a chunk size belongs.")
            self._left = int(found[1], 16)
            self._expect = _Expect.DATA if self._left else _Expect.TRAILER
        return line_end + 1

    def _check_line(self) -> None:
        if len(self._line) > _MAX_LINE_BYTES:
            raise FramingError(
                f"The engine sent a chunk-size or trailer line over {_MAX_LINE_BYTES} bytes."
            )


class StreamFraming:
    """Forwards one event stream, from the engine's framing to the client's.

    Args:
        decoder: The body's chunk decoder, which may have decoded ``held`` already; None where the
            body comes without chunk framing (by length, or until the connection closes).
        held: Payload decoded before the relay began, in bytes.
        editor: Gets each whole event that contains a mark.
        frames_output: Give chunks to the client; False where the server frames messages itself.
        max_event_bytes: Largest event held back.

    Attributes:
        is_clean: Nothing is held back and the next byte starts a chunk: a read of whole events may
            go out as it comes.
        is_terminated: The engine has sent the terminator, ``data: [DONE]``; what it sends after
            that is dropped.
    """

    # This is all the mutable state.
    __slots__ = (
        "_decoder",
        "_editor",
        "_frames_output",
        "_held",
        "_max_event_bytes",
        "_scanned",
        "is_clean",
        "is_terminated",
    )

    def __init__(
        self,
        *,
        decoder: ChunkDecoder | None,
        editor: EventEditor,
        held: bytes = b"",
        frames_output: bool = True,
        max_event_bytes: int = MAX_EVENT_BYTES,
    ) -> None:
        self._decoder = decoder
        self._editor = editor
        self._frames_output = frames_output
        self._max_event_bytes = max_event_bytes
        self._held = bytearray(held)
        self._scanned = 0
        self.is_terminated = False
        self.is_clean = False
        self._note_state()

    @property
    def excess(self) -> int:
        """Bytes the engine sent after the end of a chunked body."""
        return 0 if self._decoder is None else self._decoder.excess

    def forward(self, data: bytes) -> bytes:
        """Take one read of the body and give what the client gets for it.

        Returns:
            Bytes to write now; empty where nothing is complete yet.

        Raises:
            FramingError: The framing is malformed, or an event is larger than the cap.
        """
        if self.is_clean and is_whole_events(data):
            return data
        return self._forward_slowly(data)

    def finish(self) -> bytes:
        """Give what is left once the body has ended.

        A last event without its blank line is completed with one, so that it counts and so that
        an event of ours may follow. Half an event is dropped: it is not one.
        """
        rest = bytes(self._held)
        self._held.clear()
        if not is_whole_event(rest):
            return b""
        return self._emit(rest + (b"\n" if rest.endswith(b"\n") else b"\n\n"))

    def _forward_slowly(self, data: bytes) -> bytes:
        held = self._held
        payload = data if self._decoder is None else self._decoder.feed(data)
        if self.is_terminated:
            return b""
        held += payload
        # A boundary may straddle the old end by three bytes: "\n\r" was there, "\n" came.
        start = max(0, self._scanned - 3)
        lf, crlf = held.rfind(b"\n\n", start), held.rfind(b"\n\r\n", start)
        cut = max(0 if lf < 0 else lf + 2, 0 if crlf < 0 else crlf + 3)
        whole = bytes(held[:cut])
        del held[:cut]
        self._scanned = len(held)
        if len(held) > self._max_event_bytes:
            raise FramingError(
                f"An event of the engine is larger than {self._max_event_bytes} bytes."
            )
        out = self._emit(whole) if whole else b""
        self._note_state()
        return out

    def _note_state(self) -> None:
        """Decide whether the next read may take the fast path."""
        self.is_clean = (
            self._frames_output
            and self._decoder is not None
            and not self._held
            and not self.is_terminated
            and self._decoder.is_at_boundary
        )

    def _emit(self, whole: bytes) -> bytes:
        """Edit what must be edited in these whole events, and frame them."""
        whole = b"" if self.is_terminated else self._edited(whole)
        if not whole:
            return b""
        return frame_chunk(whole) if self._frames_output else whole

    def _edited(self, whole: bytes) -> bytes:
        if not _has_mark(whole):
            return whole
        out: list[bytes] = []
        while whole and not self.is_terminated:
            event, whole = _split_first(whole)
            if _has_mark(event):
                self.is_terminated |= _TERMINATOR.search(event) is not None
                event = self._editor(event)
            out.append(event)
        return b"".join(out)


def first_event(payload: bytes | bytearray) -> bytes:
    """The first whole event of a decoded body, blank line included; b"" where none is whole yet.

    Comments before it are left out; more of them than 64 KiB count as an event.
    """
    start = 0
    if not payload.startswith(b"data:"):
        unread = _UNREAD_LINES.match(payload)
        start = 0 if unread is None else unread.end()
        if start > _MAX_UNREAD_BYTES:
            return bytes(payload[:start])
    found = _EVENT_END.search(payload, start)
    return b"" if found is None else bytes(payload[start : found.end()])


def frame_chunk(payload: bytes) -> bytes:
    """One HTTP chunk around a payload, which must not be empty: that would be the last chunk."""
    assert payload
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def _has_mark(data: bytes) -> bool:
    return any(mark in data for mark in EDIT_MARKS)


def _split_first(whole: bytes) -> tuple[bytes, bytes]:
    found = _EVENT_END.search(whole)
    return (whole, b"") if found is None else (whole[: found.end()], whole[found.end() :])


def is_whole_events(data: bytes) -> bool:
    """Whether a read may go out as it came, chunk framing included.

    It must start a chunk. True where it is made of whole chunks, none of them the last, each of
    whole events, and none of the marks is in it. As its chunks are whole and written the plain way,
    whoever parses the stream may leave the read out and still stands at a chunk's start.
    """
    find = data.find  # Twice as fast as the operator, which first asks whether it got a number.
    if (
        find(_USAGE) >= 0
        or find(_PARAMS) >= 0
        or find(_ERROR) >= 0
        or find(_ABORT) >= 0
        # One letter is found faster than a word, and chunks of JSON rarely have these.
        or (find(b"D") >= 0 and find(_DONE) >= 0)
        or (find(b"v") >= 0 and find(_EVENT) >= 0)
        or (find(b"\\") >= 0 and find(_ESCAPE) >= 0)
    ):
        return False
    pos, end = 0, len(data)
    while pos < end:
        size_end = find(b"\r\n", pos)
        size_line = data[pos:size_end]
        size = _SIZES.get(size_line) or _plain_size(size_line)
        pos = size_end + size + 4
        if (
            size_end < 0
            or not size
            or pos > end
            or not data.endswith(_EVENT_AND_CHUNK_END, size_end + 2, pos)
        ):
            return False
    return True


def _plain_size(line: bytes) -> int:
    """Read a chunk size written the plain way; 0 where it is not, or is cut, or extended."""
    try:
        size = int(line, 16)
    except ValueError:
        return 0
    return size if size > 0 and b"%x" % size == line else 0
