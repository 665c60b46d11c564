"""Render the pages that are made from sources: state machines, metrics, changes, the chart's parts.

Shell. ``python -m tools.generate`` writes them, ``--check`` compares and fails where one is stale
(``make generate``, ``make check``). The CRDs have their own: ``python -m pdcluster_api``.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tools import chart
from tools.condition_page import conditions_page
from tools.metric_remedies import OPERATOR_REMEDIES, REMEDIES
from tools.resource_page import resource_page

from pdcluster_cli.up import lifecycle
from pdcluster_lease.lease import TRANSITIONS, LeaseState
from pdcluster_operator.metrics import Metrics as OperatorMetrics
from pdcluster_proxy.core import endpoint, exchange_table
from pdcluster_proxy.core.error_codes import CODES
from pdcluster_proxy.core.exchange import FINAL_STATES
from pdcluster_proxy.core.messages import EndpointState
from pdcluster_proxy.metrics import METRICS
from pdcluster_sim.core import peers

ROOT = Path(__file__).resolve().parent.parent
HEAD = """\
# State machines

Rendered from the tables by `make generate`; do not edit. Each machine is a table in a pure module:
a pair of state and event that is not drawn changes nothing or cannot happen.
"""
Edge = tuple[str, str, str]
"""(from, event, to)."""


def lease_edges() -> Iterable[Edge]:
    """The lease on the engine that granted it."""
    for (state, event), row in TRANSITIONS.items():
        for target in row.to:
            if (state, target) != (LeaseState.ABSENT, LeaseState.ABSENT):
                yield state.value, event.__name__, target.value


def exchange_edges() -> Iterable[Edge]:
    """One client request over two legs."""
    for (state, event), rule in exchange_table.TABLE.items():
        for target in rule.to:
            if state not in FINAL_STATES:
                yield state.value, event.__name__, target.value


def endpoint_edges() -> Iterable[Edge]:
    """An engine's standing, found by trying the table on representative standings."""
    failing = endpoint.EndpointStatus(upstream_failures=endpoint.UPSTREAM_FAILURES_TO_EJECT - 1)
    edges: set[Edge] = set()
    for state, event in endpoint.TABLE:
        standings = [
            replace(standing, state=state, until=until, undrains_to=before)
            for standing in (endpoint.EndpointStatus(), failing)
            for until in (None, 0.0)
            for before in (EndpointState.UNPROVEN, EndpointState.READY, EndpointState.EJECTED)
        ]
        for standing in standings:
            after = endpoint.step(standing, event, now=1)
            if after.state is not state:
                edges.add((state.value, event.value, after.state.value))
    return sorted(edges)


def diagram(edges: Iterable[Edge], *, first: str) -> str:
    """Draw one machine; events between the same two states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for source, event, target in edges:
        arrows.setdefault((source, target), []).append(event)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {a} --> {b}: {', '.join(sorted(e))}" for (a, b), e in sorted(arrows.items())]
    return "\n".join([*lines, "```"])


def state_machines() -> str:
    """Render ``docs/state-machines.md``."""
    return "\n".join(
        [
            HEAD,
            "## KV lease (`lease/pdcluster_lease/lease.py`)\n",
            diagram(lease_edges(), first="absent"),
            "\n## Exchange (`proxy/pdcluster_proxy/core/exchange_table.py`)\n",
            diagram(exchange_edges(), first="NEW"),
            "\n## Endpoint (`proxy/pdcluster_proxy/core/endpoint.py`)\n",
            diagram(endpoint_edges(), first=endpoint.DISCOVERED.state.value),
            "\n## A process of `pdcluster up` (`cli/pdcluster_cli/up/lifecycle.py`)\n",
            diagram(lifecycle_edges(), first="exited"),
            "\n## A peer of a simulated engine (`simulator/pdcluster_sim/core/peers.py`)\n",
            diagram(peer_edges(), first="unknown"),
            "",
        ]
    )


METRICS_HEAD = """\
# Metrics

Rendered from `proxy/pdcluster_proxy/metrics.py`, `operator/pdcluster_operator/metrics.py` and
`tools/metric_remedies.py` by `make generate`; do not edit.

## Proxy

Served by the companion on the admin port (9090) at `/metrics`, for all workers together. Labels are
bounded: routes, statuses and codes are the proxy's own, endpoints are those of the cluster. The
series of one that is gone leave ten minutes after it.

| Metric | Type | Labels | Meaning | What to do |
|---|---|---|---|---|
"""
OPERATOR_METRICS_HEAD = """\

## Operator

Served by each replica on port 8081 at `/metrics`. A replica that does not lead shows 0 clusters.

