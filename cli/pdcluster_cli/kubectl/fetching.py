"""Reads what a status is made of, and finds out why a PDCluster is not there.

Shell around a port: whatever reads paths of the Kubernetes API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from pdcluster_api.defaults import API_VERSION
from pdcluster_api.labels import CLUSTER_LABEL
from pdcluster_cli.errors import CliError
from pdcluster_cli.kubectl.errors import (
    ClusterMissingError,
    DefinitionMissingError,
    ForbiddenError,
    ObjectMissingError,
    ServerError,
)
from pdcluster_cli.kubectl.raw import Raw, maps_at, text_at
from pdcluster_cli.kubectl.view import Fetched

__all__ = ["Api", "fetch_cluster", "fetch_pods", "fetch_status"]

_ROOT: Final = f"/apis/{API_VERSION}"
_EVENTS_MAX: Final = 2000
_OTHERS_MAX: Final = 5
"""Names that a message lists."""
# What one part of a status may fail with while the others are worth showing.
_PARTIAL: Final = (ForbiddenError, ObjectMissingError, ServerError)


class Api(Protocol):
    """Reads of the Kubernetes API (``connection.py``)."""

    async def get(self, path: str, query: Sequence[tuple[str, str]] = ()) -> Raw:
        """Read one object or one list."""


async def fetch_status(api: Api, namespace: str, name: str) -> Fetched:
    """Read everything that a status shows.

    Raises:
        CliError: The PDCluster can't be read. What else can't be is noted and left out.
    """
    cluster = await fetch_cluster(api, namespace, name)
    unread = []
    pods: tuple[Raw, ...] | None = None
    events: tuple[Raw, ...] | None = None
    try:
        pods = await fetch_pods(api, namespace, f"{CLUSTER_LABEL}={name}")
    except _PARTIAL as error:
        unread.append(f"Pods could not be read: {error}.")
    try:
        events = await _fetch_events(api, namespace, name)
    except _PARTIAL as error:
        unread.append(f"Events could not be read: {error}.")
    return Fetched(cluster=cluster, pods=pods, events=events, unread=tuple(unread))


async def fetch_cluster(api: Api, namespace: str, name: str) -> Raw:
    """Read the PDCluster.

    Raises:
        ClusterMissingError: There is none; says where there is one of that name.
        CliError: It can't be read.
    """
    try:
        return await api.get(f"{_ROOT}/namespaces/{namespace}/pdclusters/{name}")
    except ObjectMissingError as error:
        hint = await _hint(api, namespace, name)
        raise ClusterMissingError(
            f"namespace {namespace} has no PDCluster {name}; {hint}"
        ) from error


async def fetch_pods(api: Api, namespace: str, selector: str) -> tuple[Raw, ...]:
    """Read the pods that a label selector selects.

    Raises:
        CliError: They can't be read.
    """
    answer = await api.get(f"/api/v1/namespaces/{namespace}/pods", [("labelSelector", selector)])
    return tuple(maps_at(answer, "items"))


async def _fetch_events(api: Api, namespace: str, name: str) -> tuple[Raw, ...]:
    path = f"/api/v1/namespaces/{namespace}/events"
    mine = f"involvedObject.kind=PDCluster,involvedObject.name={name}"
    # What is wrong with pods may be told of their Deployments' ReplicaSets: a quota, Pod Security.
    answers = [
        await api.get(path, [("fieldSelector", each), ("limit", str(_EVENTS_MAX))])
        for each in (mine, "type=Warning")
    ]
    by_uid = {
        text_at(event, "metadata", "uid"): event
        for answer in answers
        for event in maps_at(answer, "items")
    }
    return tuple(by_uid.values())


async def _hint(api: Api, namespace: str, name: str) -> str:
    """What to do instead, as far as one may look around."""
    try:
        await api.get(f"/api/v1/namespaces/{namespace}")
    except ObjectMissingError:
        return "there is no such namespace: check -n"
    except CliError:
        pass  # Whoever may not read namespaces learns the rest.
    try:
        everywhere = await api.get(
            f"{_ROOT}/pdclusters", [("fieldSelector", f"metadata.name={name}")]
        )
        elsewhere = sorted(
            text_at(each, "metadata", "namespace") for each in maps_at(everywhere, "items")
        )
        if elsewhere:
            return f"there is one in {_listed(elsewhere)}: choose it with -n"
    except (ForbiddenError, DefinitionMissingError, ServerError):
        pass
    try:
        here = await api.get(f"{_ROOT}/namespaces/{namespace}/pdclusters")
    except (ForbiddenError, DefinitionMissingError, ServerError):
        return "check its name and -n"
    names = sorted(text_at(each, "metadata", "name") for each in maps_at(here, "items"))
    return f"it has {_listed(names)}" if names else "it has none at all: check -n"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _OTHERS_MAX
    return ", ".join(names[:_OTHERS_MAX]) + (f" and {more} more" if more > 0 else "")
