"""The side channel's thread: answering, asking, and not being held up."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator

import pytest
from tests.support.engines import free_port

from pdcluster_lease.errors import HandshakeTimeoutError, SideChannelError
from pdcluster_lease.params import EngineId, RemoteLease, RequestId
from pdcluster_lease.side_channel import SideChannelAddress, handshake
from pdcluster_lease.wire import HandshakePayload
from pdcluster_sim.handshakes import HandshakeAnswered, HandshakeThread, HandshakeUnanswered

HOST = "127.0.0.1"


class Side:
    """One thread and the answers it delivered."""

    def __init__(self, name: str) -> None:
        self.payload = HandshakePayload(compatibility_hash=name, agent_metadata_bytes=b"\x80")
        self.at = SideChannelAddress(HOST, free_port(HOST))
        self.answers: queue.SimpleQueue[HandshakeAnswered | HandshakeUnanswered] = (
            queue.SimpleQueue()
        )
        self.thread = HandshakeThread(self.at, deliver=self.answers.put)

    def lease(self) -> RemoteLease:
        """Return a lease of this side, as another one would know it."""
        return RemoteLease(
            engine_id=EngineId("e"), request_id=RequestId("r"), host=HOST, port=self.at.port
        )


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    pair = (Side("one"), Side("two"))
    for side in pair:
        side.thread.start(side.payload)
    yield pair
    for side in pair:
        side.thread.stop()
        side.thread.stop()


def test_two_sides_shake_hands(sides: tuple[Side, Side]) -> None:
    one, two = sides
    one.thread.ask(two.lease())
    answer = one.answers.get(timeout=60.0)
    assert isinstance(answer, HandshakeAnswered)
    assert answer.reply.payload == two.payload
    assert answer.lease == two.lease()


def test_a_peer_that_is_not_there_is_reported_and_holds_nobody_up(
    sides: tuple[Side, Side],
) -> None:
    one, two = sides
    nobody = Side("nobody")
    started_at = time.monotonic()
    one.thread.ask(nobody.lease())
    one.thread.ask(two.lease())
    first = one.answers.get(timeout=60.0)
    assert isinstance(first, HandshakeAnswered)
    second = one.answers.get(timeout=60.0)
    assert isinstance(second, HandshakeUnanswered)
    assert "no handshake reply" in second.reason
    assert time.monotonic() - started_at >= 5.0


async def test_a_silenced_side_takes_requests_and_answers_none(sides: tuple[Side, Side]) -> None:
    one, _ = sides
    assert (await handshake(one.at)).payload == one.payload
    one.thread.silence()
    with pytest.raises(HandshakeTimeoutError):
        await handshake(one.at, timeout_s=0.5)


async def test_a_rank_that_does_not_exist_gets_no_answer(sides: tuple[Side, Side]) -> None:
    one, _ = sides
    with pytest.raises(HandshakeTimeoutError):
        await handshake(one.at, tp_rank=1, tp_size=2, timeout_s=0.5)
    assert (await handshake(one.at)).payload == one.payload


def test_a_taken_address_is_reported_by_start(sides: tuple[Side, Side]) -> None:
    one, _ = sides
    second = HandshakeThread(one.at, deliver=lambda _: None)
    with pytest.raises(SideChannelError):
        second.start(one.payload)
    second.stop()


def test_whatever_keeps_the_thread_from_listening_is_reported_by_start() -> None:
    class Broken(HandshakeThread):
        async def _serve(self) -> None:
            raise OSError("no file descriptor left")

    side = Side("one")
    thread = Broken(side.at, deliver=side.answers.put)
    with pytest.raises(OSError, match="no file descriptor left"):
        thread.start(side.payload)
    thread.stop()
