"""Who is renewed, and when: one throttle, one batch per engine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdcluster_lease.heartbeat import HeartbeatBatch, HeartbeatTracker
from pdcluster_lease.params import EngineId, RemoteLease, RequestId
from pdcluster_lease.timing import LeaseTiming

P, Q = EngineId("p"), EngineId("q")


def lease(request: str, engine: EngineId = P, port: int = 5600, tp_size: int = 1) -> RemoteLease:
    return RemoteLease(
        engine_id=engine, request_id=RequestId(request), host="h", port=port, tp_size=tp_size
    )


def tracker(duration: int = 30) -> HeartbeatTracker:
    return HeartbeatTracker(LeaseTiming.from_duration(duration))


def local(name: str) -> RequestId:
    return RequestId(name)


def sent(batches: tuple[HeartbeatBatch, ...]) -> dict[str, tuple[str, ...]]:
    return {batch.engine_id: batch.request_ids for batch in batches}


def test_the_first_heartbeat_is_due_at_once() -> None:
    tracked = tracker()
    tracked.track(local("d1"), lease("p1"))
    assert tracked.next_due(now=7.0) == 7.0
    assert sent(tracked.due(now=7.0)) == {"p": ("p1",)}


def test_the_next_one_is_due_an_interval_later_and_not_before() -> None:
    tracked = tracker()
    tracked.track(local("d1"), lease("p1"))
    tracked.due(now=7.0)
    assert tracked.next_due(now=7.0) == 12.0
    assert tracked.due(now=11.999) == ()
    assert sent(tracked.due(now=12.0)) == {"p": ("p1",)}


def test_one_throttle_holds_for_all_peers() -> None:
    tracked = tracker()
    tracked.track(local("d1"), lease("p1"))
    tracked.due(now=0.0)
    tracked.track(local("d2"), lease("q1", Q))
    # A new request waits for the common interval, whoever it belongs to.
    assert tracked.due(now=4.0) == ()
    assert sent(tracked.due(now=5.0)) == {"p": ("p1",), "q": ("q1",)}


def test_each_engine_gets_one_batch_of_all_its_leases() -> None:
    tracked = tracker()
    for name, remote in (("d1", lease("p1")), ("d2", lease("q1", Q)), ("d3", lease("p2"))):
        tracked.track(local(name), remote)
    assert sent(tracked.due(now=0.0)) == {"p": ("p1", "p2"), "q": ("q1",)}


def test_a_stopped_request_is_renewed_no_more() -> None:
    tracked = tracker()
    tracked.track(local("d1"), lease("p1"))
    tracked.track(local("d2"), lease("p2"))
    tracked.stop(local("d1"))
    tracked.stop(local("d1"))
    assert sent(tracked.due(now=0.0)) == {"p": ("p2",)}
    tracked.stop(local("d2"))
    assert tracked.num_tracked == 0
    assert tracked.next_due(now=100.0) is None
    assert tracked.due(now=100.0) == ()


def test_a_pause_does_not_make_heartbeats_pile_up() -> None:
    tracked = tracker()
    tracked.track(local("d1"), lease("p1"))
    tracked.due(now=0.0)
    assert len(tracked.due(now=1000.0)) == 1
    assert tracked.due(now=1000.0) == ()


def test_tracking_twice_is_tracking_once() -> None:
    tracked = tracker()
    tracked.track(local("d1"), lease("p1"))
    tracked.track(local("d1"), lease("p1"))
    assert sent(tracked.due(now=0.0)) == {"p": ("p1",)}


def test_two_local_requests_on_one_lease_name_it_once() -> None:
    tracked = tracker()
    tracked.track(local("d1"), lease("p1"))
    tracked.track(local("d2"), lease("p1"))
    assert sent(tracked.due(now=0.0)) == {"p": ("p1",)}
    tracked.stop(local("d1"))
    assert sent(tracked.due(now=5.0)) == {"p": ("p1",)}


def test_a_batch_goes_where_the_newest_params_say() -> None:
    # The first one seen must not fix a wrong address for all that follow.
    tracked = tracker()
    tracked.track(local("d1"), lease("p1", port=1))
    tracked.track(local("d2"), lease("p2", port=5600, tp_size=2))
    (batch,) = tracked.due(now=0.0)
    assert (batch.host, batch.port, batch.tp_size, batch.pp_size) == ("h", 5600, 2, 1)


@given(
    st.lists(st.floats(0.01, 3.0), min_size=1, max_size=60),
    st.integers(min_value=6, max_value=60),
)
def test_beats_are_at_least_an_interval_apart_and_never_late_by_more_than_a_look(
    gaps: list[float], duration: int
) -> None:
    interval = LeaseTiming.from_duration(duration).heartbeat_interval_s
    tracked = tracker(duration)
    tracked.track(local("d1"), lease("p1"))
    now, last = 0.0, None
    for gap in gaps:
        is_due = last is None or now >= last + interval
        assert bool(tracked.due(now=now)) == is_due
        if is_due:
            last = now
        now += gap
