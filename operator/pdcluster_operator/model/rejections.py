"""What the API server says where it won't have something, and what a person can do.

Pure. A table of its words; the first row that fits gives the remedy. It says of pods by way of
their Deployment what it says of our own objects to our face, so one table serves both.

Source: Kubernetes' admission plugins (resourcequota, limitranger, podsecurity, serviceaccount,
priority, runtimeclass, validating admission policies and webhooks), RBAC's authorizer and its
checks against escalation; the ReplicaFailure condition of Deployments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from pdcluster_api.conditions import ConfigInvalidReason, TroubleReason
from pdcluster_api.labels import ROLE_LABEL
from pdcluster_operator.manifests.labels import PROXY
from pdcluster_operator.model.observed import Child, Trouble
from pdcluster_operator.model.sentences import cut, joined, without_end

__all__ = ["pods_rejected", "told", "wording"]

_MESSAGE_MAX: Final = 800

# "pods \"qwen-decode-6f9c-5d9-x7k2p\" is forbidden: ...": a pod's name is another at each try.
_PREAMBLE: Final = re.compile(r'^[\w. ]+ "[^"]*" is (forbidden|invalid): ')

# {part} is the part of the spec that pods come from; an object takes no room that could be less.
_ROOM: Final = (
    (
        (
            r"exceeded quota.*requested: [^:]*"
            r"\b(cpu|memory|ephemeral-storage|(?!count/)[\w.-]+/[\w.-]+)="
        ),
        "Raise that quota, or ask for less: {part}.replicas, {part}.resources.",
    ),
    (r"exceeded quota", "Raise that quota, or want fewer of them: {part}.replicas."),
)
_REMEDIES: Final = (
    (r"exceeded quota", "Raise that quota."),
    (
        r"failed quota",
        (
            "Set what it names in {part}.resources, or give the namespace a LimitRange with "
            "defaults."
        ),
    ),
    (
        r"violates PodSecurity",
        (
            "Label the namespace for a level that allows such pods "
            "(pod-security.kubernetes.io/enforce), or take what it names out of podTemplate."
        ),
    ),
    (
        r"security context constraint",
        (
            "Let the pods' ServiceAccount use a constraint that fits; set the chart's runAsUser to "
            "any where the platform chooses users."
        ),
    ),
    (
        r'serviceaccount "[^"]*" not found',
        "Make that ServiceAccount, or correct serviceAccountName in podTemplate.",
    ),
    (r"PriorityClass", "Make that PriorityClass, or correct priorityClassName in podTemplate."),
    (r"RuntimeClass", "Make that RuntimeClass, or correct runtimeClassName in podTemplate."),
    (
        r"(maximum|minimum|max limit|limit to request) .*per ",
        "Change {part}.resources, or the namespace's LimitRange.",
    ),
    (
        r"(cannot \w+ resource|not currently held|cannot set blockOwnerDeletion)",
        "Give the operator its rights: upgrade the chart's release, which brings its roles.",
    ),
    (r"failed calling webhook", "Bring that webhook back, or delete its configuration."),
    (
        r"denied (the )?request",
        "Change in the PDCluster what that policy objects to, or have it let this pass.",
    ),
)
_OTHERWISE: Final[Mapping[str, str]] = {
    ConfigInvalidReason.APPLY_REJECTED: "Change the field of the PDCluster that this comes from.",
    ConfigInvalidReason.POD_TEMPLATE_INVALID: "Correct podTemplate.",
    ConfigInvalidReason.APPLY_FORBIDDEN: "Let the operator do it, or change the PDCluster.",
    TroubleReason.PODS_REJECTED: "kubectl describe replicaset tells more.",
}


def wording(said: str) -> str:
    """The server's words on one line, without the object's name, which differs from try to try."""
    return cut(without_end(_PREAMBLE.sub("", " ".join(said.split()))), _MESSAGE_MAX)


def told(what: str, reason: str, said: str) -> str:
    """Tell a person what was rejected, why, and what to do.

    Args:
        what: What could not be done, for example ``Service qwen can't be applied``.
        reason: The condition's reason.
        said: What the server said.
    """
    return _told(what, reason, said, _REMEDIES, "spec.<role>")


def _told(what: str, reason: str, said: str, remedies: Iterable[tuple[str, str]], part: str) -> str:
    remedy = next((text for words, text in remedies if re.search(words, said)), _OTHERWISE[reason])
    return joined(f"{what}: {wording(said)}", remedy.replace("{part}", part))


def pods_rejected(deployment: Child) -> Trouble | None:
    """Tell why a Deployment's pods can't be made; None where nothing speaks against it.

    The words are those of the first rejection: Kubernetes keeps them until a pod could be made.
    """
    status = deployment.live.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for each in conditions if isinstance(conditions, list | tuple) else ():
        if not isinstance(each, Mapping):
            continue
        is_failing = each.get("type") == "ReplicaFailure" and each.get("status") == "True"
        if is_failing and each.get("reason") == "FailedCreate":
            reason, said = TroubleReason.PODS_REJECTED, str(each.get("message") or "")
            # The proxies' Deployment has no role.
            part = f"spec.{deployment.labels.get(ROLE_LABEL) or PROXY}"
            message = _told("Pods can't be made", reason, said, (*_ROOM, *_REMEDIES), part)
            return Trouble(reason=reason, message=message, is_lasting=True)
    return None
