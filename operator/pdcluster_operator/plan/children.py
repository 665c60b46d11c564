"""Which children to apply, patch and delete.

Pure. A child is applied where it is missing, where it was made from other inputs, or where somebody
changed what we applied; a child that nobody wants any more is deleted. An object of a child's name
that is not ours is never touched.
"""

from __future__ import annotations

from collections.abc import Iterator

from pdcluster_api.proxy_config import Role
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_operator.manifests.engines import engine_deployment
from pdcluster_operator.manifests.labels import INPUT_ANNOTATION, SEEDED_ANNOTATION
from pdcluster_operator.manifests.objects import Manifest, Owner, hash_of, key_of
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

__all__ = ["child_actions", "owner_of", "strangers"]


def owner_of(observed: Observed, settings: RenderSettings) -> Owner:
    """The cluster as its children's owner."""
    return Owner(
        name=observed.name,
        namespace=observed.namespace,
        uid=observed.uid,
        operator=settings.operator,
    )


def child_actions(
    observed: Observed, cluster: PDCluster, step: RolloutStep, settings: RenderSettings
) -> tuple[Action, ...]:
    """Give what the children need, in order.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    wanted = tuple(_wanted(observed, cluster, step, settings))
    keys = {key_of(manifest) for manifest in wanted}
    unwanted = [
        *step.to_delete,
        *(child for child in observed.own("NetworkPolicy") if child.key not in keys),
        *_outdated_records(observed, wanted),
    ]
    return (
        *_pools(observed, cluster, owner_of(observed, settings)),
        *(action for manifest in wanted for action in _towards(observed, manifest)),
        *(Delete(key=child.key, uid=child.uid) for child in unwanted),
    )


def strangers(
    observed: Observed, cluster: PDCluster, settings: RenderSettings
) -> tuple[Child, ...]:
    """Objects that have a child's name and are not ours."""
    step = RolloutStep(may_exist=tuple(Role))
    names = [key_of(each) for each in _wanted(observed, cluster, step, settings)]
    owner = owner_of(observed, settings)
    names += [key_of(pool_manifest(cluster, role, owner)) for role in Role]
    found = (observed.children.get(key) for key in names)
    return tuple(child for child in found if child and child.owner_uid != observed.uid)


def _wanted(
    observed: Observed, cluster: PDCluster, step: RolloutStep, settings: RenderSettings
) -> Iterator[Manifest]:
    owner = owner_of(observed, settings)
    yield from shared_objects(cluster, owner, settings)
    for role in step.may_exist:
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
    key, child = key_of(manifest), observed.child(manifest)
    failure = observed.failures.get(key)
    if failure is not None and failure.content == hash_of(manifest):
        return  # Rejected for good: the same again would be rejected again.
    if child is None:
        yield Apply(manifest=manifest)
    elif (
        child.owner_uid == observed.uid
        and not child.is_deleting
        and (has_drifted(manifest, child.live))
    ):
        yield Apply(manifest=manifest, uid=child.uid)


def _outdated_records(observed: Observed, wanted: tuple[Manifest, ...]) -> Iterator[Child]:
    """Renderings that no Deployment has any more."""
    in_use = {input_of(each) for each in wanted if each["kind"] == "Deployment"}
    in_use |= {child.annotations.get(INPUT_ANNOTATION, "") for child in observed.own("Deployment")}
    for child in observed.own(RECORD_KIND):
        if child.annotations.get(INPUT_ANNOTATION) not in in_use:
            yield child


def _pools(observed: Observed, cluster: PDCluster, owner: Owner) -> Iterator[Action]:
    """Make pools; pass on a number that the PDCluster has changed since it was seeded."""
    for role in Role:
        manifest = pool_manifest(cluster, role, owner)
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
