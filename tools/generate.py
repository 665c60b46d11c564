"""Render the pages that are made from sources: state machines, metrics.

Shell. ``python -m tools.generate`` writes them, ``--check`` compares and fails where one is stale
(``make generate``, ``make check``). The CRDs have their own: ``python -m pdcluster_api``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from tools.metric_remedies import REMEDIES

from pdcluster_api.crd import render_files
from pdcluster_cli.up import lifecycle
from pdcluster_lease.lease import TRANSITIONS, LeaseState
from pdcluster_proxy.core import endpoint, exchange_table
from pdcluster_proxy.core.error_codes import CODES
from pdcluster_proxy.core.exchange import FINAL_STATES
from pdcluster_proxy.core.messages import EndpointState
from pdcluster_proxy.metrics import METRICS

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
    standings = [
        endpoint.EndpointStatus(),
        endpoint.EndpointStatus(upstream_failures=endpoint.UPSTREAM_FAILURES_TO_EJECT - 1),
    ]
    for state, event in endpoint.TABLE:
        targets: set[EndpointState] = set()
        for standing in standings:
            for until in (None, 0.0):
                for draining in (False, True):
                    given = endpoint.replace(standing, state=state, until=until, draining=draining)
                    targets.add(endpoint.step(given, event, now=1.0).state)
        for target in sorted(targets - {state}):
            yield state.value, event.value, target.value


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
            diagram(endpoint_edges(), first="ready"),
            "\n## A process of `pdcluster up` (`cli/pdcluster_cli/up/lifecycle.py`)\n",
            diagram(lifecycle_edges(), first="exited"),
            "",
        ]
    )


METRICS_HEAD = """\
# Metrics

Served by the companion on the admin port at `/metrics`, for all workers together. Rendered from
`proxy/pdcluster_proxy/metrics.py` and `tools/metric_remedies.py` by `make generate`; do not edit.

Labels are bounded: routes, statuses and codes are the proxy's own, endpoints are configured.

| Metric | Type | Labels | Meaning | What to do |
|---|---|---|---|---|
"""


def metrics_page() -> str:
    """Render ``docs/metrics.md``.

    Raises:
        KeyError: A metric has nobody who says what to do about it, or a remedy has no metric.
    """
    stray = REMEDIES.keys() ^ METRICS.keys()
    if stray:
        raise KeyError(f"metrics and remedies differ: {', '.join(sorted(stray))}")
    rows = [
        f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.help} | {REMEDIES[m.short]} |"
        for m in METRICS.values()
    ]
    return METRICS_HEAD + "\n".join(rows) + "\n"


RESOURCE_HEAD = """\
# The resource

`PDCluster`, group `pdcluster.io`, version `v1alpha1`. Rendered from the CRD by `make generate`; do
not edit. `pdcluster render -f FILE` shows what a resource becomes, `pdcluster explain-lease` the
times that follow from it. What no program honours yet is refused with its path; what only a
Kubernetes cluster can honour is accepted and listed by `render`.

| Field | Type | Default | Meaning |
|---|---|---|---|
"""


def leaves(schema: Mapping[str, Any], path: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Every field below a schema that has no fields of its own."""
    fields = schema.get("properties")
    if schema.get("type") == "array" and "properties" in schema.get("items", {}):
        yield from leaves(schema["items"], f"{path}[]")
    elif not fields:
        yield path, schema
    else:
        for name, inner in fields.items():
            yield from leaves(inner, f"{path}.{name}")


def resource_page() -> str:
    """Render ``docs/resource.md`` from the CRD's own schema."""
    crd = yaml.safe_load(render_files()["pdcluster.io_pdclusters.yaml"])
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    rows = []
    for path, leaf in leaves(schema, "spec"):
        default = json.dumps(leaf["default"]) if "default" in leaf else ""
        kind = " or ".join(leaf["enum"]) if "enum" in leaf else leaf.get("type", "any")
        text = " ".join(str(leaf.get("description", "")).split()).replace("|", "\\|")
        rows.append(f"| `{path}` | {kind} | {default and f'`{default}`'} | {text} |")
    return RESOURCE_HEAD + "\n".join(rows) + "\n"


ERRORS_HEAD = """\
# Errors

All errors have vLLM's shape, `{"error": {"message", "type", "param", "code"}}`; `code` and the
header `x-pdcluster-reason` carry the same stable word; only `prefill-refused` and `decode-refused`
keep the engine's own body beside the header. Rendered from
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
        if phase is not target:
            yield phase.value, event.value, target.value


PAGES = {
    "docs/errors.md": errors_page,
    "docs/state-machines.md": state_machines,
    "docs/metrics.md": metrics_page,
    "docs/resource.md": resource_page,
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
