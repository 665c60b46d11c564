"""What the operator may do in the Kubernetes API, and what people may do with its resources.

Pure. The one source of every RBAC rule: the chart's rules are rendered from it, and a test holds
the audit log of a cluster's whole life against it, so that nothing is granted that is not used.
Deliberately absent: Secrets (what is missing shows in a pod's status or Events), custom resource
definitions, namespaces and nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from pdcluster_api import defaults

__all__ = [
    "EDIT",
    "INSTALLATION",
    "LEADER",
    "OPERATOR",
    "TEST",
    "UNSEEN",
    "VIEW",
    "Grant",
    "Rule",
    "grants",
]

INSTALLATION: Final = "INSTALLATION"
"""Stands in a rule's names for the name of the installation, which only the chart knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of a Role.

    Attributes:
        group: API group, "" for the core one.
        resources: Plurals, with the subresource behind a slash.
        verbs: What may be done.
        names: Which objects alone; empty for all.
        why: What it is for.
    """

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    why: str

    def as_policy_rule(self) -> dict[str, list[str]]:
        """The rule as Kubernetes writes it."""
        rule = {
            "apiGroups": [self.group],
            "resources": list(self.resources),
            "verbs": list(self.verbs),
        }
        return rule | ({"resourceNames": list(self.names)} if self.names else {})


_WATCH: Final = ("list", "watch")
_KEEP: Final = ("get", *_WATCH, "create", "patch")
"""For a child: seen, looked at by name before it is first made, and applied. An apply that creates
needs both `create` and `patch`."""
_KEEP_AND_DELETE: Final = (*_KEEP, "delete")

OPERATOR: Final = (
    Rule(
        group=defaults.API_GROUP,
        resources=("pdclusters",),
        verbs=_WATCH,
        why="what is asked for; never written",
    ),
    Rule(
        group=defaults.API_GROUP,
        resources=("pdclusters/status", "pdpools/status"),
        verbs=("patch",),
        why="conditions, counts, the URL; what a scaler reads",
    ),
    Rule(
        group=defaults.API_GROUP,
        resources=("pdclusters/finalizers",),
        verbs=("update",),
        why="children that block their owner's foreground deletion, where the API server asks",
    ),
    Rule(
        group=defaults.API_GROUP,
        resources=("pdpools",),
        verbs=_KEEP,
        why="the number of engines of a role, for `kubectl scale` and autoscalers",
    ),
    Rule(
        group="apps",
        resources=("deployments",),
        verbs=_KEEP_AND_DELETE,
        why="engines and proxies; the old revision is deleted when the new one serves",
    ),
    Rule(
        group="apps",
        resources=("controllerrevisions",),
        verbs=_KEEP_AND_DELETE,
        why="how engines were rendered first, so that an upgrade of the operator restarts none",
    ),
    Rule(
        group="",
        resources=("services", "configmaps", "serviceaccounts"),
        verbs=_KEEP,
        why="addresses, the proxies' configuration, accounts with pull secrets",
    ),
    Rule(
        group="policy",
        resources=("poddisruptionbudgets",),
        verbs=_KEEP,
        why="a drained node takes one pod at a time",
    ),
    Rule(
        group="networking.k8s.io",
        resources=("networkpolicies",),
        verbs=_KEEP_AND_DELETE,
        why="who may connect; deleted where `networkPolicy.enabled` turns false",
    ),
    Rule(
        group="rbac.authorization.k8s.io",
        resources=("roles", "rolebindings"),
        verbs=_KEEP,
        why="the proxies' right to watch pods; more than it has itself it can't hand on",
    ),
    Rule(
        group="",
        resources=("pods",),
        verbs=_WATCH,
        why="readiness and troubles; handed on to the proxies",
    ),
    Rule(
        group="",
        resources=("events",),
        verbs=("create", "list"),
        why="what happened, told at the PDCluster; why a pod does not start",
    ),
)
"""In every namespace that is watched."""

LEADER: Final = (
    Rule(
        group="coordination.k8s.io",
        resources=("leases",),
        verbs=("create",),
        why="if somebody deleted it; `create` can't be narrowed by name",
    ),
    Rule(
        group="coordination.k8s.io",
        resources=("leases",),
        names=(INSTALLATION,),
        verbs=("get", "update"),
        why="which replica acts",
    ),
)
"""In the operator's own namespace."""

VIEW: Final = (
    Rule(
        group=defaults.API_GROUP,
        resources=("pdclusters", "pdpools"),
        verbs=("get", *_WATCH),
        why="look at clusters and pools",
    ),
    Rule(
        group=defaults.API_GROUP,
        resources=("pdclusters/status", "pdpools/status", "pdpools/scale"),
        verbs=("get",),
        why="the same, read one by one",
    ),
)
"""For people who may view a namespace."""

EDIT: Final = (
    Rule(
        group=defaults.API_GROUP,
        resources=("pdclusters",),
        verbs=("get", *_WATCH, "create", "update", "patch", "delete", "deletecollection"),
        why="make, change and delete clusters",
    ),
    Rule(
        group=defaults.API_GROUP,
        resources=("pdpools",),
        verbs=("get", *_WATCH, "update", "patch"),
        why="change a pool; the operator alone makes and deletes them",
    ),
    Rule(
        group=defaults.API_GROUP,
        resources=("pdpools/scale",),
        verbs=("get", "update", "patch"),
        why="`kubectl scale pdpool/NAME`",
    ),
)
"""For people who may edit a namespace."""

TEST: Final = (
    Rule(
        group=defaults.API_GROUP,
        resources=("pdclusters",),
        verbs=("create", "get", "delete"),
        why="`helm test`: one simulated cluster, looked at and deleted again",
    ),
)
"""For the chart's test."""

Grant: TypeAlias = tuple[str, str, str]
"""Group, resource and verb."""

UNSEEN: Final[Mapping[Grant, str]] = {
    (defaults.API_GROUP, "pdclusters/finalizers", "update"): (
        "no request: the admission plugin OwnerReferencesPermissionEnforcement asks for it, on "
        "platforms that turn it on"
    ),
}
"""Grants that no request ever shows, and why they are there all the same."""


def grants(*rules: Rule) -> Iterator[Grant]:
    """Every single grant of some rules."""
    for rule in rules:
        for resource in rule.resources:
            for verb in rule.verbs:
                yield rule.group, resource, verb
