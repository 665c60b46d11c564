"""Each rule is stated twice, as CEL and as a predicate; both, and the need for each, are tested."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.support.resource_table import BAD
from tests.support.resources import broken_by, cluster

from pdcluster_api import rules
from pdcluster_api.rules import OWNED_FLAGS, Rule, broken_rules
from pdcluster_api.rules.cluster import _LEASE_MIN_WITHOUT_KEEPER
from pdcluster_lease.errors import TimingError
from pdcluster_lease.timing import LeaseTiming

TABLES = {
    name: table
    for name, table in vars(rules).items()
    if name.endswith("_RULES") and isinstance(table, tuple)
}
ALL_RULES = [rule for table in TABLES.values() for rule in table]


BROKEN_BY_TABLE = {message for document, _ in BAD.values() for message in broken_by(document)[0]}


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.message[:60])
def test_every_rule_is_broken_by_a_bad_resource(rule: Rule[Any]) -> None:
    assert rule.message in BROKEN_BY_TABLE


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.message[:60])
def test_every_message_fits_one_line_and_gives_a_remedy(rule: Rule[Any]) -> None:
    assert "\n" not in rule.message
    remedies = r"use |set |raise |lower |choose |leave |shorten |rename |give "
    assert re.search(remedies, rule.message), rule.message


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.message[:60])
def test_every_rule_speaks_of_self_in_cel(rule: Rule[Any]) -> None:
    assert "self" in rule.cel
    assert rule.cel.count("(") == rule.cel.count(")")
    assert rule.cel.count("[") == rule.cel.count("]")


def test_no_two_rules_of_one_node_are_the_same() -> None:
    for table in TABLES.values():
        assert len({rule.cel for rule in table}) == len(table)


@dataclass(frozen=True)
class Box:
    value: int


def test_broken_rules_keep_the_order_of_the_table_and_skip_transitions() -> None:
    def at_most(limit: int) -> Rule[Box]:
        return Rule(cel="self", holds=lambda box: box.value <= limit, message=str(limit))

    table: Sequence[Rule[Box]] = (
        at_most(3),
        Rule(cel="self == oldSelf", holds=None, message="transition"),
        at_most(9),
        at_most(1),
    )
    assert ["3", "1"] == [rule.message for rule in broken_rules(table, Box(5))]
    assert broken_rules(table, Box(0)) == ()


def spellings(flag: str) -> Iterator[str]:
    names = {flag}
    if flag.startswith("--"):
        names.add("--" + flag[2:].replace("-", "_"))
    for name in names:
        yield from (name, f"{name}=x", f"{name}.key=x")


@pytest.mark.parametrize(
    "word", [word for flag in OWNED_FLAGS for name in flag.names for word in spellings(name)]
)
def test_an_owned_flag_is_rejected_in_every_spelling(word: str) -> None:
    with pytest.raises(ValidationError):
        cluster(prefill={"args": [word]})


@given(st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1))
def test_a_longer_flag_is_another_flag(suffix: str) -> None:
    for flag in OWNED_FLAGS:
        for name in flag.names:
            assert not re.match(flag.pattern, name + suffix)


def test_the_shortest_lease_without_keeper_is_the_lease_librarys_own() -> None:
    def fits(seconds: int) -> bool:
        timing = LeaseTiming.from_duration(seconds)
        try:
            timing.hand_off_deadline_s(met=False, keeper=False, override_s=None)
        except TimingError:
            return False
        return True

    fitting = [seconds for seconds in range(6, 200) if fits(seconds)]
    assert _LEASE_MIN_WITHOUT_KEEPER == fitting[0]
    assert fitting == list(range(fitting[0], 200))


@given(lease=st.integers(6, 300), deadline=st.integers(1, 320))
def test_the_latest_hand_off_is_the_lease_librarys_own(lease: int, deadline: int) -> None:
    broken, _ = broken_by(
        {
            "apiVersion": "pdcluster.io/v1alpha1",
            "kind": "PDCluster",
            "metadata": {"name": "x"},
            "spec": {
                "model": {"name": "m"},
                "engine": {"image": "i"},
                "kvTransfer": {"kvLeaseDurationSeconds": lease},
                "proxy": {"handOffDeadlineSeconds": deadline},
            },
        }
    )
    accepted = not broken
    try:
        LeaseTiming.from_duration(lease).hand_off_deadline_s(
            met=False, keeper=False, override_s=deadline
        )
        allowed = True
    except TimingError:
        allowed = False
    assert allowed == accepted
