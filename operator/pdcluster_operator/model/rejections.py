"""What the API server says where it won't have something, and what a person can do.

Pure. A table of its words; the first row that fits gives the remedy. It says of pods by way of
their Deployment what it says of our own objects to our face, so one table serves both.

Source: Kubernetes' admission plugins (resourcequota, limitranger, podsecurity, serviceaccount,
priority, runtimeclass, validating admission policies and webhooks), RBAC's authorizer and its
checks against escalation; the ReplicaFailure condition of Deployments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pdcluster_api.conditions import ConfigInvalidReason, TroubleReason
from pdcluster_operator.model.observed import Child, Trouble

__all__ = ["pods_rejected", "told", "wording"]

_MESSAGE_MAX: Final = 800

# "pods \"qwen-decode-6f9c-5d9-x7k2p\" is forbidden: ...": a pod's name is another at each try.
_PREAMBLE: Final = re.compile(r'^[\w. ]+ "[^"]*" is (forbidden|invalid): ')

_REMEDIES: Final = (
    (r"exceeded quota", "Raise that quota, or ask for less."),
    (
        r"failed quota",
        (
            "Set what it names in the role's resources, or give the namespace a LimitRange with "
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
        "Change the role's resources, or the namespace's LimitRange.",
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
    text = _PREAMBLE.sub("", " ".join(said.split())).rstrip(".")
    return text if len(text) <= _MESSAGE_MAX else f"{text[:_MESSAGE_MAX]}..."


def told(what: str, reason: str, said: str) -> str:
    """Tell a person what was rejected, why, and what to do.

    Args:
        what: What could not be done, for example ``Service qwen can't be applied``.
        reason: The condition's reason.
        said: What the server said.
    """
    remedy = next((text for words, text in _REMEDIES if re.search(words, said)), "")
    return f"{what}: {wording(said)}. {remedy or _OTHERWISE[reason]}"


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
            return Trouble(reason=reason, message=told("Pods can't be made", reason, said))
    return None
