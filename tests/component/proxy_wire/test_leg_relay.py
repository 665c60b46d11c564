"""The engine's side of a relay, without sockets: what time and a slow client do to it."""

from __future__ import annotations

import time

import pytest

from pdcluster_proxy.core.framing import StreamFraming
from pdcluster_proxy.core.ports import RelayOutcome
from pdcluster_proxy.wire.leg_relay import LegRelay

EVENT = b"data: x\n\n"


class Source:
    """A connection that remembers what it was told."""

    def __init__(self) -> None:
        self.is_complete = False
        self.told: list[str] = []

    def pause_reading(self) -> None:
        self.told.append("pause")

    def resume_reading(self) -> None:
        self.told.append("resume")


class Rig:
    """A relay between a fake engine and a list."""

    def __init__(self, *, held: bytes = b"", is_complete: bool = False, gone: bool = False) -> None:
        self.source = Source()
        self.written: list[bytes] = []
        self.ended: list[bool] = []
        self.relay = LegRelay(
            StreamFraming(decoder=None, editor=lambda event: event, held=held, frames_output=False),
            self.written.append,
            source=None if gone else self.source,
            is_complete=is_complete,
            on_end=lambda *, may_reuse: self.ended.append(may_reuse),
            left=None,
            idle_timeout_s=10.0,
        )

    def outcome(self) -> RelayOutcome | None:
        return self.relay.done.result().outcome if self.relay.done.done() else None


async def test_an_engine_that_is_silent_for_too_long_ends_the_relay_but_never_early() -> None:
    rig = Rig()
    rig.relay.start()
    now = time.monotonic()
    rig.relay.check(now + 9.5)
    assert rig.outcome() is None
    rig.relay.check(now + 10.5)
    assert rig.outcome() is RelayOutcome.UPSTREAM_IDLE
    assert rig.ended == [False]


async def test_a_stall_that_the_client_causes_is_not_the_engines() -> None:
    rig = Rig()
    rig.relay.start()
    rig.relay.pause()
    now = time.monotonic()
    for minutes in range(10):
        rig.relay.check(now + 60 * minutes)
    assert rig.outcome() is None
    rig.relay.resume()
    rig.relay.check(time.monotonic() + 9.5)
    assert rig.outcome() is None
    rig.relay.check(time.monotonic() + 10.5)
    assert rig.outcome() is RelayOutcome.UPSTREAM_IDLE


async def test_a_slow_client_pauses_the_engine_and_a_quick_one_resumes_it() -> None:
    rig = Rig()
    rig.relay.start()
    rig.relay.pause()
    rig.relay.resume()
    assert rig.source.told == ["resume", "pause", "resume"]


async def test_a_client_that_is_slow_from_the_start_leaves_the_engine_paused() -> None:
    rig = Rig(held=EVENT)
    rig.relay.pause()
    rig.relay.start()
    assert rig.source.told == ["pause"]
    assert rig.written == [EVENT]


async def test_a_body_that_was_held_whole_is_given_out_and_ends_the_relay() -> None:
    rig = Rig(held=EVENT + b"data: [DONE]\n\n", is_complete=True, gone=True)
    rig.relay.start()
    assert rig.outcome() is RelayOutcome.COMPLETE
    assert b"".join(rig.written) == EVENT + b"data: [DONE]\n\n"


async def test_a_connection_that_was_lost_before_the_relay_gives_out_what_was_held() -> None:
    rig = Rig(held=EVENT + b"data: hal", gone=True)
    rig.relay.start()
    assert rig.outcome() is RelayOutcome.UPSTREAM_LOST
    assert rig.written == [EVENT]


@pytest.mark.parametrize("end", ["client_gone", "lose"])
async def test_a_relay_ends_once_and_is_silent_afterwards(end: str) -> None:
    rig = Rig()
    rig.relay.start()
    getattr(rig.relay, end)()
    rig.relay.client_gone()
    rig.relay.lose()
    rig.relay.end_of_input(is_complete=True)
    rig.relay.deliver(EVENT)
    rig.relay.check(time.monotonic() + 100)
    assert rig.ended == [False]
    assert rig.written == []


async def test_the_tally_counts_reads_bytes_and_instants() -> None:
    rig = Rig()
    rig.relay.start()
    before = time.monotonic()
    rig.relay.deliver(EVENT)
    rig.relay.deliver(EVENT[:3])
    rig.relay.deliver(EVENT[3:])
    rig.source.is_complete = True
    rig.relay.deliver(b"")
    end = rig.relay.done.result()
    assert (end.outcome, end.reads, end.num_bytes) == (RelayOutcome.UNTERMINATED, 4, 2 * len(EVENT))
    assert end.first_at is not None
    assert end.last_at is not None
    assert before <= end.first_at <= end.last_at <= time.monotonic()
    assert rig.ended == [True]
