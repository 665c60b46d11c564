"""Render ``docs/conditions.md``: every condition and every reason, with what to do.

Shell: it reads its source. What a condition or reason means is its docstring in
``pdcluster_api.conditions``; what to do about it stands here. A reason without a remedy, or a
remedy without a reason, fails ``make generate``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pdcluster_api import conditions
from pdcluster_api.conditions import (
    ConditionType,
    ConfigInvalidReason,
    InitialReason,
    Reason,
    TroubleReason,
)

__all__ = ["GATES", "REMEDIES", "conditions_page"]

GATES: Final = (
    ConditionType.CONFIG_VALID,
    ConditionType.PREFILL_READY,
    ConditionType.DECODE_READY,
    ConditionType.PROXY_READY,
)
"""The conditions that `Ready` needs; it repeats the reason and message of one that fails."""

_NOTHING: Final = "Nothing."
_WAIT: Final = "Wait. If it takes too long: `kubectl pdcluster logs NAME`."

REMEDIES: Final[Mapping[str, str]] = {
    # Before an operator has acted.
    InitialReason.WAITING_FOR_OPERATOR: (
        "See that an operator runs (`kubectl get deployments -A -l "
        "app.kubernetes.io/component=operator`) and that its `watchNamespaces` has this namespace."
    ),
    # The resource can't be acted on.
    ConfigInvalidReason.INVALID_SPEC: "Change the field that the message names.",
    ConfigInvalidReason.INVALID_TIMING: (
        "Raise `kvTransfer.kvLeaseDurationSeconds`, or lower `proxy.handOffDeadlineSeconds`; "
        "`pdcluster explain-lease -f FILE` shows every figure."
    ),
    ConfigInvalidReason.NOT_YET_SUPPORTED: (
        "Write what the message says instead; [The resource](resource.md#not-yet-supported) has "
        "the list."
    ),
    ConfigInvalidReason.NAME_TAKEN: (
        "Delete or rename the object that the message names, or make the PDCluster under another "
        "name. The operator looks again every 20 s."
    ),
    ConfigInvalidReason.POD_TEMPLATE_INVALID: (
        "Correct the field of `podTemplate` that the message names: it is spelt wrongly or of the "
        "wrong type."
    ),
    ConfigInvalidReason.APPLY_REJECTED: (
        "The message has the object's name and the API server's words. Change the field of the "
        "PDCluster that it comes from: that is tried at once. The same is tried again every 5 "
        "minutes, should it be the server that changes."
    ),
    ConfigInvalidReason.APPLY_FORBIDDEN: (
        "The message has the object's name, the API server's words and what to do: bring the "
        "operator's rights back, raise the quota, change the policy. It is tried again by itself, "
        "at the latest after a minute; nothing of the PDCluster has to be edited."
    ),
    ConfigInvalidReason.MANAGED_BY_ANOTHER: (
        "Uninstall one of the two operators, or give each namespaces of its own "
        "(`watchNamespaces`)."
    ),
    # Pods that do not come up.
    TroubleReason.IMAGE_UNAVAILABLE: (
        "Check the name and tag in the field that the message names, and that "
        "`spec.engine.imagePullSecrets` (of proxies: the chart's `imagePullSecrets`) names a "
        "Secret of this namespace that may pull it."
    ),
    TroubleReason.CONTAINER_CONFIG_INVALID: (
        "Make the Secret, ConfigMap or key that the message names, or correct the field that it "
        "names, as `spec.model.tokenSecretRef`; or use an image that does not need "
        "root, or set the chart's `runAsUser`."
    ),
    TroubleReason.VOLUME_UNAVAILABLE: (
        "Make the claim, Secret or ConfigMap that the message names; see that the claim can be "
        "mounted by several pods (`ReadOnlyMany` or `ReadWriteMany`)."
    ),
    TroubleReason.UNSCHEDULABLE: (
        "Give the nodes room, ask for less in `resources`, or correct `nodeSelector` and "
        "`tolerations` in `podTemplate`; the message counts the nodes and why each was refused."
    ),
    TroubleReason.CONTAINER_EXITS: (
        "Read why: `kubectl pdcluster logs NAME --previous`. Often: too little GPU memory, a flag "
        "this vLLM does not have, a model that can't be downloaded."
    ),
    TroubleReason.PODS_REJECTED: (
        "The message has the API server's words and what to do: raise the quota or ask for less, "
        "label the namespace for Pod Security, make the ServiceAccount or PriorityClass. "
        "Kubernetes tries again by itself, ever more seldom: [how to hurry it]"
        "(kubernetes/troubleshooting.md#podsrejected)."
    ),
    # Everything else.
    Reason.VALID: _NOTHING,
    Reason.SERVING: _NOTHING,
    Reason.ENGINES_READY: _NOTHING,
    Reason.ENGINES_STARTING: (
        "Mend what the message says they wait for, if anything; else wait: large models load for "
        "many minutes. `kubectl pdcluster logs NAME --role ROLE -f` "
        "shows how far they are; `startupTimeoutSeconds` is the limit."
    ),
    Reason.PROXIES_READY: _NOTHING,
    Reason.PROXIES_STARTING: (
        "Mend what the message says they wait for, if anything; else wait. If it takes too long: "
        "`kubectl pdcluster logs NAME --role proxy`."
    ),
    Reason.WAITING_FOR_ENGINES: "Look at `PrefillReady` and `DecodeReady`.",
    Reason.NO_PAIR: (
        "Clients get 503. Look at `PrefillReady` and `DecodeReady`; in a rollout with `DrainFirst` "
        "it passes."
    ),
    Reason.NO_PROXY: "Clients can't connect. Look at `ProxyReady`.",
    Reason.ASLEEP: "Scale both pools above 0 to wake it.",
    Reason.PAUSED: (
        "Remove the annotation `pdcluster.io/paused`, or set `rollout.paused` to false, to go on."
    ),
    Reason.ROLLING_OUT: _WAIT,
    Reason.UPDATING: _WAIT,
    Reason.STARTING: _WAIT,
    Reason.COMPLETE: _NOTHING,
    Reason.NOTHING_DUE: _NOTHING,
    Reason.NOT_MEASURED: "Nothing: it says neither yes nor no.",
    Reason.GRACE_SUFFICIENT: _NOTHING,
    Reason.GRACE_TOO_SHORT: (
        "Raise `drain.terminationGracePeriodSeconds` to what the message says, or leave it out."
    ),
    Reason.WITHIN_BOUNDS: _NOTHING,
    Reason.TOO_FEW_PREFILL: "Scale prefill up or decode down, or widen `spec.ratio`.",
    Reason.TOO_MANY_PREFILL: "Scale prefill down or decode up, or widen `spec.ratio`.",
}
"""What to do about each reason."""

_HEAD: Final = """\
# Conditions

