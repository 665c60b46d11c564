from __future__ import annotations

from typing import Any

import pytest
from tests.support.resources import cluster
from tests.support.snapshots import member, snapshot

from pdcluster_cli.up.edits import Edit, changes_between, edit_between, edit_message
from pdcluster_cli.up.snapshot import Kind


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({}, ()),
        ({"decode": {"replicas": 3}}, ("spec.decode.replicas unset -> 3",)),
        ({"drain": {"settleSeconds": 5}}, ()),
        ({"drain": {"settleSeconds": 6}}, ("spec.drain.settleSeconds 5 -> 6",)),
        ({"decode": {"args": ["--x"]}}, ('spec.decode.args [] -> ["--x"]',)),
        (
            {"kvTransfer": {"kvLeaseDurationSeconds": 60}, "prefill": {"replicas": 1}},
            (
                "spec.prefill.replicas unset -> 1",
                "spec.kvTransfer.kvLeaseDurationSeconds 30 -> 60",
            ),
        ),
    ],
    ids=str,
)
def test_changes_are_told_by_field_with_both_values(
    fields: dict[str, Any], changes: tuple[str, ...]
) -> None:
    assert changes_between(cluster(), cluster(**fields)) == changes


def test_a_field_that_is_left_out_again_is_told_as_unset() -> None:
    before = cluster(proxy={"handOffDeadlineSeconds": 7})
    assert changes_between(before, cluster()) == ("spec.proxy.handOffDeadlineSeconds 7 -> unset",)


def test_a_long_value_is_cut() -> None:
    [change] = changes_between(cluster(), cluster(decode={"args": ["--word=" + "x" * 300]}))
    assert change.endswith("...")
    assert len(change) < 80


def test_programs_are_counted_by_what_becomes_of_them() -> None:
    old = snapshot(member(), member(Kind.DECODE), member(Kind.PROXY))
    new = snapshot(
        member(),
        member(Kind.DECODE, wanted=False),
        member(Kind.DECODE, name="decode-1"),
        member(Kind.DECODE, name="decode-2"),
        member(Kind.PROXY),
    )
    edit = edit_between(cluster(), cluster(decode={"replicas": 2}), old, new)
    assert (edit.num_kept, edit.num_started, edit.num_drained) == (2, 2, 1)
    assert edit.changes == ("spec.decode.replicas unset -> 2",)


def test_what_was_on_its_way_out_before_is_not_counted_again() -> None:
    old = snapshot(member(), member(Kind.DECODE, wanted=False))
    assert edit_between(cluster(), cluster(), old, old).num_drained == 0


def edit(*changes: str, kept: int = 3, started: int = 0, drained: int = 0) -> Edit:
    return Edit(changes=changes, num_kept=kept, num_started=started, num_drained=drained)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (
            edit("a 1 -> 2", started=1, drained=2),
            "Applying f: a 1 -> 2; programs: 3 kept, 1 started, 2 drained once those serve.",
        ),
        (
            edit("a 1 -> 2", started=1),
            "Applying f: a 1 -> 2; programs: 3 kept, 1 started, 0 drained.",
        ),
        (
            edit("a 2 -> 1", drained=1),
            "Applying f: a 2 -> 1; programs: 3 kept, 0 started, 1 drained.",
        ),
        (edit("a 1 -> 2"), "Applied f: a 1 -> 2; no program is concerned."),
        (edit(), "Applied f: nothing has changed; no program is concerned."),
        (
            edit("a", "b", "c", "d", "e"),
            "Applied f: a, b, c and 2 more; no program is concerned.",
        ),
    ],
    ids=str,
)
def test_one_line_tells_of_an_edit(edit: Edit, told: str) -> None:
    assert edit_message(edit, "f") == told
