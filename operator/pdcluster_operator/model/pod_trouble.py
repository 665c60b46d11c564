"""Why a pod does not get on, and what a person can do.

Pure. A table of what kubelet and scheduler say; the first row that fits gives reason and remedy.

Source: kubelet's container waiting reasons (images/types.go, kuberuntime), the scheduler's
PodScheduled condition, kubelet's FailedMount and FailedAttachVolume events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pdcluster_api.conditions import TroubleReason
from pdcluster_api.labels import ROLE_LABEL
from pdcluster_operator.manifests.labels import COMPONENT_LABEL, ENGINE, PROXY
from pdcluster_operator.model.observed import RawObject, Trouble
from pdcluster_operator.model.sentences import cut, joined

__all__ = ["is_being_made", "trouble_of"]

_IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
_CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError"})
_VOLUME_EVENTS: Final = frozenset({"FailedMount", "FailedAttachVolume"})
_MESSAGE_MAX: Final = 400

_LASTING: Final = frozenset(
    {TroubleReason.IMAGE_UNAVAILABLE, TroubleReason.CONTAINER_CONFIG_INVALID}
)
"""What does not pass before a person acts. Nodes may come, and a program may end only once."""

_OF_PROXIES: Final = (
    "The operator makes the proxies' ConfigMap: see ConfigValid. Make whatever else is missing."
)
_TOKEN_VARIABLE: Final = "HF_TOKEN"  # noqa: S105 - a variable's name


def trouble_of(pod: RawObject, events: Iterable[RawObject]) -> Trouble | None:
    """Tell what is wrong with a pod that is not ready; None where it may just need time.

    Args:
        pod: The pod.
        events: Events about it: a volume that can't be mounted shows nowhere else.
    """
    return next(_troubles(pod, events), None)


def is_being_made(pod: RawObject) -> bool:
    """Whether a pod is on a node and its containers do not exist yet: Events tell what it lacks."""
    status = pod.get("status")
    statuses = status.get("containerStatuses") if isinstance(status, Mapping) else None
    for container in _maps(statuses):
        state = container.get("state")
        waiting = state.get("waiting") if isinstance(state, Mapping) else None
        if isinstance(waiting, Mapping) and waiting.get("reason") == "ContainerCreating":
            return True
    return False


def _troubles(pod: RawObject, events: Iterable[RawObject]) -> Iterator[Trouble]:
    status = pod.get("status")
    if not isinstance(status, Mapping):
        return
    part = _part(pod)
    for condition in _maps(status.get("conditions")):
        is_unscheduled = (
            condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        )
        if is_unscheduled and condition.get("reason") == "Unschedulable":
            yield _trouble(
                TroubleReason.UNSCHEDULABLE,
                condition.get("message"),
                f"Give the nodes room, or ask for less in spec.{part or '<role>'}.resources.",
            )
    for container in _containers(status):
        yield from _of_container(container, pod)
    for event in events:
        if event.get("reason") in _VOLUME_EVENTS:
            said = str(event.get("message") or "")
            yield _trouble(
                TroubleReason.VOLUME_UNAVAILABLE,
                said,
                _volume_remedy(part),
                # What is mounted elsewhere may be let go, and kubelet may have looked too early.
                is_lasting=said.rstrip(". ").endswith("not found"),
            )


def _part(pod: RawObject) -> str:
    """The part of the resource's spec that a pod comes from: a role or ``proxy``; "" unknown."""
    metadata = pod.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    if not isinstance(labels, Mapping):
        return ""
    return PROXY if labels.get(COMPONENT_LABEL) == PROXY else str(labels.get(ROLE_LABEL) or "")


