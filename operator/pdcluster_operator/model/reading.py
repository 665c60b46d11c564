"""From raw objects to a snapshot.

Pure. Reads leniently: what is missing or of another type counts as not known, because a newer
server may say more and a half-made object less.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import ValidationError

from pdcluster_api.conditions import ConfigInvalidReason
from pdcluster_api.findings import problems_of
from pdcluster_api.labels import CLUSTER_LABEL, REVISION_LABEL, ROLE_LABEL
from pdcluster_api.problems import Path, Problem, format_path
from pdcluster_api.proxy_config import Role
from pdcluster_api.support import KEEPER, not_yet
from pdcluster_api.timing import derive_timing
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_lease.errors import TimingError
from pdcluster_operator.manifests.labels import COMPONENT_LABEL
from pdcluster_operator.manifests.objects import ObjectKey
from pdcluster_operator.model.observed import (
    Child,
    Observed,
    PodView,
    RawObject,
    Rejection,
)
from pdcluster_operator.model.pod_trouble import is_being_made, trouble_of

__all__ = ["cluster_name_of", "dig", "observe", "read_child", "read_pod"]

_ROLES: Final = {role.value: role for role in Role}


def dig(value: object, *path: str) -> object:
    """Follow keys; None where one is missing."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _texts(value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        return {}
    return {str(key): str(each) for key, each in value.items()}


def _list(value: object) -> Iterable[object]:
    return value if isinstance(value, list | tuple) else ()


def cluster_name_of(raw: RawObject) -> str:
    """Name of the PDCluster that a child or pod says it belongs to, "" for none."""
    return _texts(dig(raw, "metadata", "labels")).get(CLUSTER_LABEL, "")


def read_child(raw: RawObject) -> Child:
    """Read one child."""
    metadata = dig(raw, "metadata")
    owners = [each for each in _list(dig(metadata, "ownerReferences")) if dig(each, "controller")]
    return Child(
        key=ObjectKey(str(raw.get("kind", "")), str(dig(metadata, "name") or "")),
        uid=str(dig(metadata, "uid") or ""),
        owner_uid=str(dig(owners[0], "uid") or "") if owners else "",
        labels=_texts(dig(metadata, "labels")),
        annotations=_texts(dig(metadata, "annotations")),
        is_deleting=bool(dig(metadata, "deletionTimestamp")),
        live=raw,
    )


def read_pod(raw: RawObject, events: Iterable[RawObject] = ()) -> PodView:
    """Read one pod.

    Args:
        raw: The pod.
        events: Events about it.
    """
    labels = _texts(dig(raw, "metadata", "labels"))
    conditions = _list(dig(raw, "status", "conditions"))
    is_ready = any(
        dig(each, "type") == "Ready" and dig(each, "status") == "True" for each in conditions
    )
    is_terminating = bool(dig(raw, "metadata", "deletionTimestamp"))
    return PodView(
        name=str(dig(raw, "metadata", "name") or ""),
        component=labels.get(COMPONENT_LABEL, ""),
        role=_ROLES.get(labels.get(ROLE_LABEL, "")),
        revision=labels.get(REVISION_LABEL, ""),
        is_ready=is_ready and not is_terminating,
        is_terminating=is_terminating,
        is_being_made=is_being_made(raw),
        trouble=None if is_ready or is_terminating else trouble_of(raw, events),
    )


def observe(
    raw: RawObject,
    *,
    children: Iterable[RawObject] = (),
    pods: Iterable[RawObject] = (),
    events: Iterable[RawObject] = (),
    rejections: Mapping[ObjectKey, Rejection] | None = None,
) -> Observed:
    """Make a snapshot.

    Args:
        raw: The PDCluster.
        children: Its objects, and strangers of their names.
        pods: Its pods.
        events: Events about its pods.
        rejections: What the API server would not have, by child.
    """
    metadata = dig(raw, "metadata")
    cluster, unknown, problems, reason = _validated(raw)
    by_pod: dict[str, list[RawObject]] = {}
    for event in events:
        by_pod.setdefault(str(dig(event, "involvedObject", "name") or ""), []).append(event)
    views = [read_pod(pod, by_pod.get(str(dig(pod, "metadata", "name")), ())) for pod in pods]
    read = [read_child(child) for child in children]
    status, generation = dig(raw, "status"), dig(metadata, "generation")
    return Observed(
        name=str(dig(metadata, "name") or ""),
        namespace=str(dig(metadata, "namespace") or ""),
        uid=str(dig(metadata, "uid") or ""),
        generation=generation if isinstance(generation, int) else 0,
        annotations=_texts(dig(metadata, "annotations")),
        is_deleting=bool(dig(metadata, "deletionTimestamp")),
        cluster=cluster,
        problems=problems,
        invalid_reason=reason,
        unknown=unknown,
        status=status if isinstance(status, Mapping) else {},
        children={child.key: child for child in read},
        pods=tuple(sorted(views, key=lambda view: view.name)),
        rejections=rejections or {},
    )


def _remove(node: object, path: Path) -> None:
    for step in path[:-1]:
        if isinstance(node, Mapping):
            node = node.get(str(step))
        elif isinstance(node, list) and isinstance(step, int):
            node = node[step]
    if isinstance(node, dict):
        node.pop(path[-1], None)


def _model(document: Mapping[str, object]) -> PDCluster:
    # As JSON: the models are strict, and a list of Python is no tuple of theirs.
    return PDCluster.model_validate_json(json.dumps(document))


def _validated(
    raw: RawObject,
) -> tuple[PDCluster | None, tuple[str, ...], tuple[Problem, ...], str]:
    """The resource, or why it can't be acted on; and fields that only a newer version knows.

    The server's schema has let those pass, and fills in the defaults of those nobody has set: after
    a step back to an older operator every resource has them.
    """
    document = {
        name: raw[name] for name in ("apiVersion", "kind", "metadata", "spec") if name in raw
    }
    unknown: tuple[str, ...] = ()
    try:
        try:
            cluster = _model(document)
        except ValidationError as error:
            paths = [
                tuple(each["loc"]) for each in error.errors() if each["type"] == "extra_forbidden"
            ]
            unknown = tuple(format_path(path) for path in paths)
            document = copy.deepcopy(document)
            for path in paths:
                _remove(document, path)
            cluster = _model(document)
    except ValidationError as error:
        # The schema let it pass: a version of the CRD that knows other rules than we do.
        return None, unknown, problems_of(error, document), ConfigInvalidReason.INVALID_SPEC
    missing = not_yet(cluster, has_defaults=True)
    if missing:
        return None, unknown, missing, ConfigInvalidReason.NOT_YET_SUPPORTED
    try:
        derive_timing(cluster.spec, keeper=KEEPER)
    except TimingError as error:
        problem = Problem(message=str(error))
        return None, unknown, (problem,), ConfigInvalidReason.INVALID_TIMING
    return cluster, unknown, (), ""
