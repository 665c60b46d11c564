"""Framing of a relayed stream: every event once, whole, in order, and no field in two halves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcluster_proxy.core.framing import (
    ChunkDecoder,
    FramingError,
    StreamFraming,
    first_event,
    frame_chunk,
    is_whole_events,
)
from pdcluster_proxy.core.ports import EDIT_MARKS, EventEditor

PLAIN = b'data: {"id": "a", "choices": []}\n\n'
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"


def mark(event: bytes) -> bytes:
    """An editor whose work shows: the event grows by a comment line."""
    return b": edited\n" + event


def keep(event: bytes) -> bytes:
    return event


def framing(
    editor: EventEditor = keep,
    *,
    decoder: ChunkDecoder | None = None,
    is_chunked: bool = True,
    frames_output: bool = True,
    held: bytes = b"",
    max_event_bytes: int = 1 << 20,
) -> StreamFraming:
    if decoder is None and is_chunked:
        decoder = ChunkDecoder()
    return StreamFraming(
        decoder=decoder,
        editor=editor,
        held=held,
        frames_output=frames_output,
        max_event_bytes=max_event_bytes,
    )


def run(subject: StreamFraming, *reads: bytes) -> list[bytes]:
    return [*(subject.forward(read) for read in reads), subject.finish()]


def decoded(framed: bytes) -> bytes:
    decoder = ChunkDecoder()
    payload = decoder.feed(framed + LAST_CHUNK)
    assert decoder.is_complete
    assert decoder.excess == 0
    return payload


# The chunk decoder.


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    trailers=st.sampled_from([b"", b"x: y\r\n", b"x: y\r\nz: 0\r\n"]),
    extension=st.sampled_from([b"", b";a=b", b" ;c"]),
    data=st.data(),
)
def test_a_body_cut_anywhere_decodes_to_its_payload(
    payloads: list[bytes], trailers: bytes, extension: bytes, data: st.DataObject
) -> None:
    wire = b"".join(b"%x%b\r\n%b\r\n" % (len(p), extension, p) for p in payloads)
    wire += b"0\r\n" + trailers + b"\r\n"
    decoder, out = ChunkDecoder(), b""
    for piece in pieces(wire, data):
        assert not decoder.is_complete
        out += decoder.feed(piece)
    assert b"".join(payloads) == out
    assert decoder.is_complete
    assert decoder.excess == 0


def pieces(wire: bytes, data: st.DataObject) -> list[bytes]:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(wire) - 1)), max_size=12)))
    ends = [*cuts, len(wire)]
    return [wire[a:b] for a, b in zip([0, *cuts], ends, strict=True) if a < b]


@pytest.mark.parametrize(
    "wire",
    [
        b"zz\r\n",
        b"-1\r\n",
        b"+3\r\n",
        b"0x3\r\n",
        b"1_0\r\n",
        b"\r\n",
        b"3\r\nabcX",
        b"3\r\nabc\rX",
    ],
)
def test_malformed_chunks_are_an_error(wire: bytes) -> None:
    with pytest.raises(FramingError):
        ChunkDecoder().feed(wire)


@pytest.mark.parametrize("start", [b"3;", b"0\r\n"])
def test_an_endless_line_is_an_error(start: bytes) -> None:
    decoder = ChunkDecoder()
    decoder.feed(start)
    decoder.feed(b"x" * 16_000)
    with pytest.raises(FramingError, match="over 16384 bytes"):
        decoder.feed(b"x" * 1000)


def test_bytes_after_the_body_are_counted() -> None:
    decoder = ChunkDecoder()
    decoder.feed(LAST_CHUNK + b"abc")
    decoder.feed(b"de")
    assert decoder.excess == 5


# The fast path.


def test_a_read_of_whole_events_goes_out_as_it_came() -> None:
    read = frame_chunk(PLAIN)
    subject = framing(mark)
    assert subject.forward(read) is read
    several = frame_chunk(PLAIN) + frame_chunk(PLAIN + PLAIN)
    assert subject.forward(several) is several


def test_a_read_with_a_chunk_extension_is_still_right() -> None:
    out = run(framing(), b"%x;a=b\r\n%b\r\n" % (len(PLAIN), PLAIN), LAST_CHUNK)
    assert decoded(b"".join(out)) == PLAIN


@pytest.mark.parametrize("field", EDIT_MARKS)
def test_no_read_with_a_mark_goes_out_as_it_came(field: bytes) -> None:
    event = b'data: {"x": 1, ' + field + b": 2}\n\n"
    subject = framing(mark)
    assert not is_whole_events(frame_chunk(event))
    assert decoded(subject.forward(frame_chunk(event))) == mark(event)


@pytest.mark.parametrize("size", [1, 100, 2047, 2048, 100_000])
def test_chunks_of_any_size_go_out_as_they_came(size: int) -> None:
    event = b":" + b"x" * size + b"\n\n"
    assert is_whole_events(frame_chunk(event))
    assert is_whole_events(frame_chunk(event) * 2)


@pytest.mark.parametrize("size", [b"A", b"0a", b"+a", b" a", b"a ", b"0xa", b"0", b"-a", b"", b"z"])
def test_a_size_that_is_not_written_the_plain_way_is_parsed(size: bytes) -> None:
    assert is_whole_events(b"a\r\ndata: 12\n\n\r\n")
    assert not is_whole_events(size + b"\r\ndata: 12\n\n\r\n")


@pytest.mark.parametrize("field", EDIT_MARKS)
def test_a_mark_split_over_two_chunks_of_one_read_is_found(field: bytes) -> None:
    event = b'data: {"x": 1, ' + field + b": 2}\n\n"
    middle = event.index(field) + len(field) // 2
    read = frame_chunk(event[:middle]) + frame_chunk(event[middle:])
    assert decoded(framing(mark).forward(read)) == mark(event)


def test_a_chunk_that_looks_like_an_event_end_inside_does_not_confuse_the_framing() -> None:
    # The read ends like an event and a chunk, but it is the middle of one.
    payload = b"data: a\n\n\r\ndata: b\n\n"
    wire = frame_chunk(payload)
    cut = wire.index(b"\n\n\r\n") + 4
    out = run(framing(), wire[:cut], wire[cut:], LAST_CHUNK)
    assert decoded(b"".join(out)) == payload


def test_the_rest_of_a_chunk_that_looks_like_a_chunk_is_not_taken_for_one() -> None:
    # The first read ends on an event boundary, but inside a chunk; what follows is its payload.
    payload = b"data: 1\n\n" + b"c\r\ndata: 2345\n\n"
    wire = frame_chunk(payload)
    cut = wire.index(b"c\r\n", 4)
    out = run(framing(), wire[:cut], wire[cut:], LAST_CHUNK)
    assert decoded(b"".join(out)) == payload


# The slow path.


def test_a_partial_event_is_held_and_no_last_chunk_is_made_of_nothing() -> None:
    read = frame_chunk(PLAIN)
    out = run(framing(), read[:10], read[10:], LAST_CHUNK)
    assert out[0] == b""
    assert decoded(b"".join(out)) == PLAIN


def test_events_that_end_in_crlf_are_not_held_back() -> None:
    event = b"data: a\r\n\r\n"
    subject = framing()
    assert decoded(subject.forward(frame_chunk(event))) == event
    half = frame_chunk(event)[:-3]
    assert subject.forward(half) == b""
    assert decoded(subject.forward(frame_chunk(event)[-3:])) == event


def test_a_dropped_event_leaves_no_empty_chunk() -> None:
    assert framing(lambda _: b"").forward(frame_chunk(b'data: {"usage": 1}\n\n')) == b""


def test_what_was_held_before_the_relay_comes_first() -> None:
    decoder = ChunkDecoder()
    held = decoder.feed(frame_chunk(PLAIN) + frame_chunk(b"data: b")[:-2])
    subject = framing(mark, decoder=decoder, held=held)
    out = run(subject, b"", b"\r\n" + frame_chunk(b"\n\n"), LAST_CHUNK)
    assert decoded(b"".join(out)) == PLAIN + b"data: b\n\n"


def test_an_event_over_the_cap_is_an_error() -> None:
    subject = framing(max_event_bytes=1000)
    subject.forward(frame_chunk(b"x" * 1000))
    with pytest.raises(FramingError, match="larger than 1000 bytes"):
        subject.forward(frame_chunk(b"x"))


@pytest.mark.parametrize("event", [b'data: {"x": 1}', b"data: [DONE]"])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_last_event_without_its_blank_line_is_completed(event: bytes, end: bytes) -> None:
    out = run(framing(), frame_chunk(event + end), LAST_CHUNK)
    assert decoded(b"".join(out)) == event + b"\n\n"


@pytest.mark.parametrize("half", [b'data: {"choices":[{"te', b"data: [DON", b"dat", b": pin"])
def test_half_an_event_at_the_end_is_not_made_a_whole_one(half: bytes) -> None:
    subject = framing()
    out = run(subject, frame_chunk(PLAIN + half), LAST_CHUNK)
    assert decoded(b"".join(out)) == PLAIN
    assert not subject.is_terminated


@pytest.mark.parametrize("is_chunked", [True, False])
def test_what_follows_the_terminator_is_dropped(is_chunked: bool) -> None:
    subject = framing(is_chunked=is_chunked, max_event_bytes=1000)
    frame = frame_chunk if is_chunked else bytes
    # In one read with it, in a read of its own, an event too large, and half an event.
    reads = [PLAIN + DONE + PLAIN, PLAIN, b"x" * 2000, b'data: {"x": 1}']
    out = run(subject, *(frame(read) for read in reads))
    assert decoded(b"".join(out)) == PLAIN + DONE
    assert subject.is_terminated


def test_a_body_without_chunks_is_framed_for_the_client() -> None:
    out = run(framing(is_chunked=False), PLAIN, PLAIN[:4], PLAIN[4:])
    assert decoded(b"".join(out)) == PLAIN * 2
    assert out[0] == frame_chunk(PLAIN)


def test_a_server_that_frames_by_itself_gets_bare_payload() -> None:
    subject = framing(mark, frames_output=False)
    assert subject.forward(frame_chunk(PLAIN)) == PLAIN
    assert subject.forward(frame_chunk(DONE)) == mark(DONE)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (PLAIN + DONE, True),
        (PLAIN + b"data:[DONE]\n\n", True),
        (PLAIN + b"data: [DONE]\r\n\r\n", True),
        (PLAIN + b"data: [DONE]", True),
        (PLAIN + b"data: [DONE] \n\n", True),
        (PLAIN + b"data: [DONE]x\n\n", False),
        (DONE + b": bye\n\n", True),
        (PLAIN, False),
        (b'data: {"content": "[DONE]"}\n\n', False),
        (b'data: {"content": "\\ndata: [DONE]"}\n\n', False),
        (b"", False),
    ],
)
def test_only_the_engines_terminator_terminates(stream: bytes, expected: bool) -> None:
    subject = framing(lambda _: b"")  # Dropping it changes nothing.
    wire = frame_chunk(stream) if stream else b""
    run(subject, wire, LAST_CHUNK)
    assert expected == subject.is_terminated


# Every stream.


EVENTS = st.one_of(
    st.builds(
        lambda text, end: b"data: " + text + end,
        st.binary(max_size=60).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b"")),
        st.sampled_from([b"\n\n", b"\r\n\r\n"]),
    ),
    st.sampled_from(
        [
            b'data: {"usage": {"prompt_tokens": 1}}\n\n',
            b'data: {"kv_transfer_params": {"a": "\\n\\n"}}\n\n',
            b'data: {"error": 1}\r\n\r\n',
            b": comment\n\n",
            b"event: x\ndata: 1\ndata: 2\n\n",
        ]
    ),
)


@settings(max_examples=400, deadline=None)
@given(
    events=st.lists(EVENTS, min_size=1, max_size=12),
    is_terminated=st.booleans(),
    is_chunked=st.booleans(),
    by_event=st.booleans(),
    frames_output=st.booleans(),
    num_held=st.integers(0, 3),
    data=st.data(),
)
def test_every_event_arrives_once_in_order_and_edited_where_marked(  # noqa: PLR0917 (drawn by name)
    events: list[bytes],
    is_terminated: bool,
    is_chunked: bool,
    by_event: bool,
    frames_output: bool,
    num_held: int,
    data: st.DataObject,
) -> None:
    events = [*events, DONE] if is_terminated else events
    are_last = [e.rstrip(b"\r\n") == b"data: [DONE]" for e in events]
    heard = events[: are_last.index(True) + 1] if any(are_last) else events
    expected = [mark(e) if any(m in e for m in EDIT_MARKS) else e for e in heard]

    body = b"".join(events)
    chunks = events if by_event else pieces(body, data)
    wire = b"".join(frame_chunk(c) for c in chunks) + LAST_CHUNK if is_chunked else body
    reads = pieces(wire, data)

    decoder = ChunkDecoder() if is_chunked else None
    early, reads = reads[:num_held], reads[num_held:]
    held = b"".join(decoder.feed(r) if decoder else r for r in early)
    subject = framing(
        mark,
        decoder=decoder,
        is_chunked=is_chunked,
        held=held,
        frames_output=frames_output,
    )
    out = run(subject, b"", *reads)

    got = [decoded(part) if frames_output and part else part for part in out]
    assert b"".join(expected) == b"".join(got)
    for part in got:
        # Only whole events go out, so that an event of ours may follow at any time.
        assert part == b"" or part.endswith((b"\n\n", b"\n\r\n"))
    assert subject.is_terminated == any(are_last)
    assert subject.excess == 0


# Small parts.


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", b""),
        (b"data: x\n", b""),
        (b"data: x\n\nrest", b"data: x\n\n"),
        (b"data: x\r\n\r\nrest", b"data: x\r\n\r\n"),
        (b"data: 1\ndata: 2\n\ndata: 3\n\n", b"data: 1\ndata: 2\n\n"),
        # What a client hears nothing of is no event.
        (b": ping\n\n", b""),
        (b": ping\n\n: pi", b""),
        (b": ping\r\n\r\nretry: 5\nid: 1\ndata: x\n\nrest", b"data: x\n\n"),
        (b"\xef\xbb\xbfdata: x\n\n", b"data: x\n\n"),
        (b": ping\rdata: x\n\n", b": ping\rdata: x\n\n"),
        (b"<html>\n\ndata: x\n\n", b"<html>\n\n"),
    ],
)
def test_the_first_event_ends_at_the_first_blank_line(payload: bytes, expected: bytes) -> None:
    assert expected == first_event(payload)
    assert expected == first_event(bytearray(payload))


def test_a_stream_of_comments_without_end_is_not_waited_for() -> None:
    assert b"" == first_event(b": ping\n\n" * 8192)
    assert first_event(b": ping\n\n" * 8193)
