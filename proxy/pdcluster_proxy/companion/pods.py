"""From the pods of a PDCluster to the endpoints of its pools.

Pure. Every engine's pod says by labels and annotations what the operator knows of it: role,
revision, lease. A pod whose engine has come up is an endpoint, one that is on its way out is a
draining one, and any other is none yet. Whether an endpoint serves now is our own checks' to say:
Kubernetes calls a pod unready late, and all pods of a node at once where only the node's agent is
away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import ValidationError

from pdcluster_api.labels import (
    LEASE_ANNOTATION,
    REVISION_LABEL,
    ROLE_LABEL,
    SIDE_CHANNEL_ANNOTATION,
)
from pdcluster_api.proxy_config import EndpointConfig, EndpointsFile, Role

__all__ = ["endpoint_of_pod", "endpoints_of_pods"]

_ROLES: Final = {role.value: role for role in Role}
_CONTAINER: Final = "engine"
_HTTP: Final = "http"


def endpoints_of_pods(
    pods: Iterable[Mapping[str, object]],
) -> tuple[EndpointsFile, tuple[str, ...]]:
    """The endpoints of a cluster, by name, and what is wrong with pods that can be none."""
    found, faults = [], []
    for pod in pods:
        try:
            endpoint = endpoint_of_pod(pod)
        except ValidationError as error:
            # One pod that nobody understands must not hide the others.
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            faults.append(f"{_map(pod.get('metadata')).get('name')}: {field}: {first['msg']}")
        else:
            found += [endpoint] if endpoint is not None else []
    found.sort(key=lambda each: each.name)
    return EndpointsFile(endpoints=tuple(found)), tuple(sorted(faults))


def endpoint_of_pod(pod: Mapping[str, object]) -> EndpointConfig | None:
    """One pod's endpoint; None where its engine is not up, or it is no engine of ours.

    Args:
        pod: As the API server gives it.

    Raises:
        ValidationError: A label or annotation holds what no endpoint can have.
    """
    metadata, status = _map(pod.get("metadata")), _map(pod.get("status"))
    labels, annotations = _map(metadata.get("labels")), _map(metadata.get("annotations"))
    role, address = _ROLES.get(str(labels.get(ROLE_LABEL))), status.get("podIP")
    if role is None or not isinstance(address, str) or not address:
        return None
    is_leaving = bool(metadata.get("deletionTimestamp"))
    has_ended = status.get("phase") in {"Succeeded", "Failed"}
    if has_ended or not (is_leaving or _is_ready(status) or _has_started(status)):
        return None
    http, side_channel = _http_port(pod), _number(annotations.get(SIDE_CHANNEL_ANNOTATION))
    if http is None or side_channel is None:
        return None
    host = f"[{address}]" if ":" in address else address
    return EndpointConfig(
        name=str(metadata.get("name")),
        role=role,
        url=f"http://{host}:{http}",
        side_channel=f"{host}:{side_channel}",
        revision=str(labels.get(REVISION_LABEL, "")),
        lease_duration_seconds=_number(annotations.get(LEASE_ANNOTATION)),
        draining=is_leaving,
    )


def _is_ready(status: Mapping[str, object]) -> bool:
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in _maps(status.get("conditions"))
    )


def _has_started(status: Mapping[str, object]) -> bool:
    """Whether the engine has passed its startup probe since its container began."""
    return any(
        container.get("name") == _CONTAINER and container.get("started") is True
        for container in _maps(status.get("containerStatuses"))
    )


def _http_port(pod: Mapping[str, object]) -> int | None:
    for container in _maps(_map(pod.get("spec")).get("containers")):
        if container.get("name") == _CONTAINER:
            for port in _maps(container.get("ports")):
                if port.get("name") == _HTTP:
                    return _number(port.get("containerPort"))
    return None


def _number(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _map(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> Iterable[Mapping[str, object]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
