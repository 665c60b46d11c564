"""What the operator saw: the status of a PDCluster.

Pure. Read leniently, written strictly: an older operator's status may lack fields.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic import StringConstraints as Text

from pdcluster_api.conditions import ConditionType, InitialReason
from pdcluster_api.proxy_config import Role
from pdcluster_api.v1alpha1.shape import ListMap, Spec

__all__ = [
    "Condition",
    "ConditionStatus",
    "DrainStatus",
    "DrainStep",
    "LeaseStatus",
    "PDClusterStatus",
    "RevisionStatus",
    "RoleStatus",
]

_INT64 = {"format": "int64"}
_Instant = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class _Status(Spec):
    model_config = ConfigDict(extra="ignore")


class ConditionStatus(StrEnum):
    """Whether a condition holds; a missing measurement is Unknown."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(_Status):
    """One condition, as in Kubernetes' API conventions."""

    type: Annotated[str, Text(max_length=316)]
    """Name of the condition. Example Ready."""
    status: ConditionStatus
    """Whether it holds. Example True."""
    observed_generation: Annotated[int, Field(ge=0, json_schema_extra=_INT64)] | None = None
    """The generation it speaks of. Example 7."""
    last_transition_time: _Instant
    """When status last changed. Example 2026-11-29T12:00:00Z."""
    reason: Annotated[
        str,
        Text(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
    ]
    """Stable word for programs. Example Serving."""
    message: Annotated[str, Text(max_length=32_768)]
    """For people. Example 2 of 2 prefill engines are ready."""


class RevisionStatus(_Status):
    """What prefill and decode engines must share to pair."""

    current: str | None = None
    """Revision that serves. Example 6f9c12ab."""
    updated: str | None = None
    """Revision that is wanted. Example 6f9c12ab."""


class RoleStatus(_Status):
    """The engines of one role; a count nobody could take is absent, never 0."""

    name: Role
    """The role. Example prefill."""
    desired: int | None = None
    """Engines wanted. Example 2."""
    ready: int | None = None
    """Engines that serve. Example 2."""
    updated: int | None = None
    """Engines of the wanted revision. Example 2."""
    draining: int | None = None
    """Engines that leave. Example 0."""
    ready_of_desired: str | None = None
    """For the printed column. Example 2/2."""


class LeaseStatus(_Status):
    """What follows from the lease duration, in seconds."""

    duration_seconds: int
    """The initial grant. Example 30."""
    heartbeat_seconds: int
    """How often a decode engine renews. Example 5."""
    extension_seconds: int
    """What one renewal grants. Example 20."""
    hand_off_deadline_seconds: int | None = None
    """Latest start of decode for a pair that never met, where the lease bounds it. Example 14."""
    termination_grace_seconds: int
    """Termination grace of a prefill engine. Example 155."""


class DrainStep(StrEnum):
    """How far an engine has got on its way out."""

    SETTLING = "Settling"
    PREFILLING = "Prefilling"
    HOLDING_KV = "HoldingKV"
    EXITING = "Exiting"


class DrainStatus(_Status):
    """One engine on its way out."""

    pod: str
    """Name of the pod. Example qwen-prefill-6f9c12ab-x2v4c."""
    step: DrainStep
    """How far it has got. Example HoldingKV."""
    held: int | None = None
    """Leases it still holds; absent where nobody could tell. Example 3."""
    since: _Instant
    """When the drain began. Example 2026-11-29T12:00:00Z."""
    deadline: _Instant
    """When it is stopped regardless. Example 2026-11-29T12:02:35Z."""


def _waiting() -> tuple[Condition, ...]:
    # kstatus, Flux and people must not take a resource nobody has looked at for a healthy one.
    return (
        Condition(
            type=ConditionType.READY,
            status=ConditionStatus.UNKNOWN,
            reason=InitialReason.WAITING_FOR_OPERATOR,
            message="No operator has looked at this resource yet.",
            last_transition_time="1970-01-01T00:00:00Z",
        ),
    )


class PDClusterStatus(_Status):
    """What the operator saw; without an operator the default stays."""

    observed_generation: Annotated[int, Field(json_schema_extra=_INT64)] | None = None
    """The generation that was acted on. Example 7."""
    url: str | None = None
    """Where clients connect. Example http://qwen.serving.svc."""
    summary: str | None = None
    """Engines in short. Example 2P4D."""
    revision: RevisionStatus | None = None
    """What prefill and decode engines must share to pair."""
    roles: Annotated[tuple[RoleStatus, ...], Field(max_length=2), ListMap("name")] = ()
    """One entry per role."""
    lease: LeaseStatus | None = None
    """What follows from the lease duration."""
    drains: Annotated[tuple[DrainStatus, ...], Field(max_length=64), ListMap("pod")] = ()
    """Engines on their way out."""
    conditions: Annotated[tuple[Condition, ...], ListMap("type")] = _waiting()
    """What holds and why; every reason is documented."""