def _of_container(container: Mapping[str, object], pod: RawObject) -> Iterator[Trouble]:
    state = container.get("state")
    waiting = state.get("waiting") if isinstance(state, Mapping) else None
    reason, said = None, None
    if isinstance(waiting, Mapping):
        reason, said = waiting.get("reason"), waiting.get("message")
    if reason in _IMAGE_REASONS:
        yield _trouble(
            TroubleReason.IMAGE_UNAVAILABLE,
            f"{container.get('image')}: {said or reason}",
            _image_remedy(str(container.get("name") or ""), _part(pod)),
        )
    if reason in _CONFIG_REASONS:
        remedy = _config_remedy(str(said or ""), pod)
        yield _trouble(TroubleReason.CONTAINER_CONFIG_INVALID, said or reason, remedy)
    ended = _last_end(container)
    if ended is not None:
        detail = ended.get("message") or ended.get("reason")
        text = f"container {container.get('name')} ended with {ended.get('exitCode')}"
        yield _trouble(
            TroubleReason.CONTAINER_EXITS,
            f"{text}: {detail}" if detail else text,
            "Read its log: kubectl logs --previous.",
        )


def _volume_remedy(part: str) -> str:
    if part == PROXY:
        return _OF_PROXIES
    return (
        "Make the missing Secret, ConfigMap or claim, or correct its name in the resource "
        f"(spec.model.cache.persistentVolumeClaim, spec.{part or '<role>'}.podTemplate)."
    )


def _image_remedy(container: str, part: str) -> str:
    if container not in {ENGINE, PROXY} or not part:
        # The user's own, beside ours; proxies have no podTemplate.
        where = f"spec.{part or '<role>'}.podTemplate"
        if part == PROXY:
            where = "a container that the operator has not made"
    elif part == PROXY:
        return (
            "Check the image's name (spec.proxy.image, or else the chart's image), and the chart's "
            "imagePullSecrets."
        )
    else:
        where = f"spec.{part}.image, or else spec.engine.image"
    return f"Check the image's name ({where}), and spec.engine.imagePullSecrets."


def _config_remedy(said: str, pod: RawObject) -> str:
    if "non-root" in said or "runAsNonRoot" in said:
        return "Use an image that does not need root, or set runAsUser in the chart's values."
    part, variables = _part(pod), sorted(set(_variables(pod, said)))
    if part == PROXY:
        return _OF_PROXIES
    if part and variables == [_TOKEN_VARIABLE]:
        field = "key" if "find key" in said else "name"
        where = f"spec.model.tokenSecretRef.{field}"
    else:
        fields = f"spec.{part}" if part else "spec.<role>"
        where = f"spec.model.tokenSecretRef, spec.engine.env, {fields}.env, {fields}.podTemplate"
        if variables:
            where += f": variable {', '.join(variables)}"
    return f"Make the missing Secret, ConfigMap or key, or correct what names it ({where})."


def _variables(pod: RawObject, said: str) -> Iterator[str]:
    """Variables whose value comes from a Secret or ConfigMap that kubelet names."""
    # As kubelet writes them: secret "hf" not found; couldn't find key token in Secret serving/hf.
    words = set(re.findall(r"[\w.-]+", said))
    spec = pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    for container in _maps(containers):
        for variable in _maps(container.get("env")):
            source = variable.get("valueFrom")
            for name in ("secretKeyRef", "configMapKeyRef"):
                reference = source.get(name) if isinstance(source, Mapping) else None
                if isinstance(reference, Mapping) and reference.get("name") in words:
                    yield str(variable.get("name"))


def _last_end(container: Mapping[str, object]) -> Mapping[str, object] | None:
    """How the container ended last, where that was a failure."""
    for name in ("state", "lastState"):
        state = container.get(name)
        ended = state.get("terminated") if isinstance(state, Mapping) else None
        if isinstance(ended, Mapping) and ended.get("exitCode"):
            return ended
    return None


def _containers(status: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    yield from _maps(status.get("initContainerStatuses"))
    yield from _maps(status.get("containerStatuses"))


def _maps(value: object) -> Iterator[Mapping[str, object]]:
    if isinstance(value, list | tuple):
        yield from (each for each in value if isinstance(each, Mapping))


def _trouble(
    reason: TroubleReason, said: object, remedy: str, *, is_lasting: bool = False
) -> Trouble:
    return Trouble(
        reason=reason,
        message=joined(cut(str(said or ""), _MESSAGE_MAX), remedy),
        is_lasting=is_lasting or reason in _LASTING,
    )
