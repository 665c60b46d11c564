"""Why a pod does not get on, and what a person can do.

Pure. A table of what kubelet and scheduler say; the first row that fits gives reason and remedy.

Source: kubelet's container waiting reasons (images/types.go, kuberuntime), the scheduler's
PodScheduled condition, kubelet's FailedMount and FailedAttachVolume events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pdcluster_api.conditions import TroubleReason
from pdcluster_operator.model.observed import RawObject, Trouble

__all__ = ["is_being_made", "trouble_of"]

_IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
_CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError"})
_VOLUME_EVENTS: Final = frozenset({"FailedMount", "FailedAttachVolume"})
_MESSAGE_MAX: Final = 400


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
    for condition in _maps(status.get("conditions")):
        is_unscheduled = (
            condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        )
        if is_unscheduled and condition.get("reason") == "Unschedulable":
            yield _trouble(
                TroubleReason.UNSCHEDULABLE,
                condition.get("message"),
                "Give the nodes room, or ask for less in spec.<role>.resources.",
            )
    for container in _containers(status):
        yield from _of_container(container)
    for event in events:
        if event.get("reason") in _VOLUME_EVENTS:
            yield _trouble(
                TroubleReason.VOLUME_UNAVAILABLE,
                event.get("message"),
                "Make the missing Secret, ConfigMap or claim, or correct its name.",
            )


def _of_container(container: Mapping[str, object]) -> Iterator[Trouble]:
    state = container.get("state")
    waiting = state.get("waiting") if isinstance(state, Mapping) else None
    reason, said = None, None
    if isinstance(waiting, Mapping):
        reason, said = waiting.get("reason"), waiting.get("message")
    if reason in _IMAGE_REASONS:
        yield _trouble(
            TroubleReason.IMAGE_UNAVAILABLE,
            f"{container.get('image')}: {said or reason}",
            "Check the image's name, and spec.engine.imagePullSecrets.",
        )
    if reason in _CONFIG_REASONS:
        yield _trouble(TroubleReason.CONTAINER_CONFIG_INVALID, said or reason, _config_remedy(said))
    ended = _last_end(container)
    if ended is not None:
        detail = ended.get("message") or ended.get("reason") or ""
        yield _trouble(
            TroubleReason.CONTAINER_EXITS,
            f"container {container.get('name')} ended with {ended.get('exitCode')}: {detail}",
            "Read its log: kubectl logs --previous.",
        )


def _config_remedy(said: object) -> str:
    text = str(said or "")
    if "non-root" in text or "runAsNonRoot" in text:
        return "Use an image that does not need root, or set runAsUser in the chart's values."
    return "Make the missing Secret or ConfigMap, or correct its name in the resource."


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


def _trouble(reason: TroubleReason, said: object, remedy: str) -> Trouble:
    text = " ".join(str(said or "").split())
    if len(text) > _MESSAGE_MAX:
        text = text[:_MESSAGE_MAX] + "..."
    return Trouble(reason=reason, message=f"{text.rstrip('.')}. {remedy}")
