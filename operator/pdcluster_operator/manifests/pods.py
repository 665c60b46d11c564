"""From a program to a container: command, environment, ports, probes.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pdcluster_api.v1alpha1 import RoleSpec
from pdcluster_api.v1alpha1.role import ResourcesSpec
from pdcluster_operator.program.programs import (
    Environment,
    EnvValue,
    PodField,
    Port,
    Probe,
    Probes,
)

__all__ = [
    "CONTAINER_SECURITY",
    "SIGNALS",
    "environment",
    "pod_security",
    "ports",
    "probes",
    "pull_secrets",
    "resources",
]

RUN_AS_USER: Final = 65532

CONTAINER_SECURITY: Final[Mapping[str, object]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
"""What Pod Security ``restricted`` asks of a container."""


SIGNALS: Final[Mapping[str, object]] = {"shareProcessNamespace": True}
"""Process 1 of a namespace does not get a TERM that it has no handler for, and programs, vLLM too,
have theirs only some seconds after their start: a pod deleted in between would stay, with its GPUs,
for its whole grace. So process 1 is Kubernetes' own, and TERM ends whoever has no handler yet."""


def pod_security(run_as_user: int | None) -> dict[str, object]:
    """What Pod Security ``restricted`` asks of a pod.

    Args:
        run_as_user: The user where the image may name root or nobody; None where the platform
            chooses one.
    """
    security: dict[str, object] = {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if run_as_user is not None:
        # The group too: a mounted claim must be readable and a scratch volume writable.
        security |= {"runAsUser": run_as_user, "runAsGroup": run_as_user, "fsGroup": run_as_user}
    return security


def environment(variables: Environment) -> list[dict[str, object]]:
    """Variables in order; one that names a field of the pod stands before who refers to it."""
    # $(NAME) is filled in from variables further up only.
    fields = [pair for pair in variables if isinstance(pair[1], PodField)]
    others = [pair for pair in variables if not isinstance(pair[1], PodField)]
    return [{"name": name, **_value(value)} for name, value in (*fields, *others)]


def _value(value: EnvValue) -> dict[str, object]:
    if isinstance(value, str):
        return {"value": value}
    if isinstance(value, PodField):
        return {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": value.path}}}
    source = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"valueFrom": source}


def ports(listens_on: tuple[Port, ...]) -> list[dict[str, object]]:
    """Container ports."""
    return [
        {"name": port.name, "containerPort": port.number, "protocol": "TCP"} for port in listens_on
    ]


def probes(asked: Probes) -> dict[str, object]:
    """The three probes."""
    return {
        "startupProbe": _probe(asked.startup),
        "readinessProbe": _probe(asked.readiness),
        "livenessProbe": _probe(asked.liveness),
    }


def _probe(probe: Probe) -> dict[str, object]:
    return {
        "httpGet": {"path": probe.path, "port": probe.port, "scheme": "HTTP"},
        "periodSeconds": probe.period_s,
        "timeoutSeconds": probe.timeout_s,
        "failureThreshold": probe.failures,
        "successThreshold": 1,
    }


def resources(asked: ResourcesSpec) -> dict[str, object]:
    """Requests and limits, where there are any."""
    stated = asked.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {name: value for name, value in stated.items() if value}


def pull_secrets(names: tuple[str, ...]) -> list[dict[str, str]]:
    """References to Secrets."""
    return [{"name": name} for name in names]


def image_of(role: RoleSpec, engine_image: str) -> str:
    """A role's image."""
    return role.image or engine_image
