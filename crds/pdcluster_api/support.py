"""What of the resource is honoured, by whom.

Pure. Two tables. What no program honours yet is rejected by path, so that nobody relies on it; a
row goes when its program comes. What only a Kubernetes cluster can honour is accepted everywhere
and listed by ``pdcluster render`` and ``pdcluster up``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from pdcluster_api.problems import Path, Problem, format_path
from pdcluster_api.proxy_config import KeeperMode, PrefillPolicy
from pdcluster_api.v1alpha1 import PDCluster, PDClusterSpec, RoleSpec

__all__ = ["KEEPER", "KUBERNETES_ONLY", "NOT_YET", "NotYet", "kubernetes_only", "not_yet"]

KEEPER: Final = KeeperMode.ABSENT
"""The lease keeper is not built yet: whatever ``proxy.leaseKeeper`` says, nobody renews a lease
between prefill's and decode's answer, and the hand-off deadlines without a keeper hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotYet:
    """A wish that no program honours yet.

    Attributes:
        path: The field.
        is_asked: Whether the spec asks for it.
        remedy: What to write instead.
        is_default: The schema's default asks for it: once an API server has filled in defaults,
            nobody can tell whether a person wrote it, and it is done as well as can be.
    """

    path: Path
    is_asked: Callable[[PDClusterSpec], bool]
    remedy: str
    is_default: bool = False


def _asks_affinity(spec: PDClusterSpec) -> bool:
    # Only where it was written: the field's default stands for "as good as the proxy can".
    policy = spec.proxy.policy
    return "prefill" in policy.model_fields_set and policy.prefill is PrefillPolicy.PREFIX_AFFINITY


def _of_both_roles(
    field: str, is_asked: Callable[[RoleSpec], bool], remedy: str
) -> tuple[NotYet, ...]:
    return (
        NotYet(
            path=("spec", "prefill", field),
            is_asked=lambda spec: is_asked(spec.prefill),
            remedy=remedy,
        ),
        NotYet(
            path=("spec", "decode", field),
            is_asked=lambda spec: is_asked(spec.decode),
            remedy=remedy,
        ),
    )


NOT_YET: Final = (
    *_of_both_roles("autoscaling", lambda r: r.autoscaling is not None, "set replicas instead"),
    *_of_both_roles("tensorParallelSize", lambda r: r.tensor_parallel_size > 1, "leave it at 1"),
    *_of_both_roles(
        "pipelineParallelSize", lambda r: r.pipeline_parallel_size > 1, "leave it at 1"
    ),
    *_of_both_roles(
        "dataParallelSize", lambda r: r.data_parallel_size > 1, "leave it at 1 and set replicas"
    ),
    *_of_both_roles("nodes", lambda r: r.nodes > 1, "leave it at 1"),
    NotYet(
        path=("spec", "kvTransfer", "bidirectional"),
        is_asked=lambda spec: spec.kv_transfer.bidirectional,
        remedy="leave it at false",
    ),
    NotYet(
        path=("spec", "kvTransfer", "extraConnectors"),
        is_asked=lambda spec: bool(spec.kv_transfer.extra_connectors),
        remedy="leave it out",
    ),
    # A proxy that ignored these would be open to everybody, or plain where TLS was asked for.
    NotYet(
        path=("spec", "proxy", "apiKeysSecretRef"),
        is_asked=lambda spec: spec.proxy.api_keys_secret_ref is not None,
        remedy="leave it out, and let networkPolicy.clientsFrom say who may connect",
    ),
    NotYet(
        path=("spec", "proxy", "tlsSecretRef"),
        is_asked=lambda spec: spec.proxy.tls_secret_ref is not None,
        remedy="leave it out, and end TLS in an Ingress or Gateway before the Service",
    ),
    NotYet(
        path=("spec", "monitoring", "podMonitor"),
        is_asked=lambda spec: spec.monitoring.pod_monitor,
        remedy="leave it at false, and make a PodMonitor for the port admin",
    ),
    NotYet(
        path=("spec", "monitoring", "rules"),
        is_asked=lambda spec: spec.monitoring.rules,
        remedy="leave it at false",
    ),
    NotYet(
        path=("spec", "proxy", "policy", "prefill"),
        is_asked=_asks_affinity,
        remedy="leave it out, or set LeastLoad, which is what the proxy does so far",
        is_default=True,
    ),
)


def not_yet(cluster: PDCluster, *, has_defaults: bool = False) -> tuple[Problem, ...]:
    """Return what the resource asks for and no program honours yet.

    Args:
        cluster: The resource.
        has_defaults: It comes from an API server, which has written the defaults into it.
    """
    return tuple(
        Problem(path=row.path, message=f"not yet supported; {row.remedy}")
        for row in NOT_YET
        if row.is_asked(cluster.spec) and not (has_defaults and row.is_default)
    )


_ROLE_FIELDS: Final = ("image", "resources", "podTemplate")
_ENGINE_FIELDS: Final = ("image", "imagePullPolicy", "imagePullSecrets")
_PROXY_FIELDS: Final = ("replicas", "image", "resources", "service")
KUBERNETES_ONLY: Final[tuple[Path, ...]] = (
    ("spec", "model", "tokenSecretRef"),
    ("spec", "model", "cache"),
    *(("spec", "engine", name) for name in _ENGINE_FIELDS),
    *(("spec", role, name) for role in ("prefill", "decode") for name in _ROLE_FIELDS),
    *(("spec", "proxy", name) for name in _PROXY_FIELDS),
    ("spec", "drain", "terminationGracePeriodSeconds"),
    ("spec", "rollout"),
    ("spec", "ratio"),
    ("spec", "networkPolicy"),
)
"""Fields that need a cluster: images, Secrets, claims, Services, pods."""


def kubernetes_only(cluster: PDCluster) -> tuple[str, ...]:
    """Return the fields the user wrote that only a Kubernetes cluster can honour, as paths."""
    written = tuple(_written(cluster, ()))
    fields = [path for path in KUBERNETES_ONLY if path in written]
    fields += [path for path in written if path[-1] == "valueFrom" and "env" in path]
    return tuple(format_path(path) for path in fields)


def _written(node: object, path: Path) -> Iterator[Path]:
    """Yield the path of every field that stood in the file."""
    if isinstance(node, BaseModel):
        fields = type(node).model_fields
        for name in fields:
            if name in node.model_fields_set:
                here = (*path, fields[name].alias or name)
                yield here
                yield from _written(getattr(node, name), here)
    elif isinstance(node, tuple):
        for index, item in enumerate(node):
            yield from _written(item, (*path, index))
