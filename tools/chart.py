"""Render the parts of the chart that have their source elsewhere: CRDs, rights, values.

Pure but for the chart's page, whose written part is read. ``tools/generate.py`` writes and compares
what is rendered here.

* ``values.yaml`` and the table of values come from ``values.schema.json``, where each value has its
  description and default;
* rules come from ``pdcluster_operator.rights``;
* CRDs come from the models.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pdcluster_api.crd import render_files
from pdcluster_operator import rights

__all__ = ["CHART", "PAGES", "value_leaves"]

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "pdcluster"
WIDTH = 100
NOTE = "Rendered by `make generate`; do not edit."

# Where a group of rules stands in the chart, and for whom.
GROUPS: Mapping[str, tuple[tuple[rights.Rule, ...], str]] = {
    "operator": (
        rights.OPERATOR,
        (
            "The operator, in every namespace that it watches: a ClusterRole where it watches all, "
            "else a Role in each."
        ),
    ),
    "leader": (rights.LEADER, "The operator, in its own namespace: which replica acts."),
    "view": (
        rights.VIEW,
        "People who may view a namespace: added to the cluster's roles `view`, `edit`, `admin`.",
    ),
    "edit": (
        rights.EDIT,
        "People who may edit a namespace: added to the cluster's roles `edit` and `admin`.",
    ),
    "test": (rights.TEST, "The pod of `helm test`, while it runs."),
}


def schema() -> dict[str, Any]:
    """The schema of the chart's values."""
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return found


def _fields(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a value consists of; nothing where it is given as a whole."""
    return {} if "default" in node else node.get("properties", {})


def value_leaves(
    node: Mapping[str, Any] | None = None, path: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every value that has no values of its own, with its path."""
    for name, child in _fields(node if node is not None else schema()).items():
        where = f"{path}.{name}" if path else name
        if _fields(child):
            yield from value_leaves(child, where)
        else:
            yield where, child


def values_file() -> str:
    """Render ``values.yaml``."""
    lines = [
        f"# {NOTE}",
        "# Its source is values.schema.json; presets/ has values for whole situations.",
    ]
    for name, child in schema()["properties"].items():
        lines += ["", *_value(name, child, 0)]
    return "\n".join(lines) + "\n"


def _value(name: str, node: Mapping[str, Any], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for line in textwrap.wrap(node["description"], WIDTH - 2 - len(indent)):
        yield f"{indent}# {line}"
    fields = _fields(node)
    if fields:
        yield f"{indent}{name}:"
        for inner, child in fields.items():
            yield from _value(inner, child, depth + 1)
        return
    default = node["default"]
    if isinstance(default, dict) and default:
        yield f"{indent}{name}:"
        yield textwrap.indent(yaml.safe_dump(default, sort_keys=False).rstrip(), indent + "  ")
    else:
        yield f"{indent}{name}: {json.dumps(default)}"


def rules_template() -> str:
    """Render the rules as named templates."""
    parts = [f"{{{{/* {NOTE} Their source is operator/pdcluster_operator/rights.py. */}}}}"]
    for name, (rules, _) in GROUPS.items():
        body = "\n".join(_rule(rule) for rule in rules)
        body = body.replace(
            json.dumps(rights.INSTALLATION), '{{ include "pdcluster.fullname" . | quote }}'
        )
        parts.append(f'{{{{- define "pdcluster.rules.{name}" -}}}}\n{body}\n{{{{- end }}}}')
    return "\n\n".join(parts) + "\n"


def _rule(rule: rights.Rule) -> str:
    lines = [f"# {line}" for line in textwrap.wrap(rule.why, WIDTH - 4)]
    for number, (key, value) in enumerate(rule.as_policy_rule().items()):
        lines.append(f"{'  ' if number else '- '}{key}: {json.dumps(value)}")
    return "\n".join(lines)


RIGHTS_HEAD = """\
# Rights

Every RBAC rule that the chart makes. Rendered from `operator/pdcluster_operator/rights.py` by
`make generate`; do not edit. A test runs the operator with exactly these rules through a cluster's
whole life and compares them with the API server's audit log: each one is used, none is missing.
There is no rule for Secrets, custom resource definitions, namespaces or nodes. The proxies' own
Role, one per PDCluster, is made by the operator: list and watch pods of its namespace.
"""


def rights_page() -> str:
    """Render ``docs/rbac.md``."""
    parts = [RIGHTS_HEAD]
    for name, (rules, who) in GROUPS.items():
        parts += [
            f"## {name.capitalize()}",
            "",
            *textwrap.wrap(who, WIDTH),
            "",
            "| API group | Resources | Verbs | Why |",
            "|---|---|---|---|",
            *(_row(rule) for rule in rules),
            "",
        ]
    parts += ["## Granted, never seen", ""]
    for (group, resource, verb), why in rights.UNSEEN.items():
        parts += textwrap.wrap(
            f"`{verb}` on `{resource}.{group}`: {why}.", WIDTH, initial_indent="- "
        )
    return "\n".join(parts) + "\n"


def _row(rule: rights.Rule) -> str:
    resources = ", ".join(f"`{each}`" for each in rule.resources)
    if rule.names:
        resources += ", only the installation's own"
    return f"| {rule.group or 'core'} | {resources} | {', '.join(rule.verbs)} | {rule.why} |"


def whole_crds() -> str:
    """Render ``charts/crds.yaml``: both CRDs, for GitOps and for installs without them."""
    return "---\n".join(render_files().values())


def _crd_template(name: str) -> Callable[[], str]:
    def render() -> str:
        text = render_files()[name]
        assert "{{" not in text
        head, body = text.split("spec:\n", 1)
        annotations = (
            '  {{- $keep := ternary (dict "helm.sh/resource-policy" "keep") (dict)'
            " .Values.crds.keep }}\n"
            '  {{- include "pdcluster.annotations" (list $ $keep) | nindent 2 }}\n'
        )
        labels = '  labels:\n    {{- include "pdcluster.sharedLabels" . | nindent 4 }}\n'
        whole = f"{head}{labels}{annotations}spec:\n{body}"
        return f"{{{{- if .Values.crds.install }}}}\n{whole}{{{{- end }}}}\n"

    return render


README_BEGIN = "<!-- values begin: rendered by `make generate` -->"
README_END = "<!-- values end -->"


def chart_page() -> str:
    """Render the table of values into the chart's README; the rest is as written."""
    text = (CHART / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(README_BEGIN)
    after = rest.partition(README_END)[2]
    rows = [
        f"| `{path}` | `{json.dumps(leaf['default'])}` | {leaf['description']} |"
        for path, leaf in value_leaves()
    ]
    table = "\n".join(["", "| Value | Default | Meaning |", "|---|---|---|", *rows, ""])
    return f"{before}{README_BEGIN}\n{table}\n{README_END}{after}"


PAGES: Mapping[str, Callable[[], str]] = {
    "charts/crds.yaml": whole_crds,
    "charts/pdcluster/README.md": chart_page,
    "charts/pdcluster/values.yaml": values_file,
    "charts/pdcluster/templates/_rules.tpl": rules_template,
    **{
        f"charts/pdcluster/templates/crds/{name.removeprefix('pdcluster.io_')}": _crd_template(name)
        for name in render_files()
    },
    "docs/rbac.md": rights_page,
}
"""Files by name, each with what makes its text."""