What `status.conditions` of a PDCluster can say. Rendered from `crds/pdcluster_api/conditions.py`
and `tools/condition_page.py` by `make generate`; do not edit. Types and reasons are part of the
interface: none is renamed within a version of the API. `kubectl pdcluster status NAME` shows them
with their messages.

`True` is good, `False` is not, `Unknown` means that nobody has measured it. `Ready` is the one to
wait for. It needs {gates};
where one of these fails it repeats its reason and message: first what a person must mend, then
what may pass by itself, then what only takes its time.

`Stalled` is true where waiting does not help: each reason of `ConfigValid`, and `ImageUnavailable`,
`ContainerConfigInvalid`, `PodsRejected` (unless pods that leave may make room) and a
`VolumeUnavailable` for something that does not exist. With `Unschedulable` and `ContainerExits` it
is false: nodes may come, and a program may end only once.

```sh
kubectl wait --for=condition=Ready pdcluster/NAME --timeout=30m
```

waits for the change that was applied last: it ignores conditions of an older generation.

| Condition | True means |
|---|---|
"""
_REASON_HEAD: Final = "| Reason | Means | What to do |\n|---|---|---|\n"
_SECTIONS: Final = (
    (InitialReason, "Before an operator has looked"),
    (ConfigInvalidReason, "The resource can't be acted on: `ConfigValid=False`, `Stalled=True`"),
    (TroubleReason, "Pods do not come up: `PrefillReady`, `DecodeReady`, `ProxyReady`"),
    (Reason, "All others"),
)


def conditions_page() -> str:
    """Render the page.

    Raises:
        KeyError: A reason has no remedy, or a remedy no reason.
    """
    told = _docstrings(Path(conditions.__file__).read_text(encoding="utf-8"))
    reasons = {each.value for kind, _ in _SECTIONS for each in kind}
    stray = {str(each) for each in REMEDIES} ^ reasons
    if stray:
        raise KeyError(f"reasons and remedies differ: {', '.join(sorted(stray))}")
    gates = ", ".join(f"`{each.value}`" for each in GATES[:-1]) + f" and `{GATES[-1].value}`"
    rows = [f"| `{each.value}` | {told['ConditionType', each.name]} |" for each in ConditionType]
    page = _HEAD.format(gates=gates) + "\n".join(rows) + "\n"
    for kind, title in _SECTIONS:
        lines = [
            f"| `{each.value}` | {told[kind.__name__, each.name]} | {REMEDIES[each.value]} |"
            for each in kind
        ]
        page += f"\n## {title}\n\n{_REASON_HEAD}" + "\n".join(lines) + "\n"
    return page


def _docstrings(source: str) -> dict[tuple[str, str], str]:
    """The texts below the members of each class, by class and member."""
    found = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for member, text in zip(node.body, node.body[1:], strict=False):
            is_told = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if isinstance(member, ast.Assign) and is_told:
                assert isinstance(text, ast.Expr)
                assert isinstance(text.value, ast.Constant)
                (name,) = member.targets
                assert isinstance(name, ast.Name)
                found[node.name, name.id] = " ".join(str(text.value.value).split())
    return found
