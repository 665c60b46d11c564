"""Judges a run: medians, ratios, goals.

Pure. Only ratios inside one run are judged; absolute figures belong to the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["GOALS", "Goal", "Measurement", "Verdict", "judge"]

OURS = "pdcluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One contender under one load.

    Attributes:
        contender: Its name.
        workload: ``request`` (small answers) or ``chunk`` (paced streams).
        cpu_us: CPU of the contender per request or per chunk, in microseconds.
        errors: Answers that were not right.
        opened: Connections to engines opened, where known.
        clients: Clients at once.
    """

    contender: str
    workload: str
    cpu_us: float
    errors: int
    clients: int
    opened: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Our CPU over a peer's must not be larger than a ratio.

    Attributes:
        workload: Under which load.
        peer: Against whom.
        ratio: Largest ratio.
    """

    workload: str
    peer: str
    ratio: float


GOALS = (
    Goal(workload="request", peer="httpx", ratio=0.1),
    Goal(workload="request", peer="aiohttp", ratio=0.6),
    Goal(workload="chunk", peer="aiohttp", ratio=0.7),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One judged statement.

    Attributes:
        text: For people.
        holds: Whether it is as it should be.
    """

    text: str
    holds: bool


def judge(
    measurements: Sequence[Measurement], *, goals: Sequence[Goal] = GOALS
) -> tuple[Verdict, ...]:
    """Judge the goals by medians, and that nothing went wrong on the way.

    Raises:
        ValueError: A goal names a contender or a load that was not measured.
    """
    verdicts = []
    for goal in goals:
        ours = _median(measurements, OURS, goal.workload)
        peers = _median(measurements, goal.peer, goal.workload)
        ratio = ours / peers
        verdicts.append(
            Verdict(
                text=f"CPU per {goal.workload}: {ours:.1f} us, {ratio:.3f} x {goal.peer}"
                f" ({peers:.1f} us); goal <= {goal.ratio:g}",
                holds=ratio <= goal.ratio,
            )
        )
    errors = sum(m.errors for m in measurements)
    verdicts.append(Verdict(text=f"errors: {errors}; goal 0", holds=errors == 0))
    for workload in dict.fromkeys(m.workload for m in measurements):
        mine = [m for m in measurements if m.contender == OURS and m.workload == workload]
        opened = max((m.opened or 0 for m in mine), default=0)
        clients = max((m.clients for m in mine), default=0)
        verdicts.append(
            Verdict(
                text=f"connections opened per engine and {workload} run: {opened};"
                f" goal <= {clients} (clients)",
                holds=opened <= clients,
            )
        )
    return tuple(verdicts)


def _median(measurements: Sequence[Measurement], contender: str, workload: str) -> float:
    values = [m.cpu_us for m in measurements if m.contender == contender and m.workload == workload]
    if not values:
        raise ValueError(f"{contender} was not measured under {workload!r}.")
    return statistics.median(values)
