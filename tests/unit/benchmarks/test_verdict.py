"""The quick benchmark's judgement: medians, ratios, and nothing that went wrong is forgiven."""

from __future__ import annotations

import pytest
from benchmarks.verdict import Goal, Measurement, judge

GOALS = (Goal(workload="request", peer="aiohttp", ratio=0.5),)


def measured(
    contender: str, cpu_us: float, *, errors: int = 0, opened: int | None = None
) -> Measurement:
    return Measurement(
        contender=contender,
        workload="request",
        cpu_us=cpu_us,
        errors=errors,
        clients=32,
        opened=opened,
    )


def run(*ours: float, peer: float = 100.0, errors: int = 0, opened: int = 32) -> list[Measurement]:
    return [
        *(measured("pdcluster", us, errors=errors, opened=opened) for us in ours),
        measured("aiohttp", peer),
    ]


def holds(measurements: list[Measurement]) -> list[bool]:
    return [verdict.holds for verdict in judge(measurements, goals=GOALS)]


def test_a_ratio_at_its_goal_holds_and_one_above_does_not() -> None:
    assert holds(run(50.0)) == [True, True, True]
    assert holds(run(50.1)) == [False, True, True]


def test_the_median_is_judged_not_the_mean() -> None:
    assert holds(run(40.0, 45.0, 400.0))[0]
    assert not holds(run(1.0, 60.0, 61.0))[0]


def test_one_error_anywhere_is_a_miss() -> None:
    assert holds(run(10.0, errors=1)) == [True, False, True]


def test_more_connections_than_clients_are_a_miss() -> None:
    assert holds(run(10.0, opened=33)) == [True, True, False]


def test_the_text_names_figures_and_goal() -> None:
    (first, *_) = judge(run(60.0), goals=GOALS)
    assert first.text == ("CPU per request: 60.0 us, 0.600 x aiohttp (100.0 us); goal <= 0.5")


def test_a_contender_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="aiohttp was not measured"):
        judge([measured("pdcluster", 1.0)], goals=GOALS)
