"""The lease state machine, row by row."""

from __future__ import annotations

from itertools import product

import pytest

from pdcluster_lease.errors import LocalProtocolError
from pdcluster_lease.lease import (
    TRANSITIONS,
    Abort,
    Expired,
    Grant,
    Granted,
    Ignored,
    LateRead,
    LeaseState,
    LeaseTable,
    PartlyRead,
    Released,
    Renewed,
    Sweep,
)
from pdcluster_lease.params import RequestId
from pdcluster_lease.timing import LeaseTiming
from pdcluster_lease.wire import Heartbeat, TransferComplete

A, B, C = RequestId("a"), RequestId("b"), RequestId("c")


@pytest.fixture
def table() -> LeaseTable:
    """Lease 30 s: a renewal grants 20."""
    return LeaseTable(LeaseTiming.from_duration(30))


def test_a_grant_holds_for_the_duration(table: LeaseTable) -> None:
    assert table.apply(Grant(A), now=100.0) == (Granted(A, 130.0),)
    assert A in table
    assert table.next_end() == 130.0
    assert table.apply(Sweep(), now=129.999) == ()
    assert table.apply(Sweep(), now=130.0) == (Expired(A, 0),)
    assert table.held == 0
    assert table.next_end() is None


def test_an_early_heartbeat_changes_nothing(table: LeaseTable) -> None:
    table.apply(Grant(A), now=0.0)
    assert table.apply(Heartbeat((A,)), now=9.0) == (Renewed(A, 30.0, 30.0),)
    assert table.apply(Heartbeat((A,)), now=11.0) == (Renewed(A, 30.0, 31.0),)


def test_heartbeats_hold_a_lease_beyond_its_duration(table: LeaseTable) -> None:
    table.apply(Grant(A), now=0.0)
    for now in range(5, 300, 5):
        assert table.apply(Sweep(), now=float(now)) == ()
        table.apply(Heartbeat((A,)), now=float(now))
    assert table.apply(Sweep(), now=315.0) == (Expired(A, 0),)


def test_one_heartbeat_names_many_leases_known_or_not(table: LeaseTable) -> None:
    table.apply(Grant(A), now=0.0)
    table.apply(Grant(C), now=0.0)
    assert table.apply(Heartbeat((A, B, C)), now=20.0) == (
        Renewed(A, 30.0, 40.0),
        Ignored(B),
        Renewed(C, 30.0, 40.0),
    )


def test_a_completion_releases(table: LeaseTable) -> None:
    table.apply(Grant(A), now=0.0)
    assert table.apply(TransferComplete(A), now=1.0) == (Released(A, 1),)
    assert A not in table


def test_a_lease_with_two_readers_waits_for_both(table: LeaseTable) -> None:
    table.apply(Grant(A), now=0.0)
    assert table.apply(TransferComplete(A, 2), now=1.0) == (PartlyRead(A, 1, 2),)
    assert A in table
    assert table.apply(TransferComplete(A, 2), now=2.0) == (Released(A, 2),)


def test_an_expiry_says_how_many_had_read(table: LeaseTable) -> None:
    table.apply(Grant(A), now=0.0)
    table.apply(TransferComplete(A, 2), now=1.0)
    assert table.apply(Sweep(), now=30.0) == (Expired(A, 1),)


def test_a_renewal_keeps_the_count_of_reads(table: LeaseTable) -> None:
    table.apply(Grant(A), now=0.0)
    table.apply(TransferComplete(A, 2), now=1.0)
    table.apply(Heartbeat((A,)), now=29.0)
    assert table.apply(TransferComplete(A, 2), now=31.0) == (Released(A, 2),)


def test_a_completion_for_no_lease_is_a_late_read(table: LeaseTable) -> None:
    assert table.apply(TransferComplete(A), now=0.0) == (LateRead(A),)
    table.apply(Grant(A), now=0.0)
    table.apply(Sweep(), now=30.0)
    assert table.apply(TransferComplete(A), now=31.0) == (LateRead(A),)
    table.apply(Grant(B), now=31.0)
    table.apply(TransferComplete(B), now=32.0)
    assert table.apply(TransferComplete(B), now=33.0) == (LateRead(B),)


def test_a_heartbeat_does_not_bring_an_ended_lease_back(table: LeaseTable) -> None:
    table.apply(Grant(A), now=0.0)
    table.apply(Sweep(), now=30.0)
    assert table.apply(Heartbeat((A,)), now=30.5) == (Ignored(A),)
    assert table.held == 0


def test_a_heartbeat_that_waited_is_applied_before_the_sweep_of_its_step(
    table: LeaseTable,
) -> None:
    # A step took from 29 to 35: the lease's end has passed, but its renewal was already there.
    table.apply(Grant(A), now=0.0)
    table.apply(Heartbeat((A,)), now=35.0)
    assert table.apply(Sweep(), now=35.0) == ()


def test_a_renewed_lease_in_front_hides_no_other_from_the_sweep(table: LeaseTable) -> None:
    for request_id, now in ((A, 0.0), (B, 1.0), (C, 2.0)):
        table.apply(Grant(request_id), now=now)
    table.apply(Heartbeat((A,)), now=29.0)
    assert table.apply(Sweep(), now=40.0) == (Expired(B, 0), Expired(C, 0))
    assert table.held == 1


def test_the_owner_may_give_a_lease_up(table: LeaseTable) -> None:
    table.apply(Grant(A), now=0.0)
    assert table.apply(Abort(A), now=1.0) == (Released(A, 0),)
    assert table.apply(Abort(A), now=1.0) == (Ignored(A),)


def test_a_second_grant_of_one_id_is_a_bug_of_ours(table: LeaseTable) -> None:
    table.apply(Grant(A), now=0.0)
    with pytest.raises(LocalProtocolError, match="Grant cannot happen"):
        table.apply(Grant(A), now=1.0)
    assert table.next_end() == 30.0


def test_every_pair_of_state_and_event_has_a_row() -> None:
    events = (Grant, Heartbeat, TransferComplete, Abort, Sweep)
    states = (LeaseState.ABSENT, LeaseState.GRANTED)
    assert set(product(states, events)) == set(TRANSITIONS)


def test_a_row_without_a_rule_leads_nowhere() -> None:
    for row in TRANSITIONS.values():
        assert bool(row.to) == (row.rule is not None)
