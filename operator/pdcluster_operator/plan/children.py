"""Which children to apply, patch and delete.

Pure. A child is applied where it is missing, where it was made from other inputs, or where somebody
changed what we applied; a child that nobody wants any more is deleted. An object of a child's name
that is not ours is never touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pdcluster_api.proxy_config import Role
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_operator.manifests.engines import engine_deployment
from pdcluster_operator.manifests.labels import INPUT_ANNOTATION, SEEDED_ANNOTATION
from pdcluster_operator.manifests.objects import Manifest, Owner, key_of
from pdcluster_operator.manifests.pools import pool_manifest
from pdcluster_operator.manifests.records import (
    RECORD_KIND,
    input_of,
    recorded,
    rendering_record,
    with_replicas,
)
from pdcluster_operator.manifests.rendering import shared_objects
from pdcluster_operator.manifests.settings import RenderSettings
from pdcluster_operator.model.actions import Action, Apply, Delete, Patch
from pdcluster_operator.model.drift import has_drifted
from pdcluster_operator.model.observed import Child, Observed
from pdcluster_operator.plan.counts import wanted_engines
from pdcluster_operator.plan.rollout import RolloutStep
from pdcluster_operator.program.engine import role_spec

__all__ = ["RenderedChildren", "child_actions", "owner_of", "render_children", "strangers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedChildren:
    """Every child of a cluster, rendered once for a whole pass.

    Attributes:
        pools: The pool of each role.
        shared: What does not depend on how far a rollout has got.
        engines: The Deployment of each role's present revision, behind its record where that is
            missing.
    """

    pools: Mapping[Role, Manifest]
    shared: tuple[Manifest, ...]
    engines: Mapping[Role, tuple[Manifest, ...]]

    def wanted(self, roles: tuple[Role, ...]) -> tuple[Manifest, ...]:
        """All but the pools, with the engines of some roles, in the order of creation."""
        return (*self.shared, *(each for role in roles for each in self.engines[role]))


def owner_of(observed: Observed, settings: RenderSettings) -> Owner:
    """The cluster as its children's owner."""
    return Owner(
        name=observed.name,
        namespace=observed.namespace,
        uid=observed.uid,
        operator=settings.operator,
    )


def render_children(
    observed: Observed, cluster: PDCluster, settings: RenderSettings
) -> RenderedChildren:
    """Render every child.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    owner = owner_of(observed, settings)
    return RenderedChildren(
        pools={role: pool_manifest(cluster, role, owner) for role in Role},
        shared=shared_objects(cluster, owner, settings),
        engines={role: tuple(_engines(observed, cluster, role, owner, settings)) for role in Role},
    )


def child_actions(
    observed: Observed, cluster: PDCluster, step: RolloutStep, rendered: RenderedChildren
) -> tuple[Action, ...]:
    """Give what the children need, in order."""
    wanted = rendered.wanted(step.may_exist)
    keys = {key_of(manifest) for manifest in wanted}
    unwanted = [
        *step.to_delete,
        *(child for child in observed.own("NetworkPolicy") if child.key not in keys),
        *_outdated_records(observed, wanted),
    ]
    return (
        *_pools(observed, cluster, rendered),
        *(action for manifest in wanted for action in _towards(observed, manifest)),
        *(Delete(key=child.key, uid=child.uid) for child in unwanted),
    )


def strangers(observed: Observed, rendered: RenderedChildren) -> tuple[Child, ...]:
    """Objects that have a child's name and are not ours."""
    manifests = (*rendered.wanted(tuple(Role)), *rendered.pools.values())
    found = (observed.child(manifest) for manifest in manifests)
    return tuple(child for child in found if child and child.owner_uid != observed.uid)


def _engines(
    observed: Observed, cluster: PDCluster, role: Role, owner: Owner, settings: RenderSettings
) -> Iterator[Manifest]:
    replicas = wanted_engines(observed, cluster, role)
    rendered = engine_deployment(cluster, role, owner, settings)
    record = rendering_record(rendered, owner)
    kept = _kept_rendering(observed, record)
    if kept is None:
        yield record
    yield with_replicas(kept if kept is not None else rendered, replicas)


def _kept_rendering(observed: Observed, record: Manifest) -> Manifest | None:
    """How these inputs were rendered first, maybe by another version of the operator."""
    child = observed.child(record)
    if child is None or child.owner_uid != observed.uid or child.is_deleting:
        return None
    return recorded(child.live)


def _towards(observed: Observed, manifest: Manifest) -> Iterator[Action]:
    child = observed.child(manifest)
    if child is None:
        yield Apply(manifest=manifest)
    elif (
        child.owner_uid == observed.uid
        and not child.is_deleting
        and has_drifted(manifest, child.live)
    ):
        yield Apply(manifest=manifest, uid=child.uid)


def _outdated_records(observed: Observed, wanted: tuple[Manifest, ...]) -> Iterator[Child]:
    """Renderings that no Deployment has any more."""
    in_use = {input_of(each) for each in wanted if each["kind"] == "Deployment"}
    in_use |= {child.annotations.get(INPUT_ANNOTATION, "") for child in observed.own("Deployment")}
    for child in observed.own(RECORD_KIND):
        if child.annotations.get(INPUT_ANNOTATION) not in in_use:
            yield child


def _pools(observed: Observed, cluster: PDCluster, rendered: RenderedChildren) -> Iterator[Action]:
    """Make pools; pass on a number that the PDCluster has changed since it was seeded."""
    for role, manifest in rendered.pools.items():
        pool = observed.child(manifest)
        if pool is None:
            yield Apply(manifest=manifest)
            continue
        if pool.owner_uid != observed.uid or pool.is_deleting:
            continue
        replicas = role_spec(cluster.spec, role).num_engines
        if pool.annotations.get(SEEDED_ANNOTATION) != str(replicas):
            yield Patch(
                key=pool.key,
                uid=pool.uid,
                content={
                    "metadata": {"annotations": {SEEDED_ANNOTATION: str(replicas)}},
                    "spec": {"replicas": replicas},
                },
            )
