from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.support.resources import cluster

from pdcluster_api.proxy_config import KeeperMode
from pdcluster_api.timing import derive_timing
from pdcluster_cli.explaining import explain_json, explain_text, figures, inequalities
from pdcluster_lease.errors import TimingError


def explained(**fields: Any) -> str:
    return explain_text(cluster(**fields).spec)


def figure(name: str, *, keeper: KeeperMode = KeeperMode.ABSENT, **fields: Any) -> Any:
    spec = cluster(**fields).spec
    found = {one.name: one for one in figures(spec, derive_timing(spec, keeper=keeper))}
    return found[name]


def test_the_keeper_is_said_to_be_absent_first() -> None:
    assert explained().splitlines()[0] == "keeper: absent"


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("lease duration L", 30),
        ("heartbeat interval", 5),
        ("lease extension", 20),
        ("hand-off deadline, new pair", 14),
        ("hand-off deadline, met pair", 23),
        ("longest hold", 120),
        ("request timeout", 600),
        ("prefill --shutdown-timeout", 80),
        ("decode --shutdown-timeout", 600),
        ("prefill termination grace", 155),
        ("decode termination grace", 605),
    ],
)
def test_every_figure_is_there(name: str, seconds: int) -> None:
    assert figure(name).seconds == seconds
    assert f"{name}: {seconds} s\n" in explained()


def value_of(formula: str) -> int:
    """Work out the arithmetic that stands at the end of a formula."""
    arithmetic = formula.rsplit("= ", 1)[-1].replace("x", "*")
    assert re.fullmatch(r"[0-9 +*/-]+", arithmetic), formula
    return int(eval(arithmetic))  # only digits and operators, see above


@pytest.mark.parametrize("lease", [9, 10, 11, 30, 47, 300])
@pytest.mark.parametrize(
    "name",
    [
        "heartbeat interval",
        "lease extension",
        "hand-off deadline, new pair",
        "hand-off deadline, met pair",
        "longest hold",
    ],
)
def test_a_formula_gives_its_figure(name: str, lease: int) -> None:
    found = figure(name, kvTransfer={"kvLeaseDurationSeconds": lease})
    assert value_of(found.formula) == found.seconds


@pytest.mark.parametrize("lease", [30, 90])
def test_the_formula_of_the_grace_gives_its_figure(lease: int) -> None:
    found = figure("prefill termination grace", kvTransfer={"kvLeaseDurationSeconds": lease})
    numbers = [int(word) for word in re.findall(r"\b\d+\b", found.formula)]
    assert sum(numbers) == found.seconds


def test_a_stated_figure_names_its_field_instead() -> None:
    proxy = {"handOffDeadlineSeconds": 7, "maxHoldSeconds": 60}
    drain = {"terminationGracePeriodSeconds": 100}
    new = figure("hand-off deadline, new pair", proxy=proxy)
    assert (new.seconds, new.formula) == (7, "spec.proxy.handOffDeadlineSeconds = 7")
    assert figure("longest hold", proxy=proxy).formula == "spec.proxy.maxHoldSeconds"
    grace = figure("decode termination grace", drain=drain)
    assert (grace.seconds, grace.formula) == (100, "spec.drain.terminationGracePeriodSeconds")


def test_with_a_keeper_nothing_bounds_the_hand_off() -> None:
    found = figure("hand-off deadline, new pair", keeper=KeeperMode.ENABLED)
    assert found.seconds is None
    assert "keeper renews" in found.formula
    spec = cluster().spec
    rules = inequalities(derive_timing(spec, keeper=KeeperMode.ENABLED))
    assert not any("hand-off" in rule.text for rule in rules)


def tight(**fields: Any) -> list[str]:
    parsed = json.loads(explain_json(cluster(**fields).spec))
    return [rule["text"] for rule in parsed["inequalities"] if rule["tight"]]


def test_the_tightest_rule_is_named() -> None:
    assert tight() == ["lease extension 20 >= 3 heartbeats = 15"]
    assert "Tightest: lease extension 20" in explained()


def test_another_rule_becomes_the_tightest() -> None:
    assert tight(proxy={"maxHoldSeconds": 31}) == ["longest hold 31 >= lease duration 30"]


def test_a_grace_that_is_too_short_is_said_to_break_a_rule() -> None:
    text = explained(drain={"terminationGracePeriodSeconds": 100})
    assert re.search(r"BROKEN +prefill grace 100 >= .* = 155 +\(-55 s\)", text)
    assert tight(drain={"terminationGracePeriodSeconds": 100}) == [
        "decode grace 100 >= what a whole drain needs = 605"
    ]


def test_everything_holds_by_default() -> None:
    assert "BROKEN" not in explained()
    rules = inequalities(derive_timing(cluster().spec, keeper=KeeperMode.ABSENT))
    assert all(rule.slack_s >= 0 for rule in rules)


def test_text_and_json_agree() -> None:
    spec = cluster().spec
    text, parsed = explain_text(spec), json.loads(explain_json(spec))
    assert parsed["keeper"] == "absent"
    for one in parsed["figures"]:
        assert f"{one['name']}: {one['seconds']:g} s" in text
        assert one["formula"] in text
    for rule in parsed["inequalities"]:
        assert rule["text"] in text


def test_an_impossible_lease_is_explained_by_its_error() -> None:
    with pytest.raises(TimingError, match="kvLeaseDurationSeconds"):
        explained(kvTransfer={"kvLeaseDurationSeconds": 8})
