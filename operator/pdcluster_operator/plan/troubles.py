"""What is in the way of pods that should serve.

Pure. A pod that is there and does not get on is told first: letting more of its kind in would not
help. What keeps others from being made is told too, since neither goes with the other. Pods of an
earlier revision count where that is all: they leave anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pdcluster_api.labels import REVISION_LABEL, ROLE_LABEL
from pdcluster_api.proxy_config import Role
from pdcluster_operator.manifests.labels import ENGINE, PROXY
from pdcluster_operator.model.observed import Observed, Trouble
from pdcluster_operator.model.rejections import pods_rejected
from pdcluster_operator.model.sentences import joined

__all__ = ["trouble_of_any", "trouble_of_proxies", "trouble_of_role"]


def trouble_of_role(observed: Observed, role: Role, revision: str) -> Trouble | None:
    """What is in the way of a role's engines; None where they may just need time.

    Args:
        observed: The snapshot.
        role: The role.
        revision: The present revision.
    """
    return _trouble(observed, ENGINE, role, revision)


def trouble_of_proxies(observed: Observed) -> Trouble | None:
    """What is in the way of the proxies; None where they may just need time."""
    return _trouble(observed, PROXY, None, "")


def trouble_of_any(observed: Observed, revision: str) -> Trouble | None:
    """What is in the way of engines, or else of proxies; first what a person must mend."""
    found = [trouble_of_role(observed, role, revision) for role in Role]
    found.append(trouble_of_proxies(observed))
    troubles = [trouble for trouble in found if trouble is not None]
    return min(troubles, key=lambda trouble: not trouble.is_lasting, default=None)


def _trouble(
    observed: Observed, component: str, role: Role | None, revision: str
) -> Trouble | None:
    present: list[Trouble] = []
    earlier: list[Trouble] = []
    for pod in observed.pods:
        if pod.component == component and pod.role is role and pod.trouble is not None:
            is_present = pod.revision == revision
            told = Trouble(
                reason=pod.trouble.reason,
                message=f"{pod.name}: {pod.trouble.message}",
                is_lasting=pod.trouble.is_lasting and is_present,
            )
            (present if is_present else earlier).append(told)
    found = [*present[:1], *_rejected(observed, role, revision)] or earlier[:1]
    if not found:
        return None
    return Trouble(
        reason=found[0].reason,
        message=joined(*(each.message for each in found)),
        is_lasting=any(each.is_lasting for each in found),
    )


def _rejected(observed: Observed, role: Role | None, revision: str) -> Iterator[Trouble]:
    """Why the present Deployment's pods can't be made, where they can't."""
    # That of the proxies has neither label.
    labels = {ROLE_LABEL: "" if role is None else role.value, REVISION_LABEL: revision}
    for child in observed.own("Deployment"):
        if all(child.labels.get(name, "") == value for name, value in labels.items()):
            trouble = pods_rejected(child)
            if trouble is not None:
                # Those that leave make room.
                is_making_room = any(pod.is_terminating for pod in observed.pods)
                yield replace(trouble, is_lasting=trouble.is_lasting and not is_making_room)