| Metric | Type | Labels | Meaning | What to do |
|---|---|---|---|---|
"""


def metrics_page() -> str:
    """Render ``docs/metrics.md``.

    Raises:
        KeyError: A metric has nobody who says what to do about it, or a remedy has no metric.
    """
    operators = operator_metrics()
    stray = REMEDIES.keys() ^ METRICS.keys() | OPERATOR_REMEDIES.keys() ^ operators.keys()
    if stray:
        raise KeyError(f"metrics and remedies differ: {', '.join(sorted(stray))}")
    rows = [
        f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.help} | {REMEDIES[m.short]} |"
        for m in METRICS.values()
    ]
    operator_rows = [
        f"| `{name}` | {kind} | {labels} | {told} | {OPERATOR_REMEDIES[name]} |"
        for name, (kind, labels, told) in operators.items()
    ]
    return (
        METRICS_HEAD
        + "\n".join(rows)
        + "\n"
        + OPERATOR_METRICS_HEAD
        + "\n".join(operator_rows)
        + "\n"
    )


def operator_metrics() -> dict[str, tuple[str, str, str]]:
    """Type, labels and meaning of each of the operator's metrics, by name."""
    collected = OperatorMetrics(num_waiting=lambda: 0, num_clusters=lambda: 0)
    # Series with labels show only once they are used: passes have one.
    collected.passes.labels("complete")
    found = {}
    for family in collected.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = (family.type, ", ".join(sorted(labels)), family.documentation)
    return found


ERRORS_HEAD = """\
# Errors

All errors have vLLM's shape, `{"error": {"message", "type", "param", "code"}}`; `code` and the
header `x-pdcluster-reason` carry the same stable word; only `prefill-rejected` and
`decode-rejected` keep the engine's own body beside the header, where that is an error of vLLM's
shape. An engine's `Retry-After` is passed on, up to 3600 s. Rendered from
`proxy/pdcluster_proxy/core/error_codes.py` by `make generate`; do not edit.

A stream that has begun can't change its status: it ends with an error event, without `[DONE]`, and
the connection closes. 429 means that capacity is contended, 503 that nothing can serve; 4xx is
never used for a fault of ours.

| Status | Code | Meaning | What to do |
|---|---|---|---|
"""


def errors_page() -> str:
    """Render ``docs/errors.md``."""
    rows = [f"| {e.status} | `{code}` | {e.meaning} | {e.remedy} |" for code, e in CODES.items()]
    return ERRORS_HEAD + "\n".join(rows) + "\n"


def lifecycle_edges() -> Iterable[Edge]:
    """A process of ``pdcluster up``."""
    for (phase, event), target in lifecycle.TRANSITIONS.items():
        if isinstance(target, lifecycle.Phase) and phase is not target:
            yield phase.value, event.value, target.value


def peer_edges() -> Iterable[Edge]:
    """What one simulated engine knows of another."""
    for (state, event), row in peers.TRANSITIONS.items():
        if row.to is not None and (row.to is not state or row.actions):
            yield state.value, event.value, row.to.value


CHANGES_END = "<!-- towncrier release notes start -->"
CHANGES_HEAD = """\
# Changelog

What changed for users, newest first. The first section is rendered from `changes/` by
`make generate`.

"""


def changelog() -> str:
    """Render ``CHANGELOG.md``: what is not yet released, then what is, as it stands."""
    released = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition(CHANGES_END)[2]
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    parts = []
    for kind in config["tool"]["towncrier"]["type"]:
        fragments = sorted((ROOT / "changes").glob(f"*.{kind['directory']}.md"))
        if fragments:
            told = [
                f"- {path.read_text(encoding='utf-8').strip()} (#{path.name.partition('.')[0]})"
                for path in fragments
            ]
            parts.append("\n".join([f"### {kind['name']}", "", *told, ""]))
    text = "\n".join(parts) or "Nothing yet.\n"
    return f"{CHANGES_HEAD}## Unreleased\n\n{text}\n{CHANGES_END}{released}"


PAGES = {
    "CHANGELOG.md": changelog,
    "docs/conditions.md": conditions_page,
    "docs/errors.md": errors_page,
    "docs/state-machines.md": state_machines,
    "docs/metrics.md": metrics_page,
    "docs/resource.md": resource_page,
    **chart.PAGES,
}


def main() -> int:
    """Write or compare every page.

    Returns:
        0, or 1 where ``--check`` found a stale page.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args()
    stale = 0
    for name, render in PAGES.items():
        path, text = ROOT / name, render()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if args.check:
            print(f"{name} is not what its source says: run `make generate`", file=sys.stderr)
            stale = 1
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return stale


if __name__ == "__main__":
    sys.exit(main())
