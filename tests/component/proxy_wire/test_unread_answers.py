"""What a client has yet to read, in our buffer and in the kernel's."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from pdcluster_proxy.wire.unread import UnreadAnswer

GRACE_S, BYTES_PER_S = 10.0, 1024.0
STEP = 256 * 1024


class Transport:
    """A connection whose own buffer is as full as the test says."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self.buffered = STEP

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def get_extra_info(self, _name: str) -> socket.socket:
        return self.raw


@pytest.fixture
def ends() -> Iterator[tuple[Transport, socket.socket]]:
    """A connection whose kernel buffers are full, and its client's end."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client:
            raw, _ = listener.accept()
            with raw:
                raw.setblocking(False)
                try:
                    while True:
                        raw.send(bytes(STEP))
                except BlockingIOError:
                    pass
                yield Transport(raw), client


def read(client: socket.socket) -> None:
    got = 0
    while got < 8 * STEP:
        got += len(client.recv(STEP))


def look(unread: UnreadAnswer, transport: Transport, now: float, since: float = 0.0) -> bool:
    return unread.is_given_up(transport, now=now, since=since)  # type: ignore[arg-type]  # A part of one.


def test_who_reads_from_the_kernels_buffer_alone_is_reading(
    ends: tuple[Transport, socket.socket],
) -> None:
    transport, client = ends
    unread = UnreadAnswer(grace_s=GRACE_S, bytes_per_s=BYTES_PER_S)
    assert not look(unread, transport, 100.0)
    read(client)
    assert not look(unread, transport, 100.0 + GRACE_S + 1.0)
    assert not look(unread, transport, 100.0 + 2 * GRACE_S + 1.0)
    assert look(unread, transport, 100.0 + 2 * GRACE_S + 2.5)


def test_who_reads_nothing_is_given_up_after_the_grace_and_not_before(
    ends: tuple[Transport, socket.socket],
) -> None:
    transport, _ = ends
    unread = UnreadAnswer(grace_s=GRACE_S, bytes_per_s=BYTES_PER_S)
    assert not look(unread, transport, 100.0)
    assert not look(unread, transport, 100.0 + GRACE_S)
    assert look(unread, transport, 100.1 + GRACE_S)


def test_time_begins_anew_with_the_next_answer_and_when_all_is_read(
    ends: tuple[Transport, socket.socket],
) -> None:
    transport, _ = ends
    unread = UnreadAnswer(grace_s=GRACE_S, bytes_per_s=BYTES_PER_S)
    assert not look(unread, transport, 100.0)
    assert not look(unread, transport, 200.0, since=150.0)
    transport.buffered = 0
    assert not look(unread, transport, 300.0, since=150.0)
    transport.buffered = STEP
    assert not look(unread, transport, 400.0, since=150.0)
    assert look(unread, transport, 401.0 + GRACE_S, since=150.0)


def test_a_connection_that_is_closed_has_nothing_in_the_kernel(
    ends: tuple[Transport, socket.socket],
) -> None:
    transport, _ = ends
    transport.raw.close()
    unread = UnreadAnswer(grace_s=GRACE_S, bytes_per_s=BYTES_PER_S)
    assert not look(unread, transport, 100.0)
