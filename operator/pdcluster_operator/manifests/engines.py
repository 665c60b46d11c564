"""The engines' Deployments, their headless Service, account and disruption budgets.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pdcluster_api.labels import CLUSTER_LABEL, LEASE_ANNOTATION, SIDE_CHANNEL_ANNOTATION
from pdcluster_api.problems import Path
from pdcluster_api.proxy_config import Role
from pdcluster_api.revision import NEUTRAL, drop_neutral
from pdcluster_api.v1alpha1 import PDCluster, PDClusterSpec, RoleSpec
from pdcluster_operator.manifests import pods
from pdcluster_operator.manifests.labels import (
    COMPONENT_LABEL,
    ENGINE,
    cluster_labels,
    engine_deployment_name,
    engine_labels,
    engine_selector,
    engine_service_name,
    engines_name,
    pool_name,
)
from pdcluster_operator.manifests.merge import merge
from pdcluster_operator.manifests.objects import Manifest, Owner, hash_of, manifest
from pdcluster_operator.manifests.settings import RenderSettings
from pdcluster_operator.program.engine import (
    QUIET_VLLM,
    default_command,
    engine_program,
    role_spec,
)
from pdcluster_operator.program.programs import EngineProgram, Placement, PodField

__all__ = ["engine_deployment", "engine_objects", "place_in_pod", "rendering_inputs"]

_SCRATCH: Final = "/scratch"
_SHM_BYTES: Final = "8Gi"
"""Limit of the memory-backed /dev/shm; used memory counts against the container's limit."""
_TOKEN_VARIABLE: Final = "HF_TOKEN"  # noqa: S105 (a variable's name)
_POD_IP: Final = PodField("status.podIP")


def place_in_pod(spec: PDClusterSpec) -> Placement:
    """Where an engine runs in a pod."""
    cache = spec.model.cache
    writable_claim = cache is not None and not cache.read_only
    models = cache.mount_path if cache is not None and writable_claim else f"{_SCRATCH}/models"
    return Placement(
        host=_POD_IP,
        command=default_command(spec),
        scratch_dir=_SCRATCH,
        models_dir=models,
        # A command of the user's own may not know our flags.
        args=() if spec.engine.command else QUIET_VLLM,
    )


def engine_deployment(
    cluster: PDCluster, role: Role, owner: Owner, settings: RenderSettings
) -> Manifest:
    """One role's Deployment of the cluster's present revision, without the number of engines.

    Args:
        cluster: A valid resource.
        role: The role.
        owner: The cluster as owner.
        settings: The installation's choices.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    spec = cluster.spec
    program = engine_program(cluster, role, place_in_pod(spec))
    labels = engine_labels(cluster.metadata.name, role, program.revision)
    annotations = {
        LEASE_ANNOTATION: str(program.lease_duration_s),
        SIDE_CHANNEL_ANNOTATION: str(spec.kv_transfer.side_channel_port),
    }
    asked = role_spec(spec, role)
    template = _merged(
        {
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": _pod(spec, asked, program, owner.name, settings),
        },
        asked,
    )
    rollout = spec.rollout
    return manifest(
        "Deployment",
        engine_deployment_name(owner.name, role, program.revision),
        owner,
        labels=labels,
        # The user's own words, not what this version of the operator makes of them: an upgrade
        # that renders differently must not restart engines.
        inputs_hash=hash_of(rendering_inputs(cluster, role, settings)),
        spec={
            "selector": {"matchLabels": engine_selector(owner.name, role, program.revision)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": rollout.max_surge,
                    "maxUnavailable": rollout.max_unavailable,
                },
            },
            "progressDeadlineSeconds": rollout.progress_deadline_seconds,
            "revisionHistoryLimit": 2,
            "template": template,
        },
    )


def rendering_inputs(
    cluster: PDCluster,
    role: Role,
    settings: RenderSettings,
    *,
    neutral: Mapping[Path, object] = NEUTRAL,
) -> list[object]:
    """Give what a role's Deployment is rendered from: while it is the same, so is the rendering.

    Args:
        cluster: A valid resource.
        role: The role.
        settings: The installation's choices.
        neutral: Fields added later, with the value that means "as before": without them a newer
            operator would find other inputs in every resource, and render anew.
    """
    dumped = cluster.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    shared = {name: dumped[name] for name in ("model", "engine", "kvTransfer", "drain", "rollout")}
    shared |= {role.value: {k: v for k, v in dumped[role.value].items() if k != "replicas"}}
    timeout = dumped["proxy"]["requestTimeoutSeconds"]
    return [drop_neutral(shared, neutral), timeout, settings.run_as_user]


def _merged(template: Mapping[str, object], asked: RoleSpec) -> object:
    if asked.pod_template is None:
        return template
    stated = asked.pod_template.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_unset=True
    )
    return merge(template, stated)


def _pod(
    spec: PDClusterSpec,
    asked: RoleSpec,
    program: EngineProgram,
    cluster: str,
    settings: RenderSettings,
) -> dict[str, object]:
    return {
        "serviceAccountName": engines_name(cluster),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **pods.SIGNALS,
        "terminationGracePeriodSeconds": program.grace_s,
        "securityContext": pods.pod_security(settings.run_as_user),
        "containers": [_container(spec, asked, program)],
        "volumes": list(_volumes(spec)),
        "affinity": _apart_from_each_other(cluster, program.role),
    }


def _container(spec: PDClusterSpec, asked: RoleSpec, program: EngineProgram) -> dict[str, object]:
    return {
        "name": ENGINE,
        "image": pods.image_of(asked, spec.engine.image),
        "imagePullPolicy": spec.engine.image_pull_policy.value,
        "command": [program.argv[0]],
        "args": list(program.argv[1:]),
        "env": [*pods.environment(program.env), *_token(spec)],
        "ports": pods.ports(program.ports),
        "resources": pods.resources(asked.resources),
        "securityContext": pods.CONTAINER_SECURITY,
        "volumeMounts": list(_mounts(spec)),
        **pods.probes(program.probes),
    }


def _token(spec: PDClusterSpec) -> list[dict[str, object]]:
    reference = spec.model.token_secret_ref
    if reference is None:
        return []
    source = reference.model_dump(mode="json", by_alias=True, exclude_none=True)
    return [{"name": _TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": source}}]


def _volumes(spec: PDClusterSpec) -> Iterator[dict[str, object]]:
    yield {"name": "scratch", "emptyDir": {}}
    yield {"name": "tmp", "emptyDir": {}}
    # Ranks of one engine talk through it, and the container's own is 64 MiB.
    yield {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHM_BYTES}}
    cache = spec.model.cache
    if cache is not None:
        claim = {"claimName": cache.persistent_volume_claim, "readOnly": cache.read_only}
        yield {"name": "models", "persistentVolumeClaim": claim}


def _mounts(spec: PDClusterSpec) -> Iterator[dict[str, object]]:
    yield {"name": "scratch", "mountPath": _SCRATCH}
    yield {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 (the container's own)
    yield {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 (the container's own)
    cache = spec.model.cache
    if cache is not None:
        yield {"name": "models", "mountPath": cache.mount_path, "readOnly": cache.read_only}


def _apart_from_each_other(cluster: str, role: Role) -> dict[str, object]:
    """Prefer other nodes for engines of one role: one node's end then leaves some of them."""
    term = {
        "labelSelector": {"matchLabels": engine_selector(cluster, role)},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = [{"weight": 50, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def engine_objects(cluster: PDCluster, owner: Owner) -> Iterator[Manifest]:
    """What engines of every revision share."""
    name, spec = owner.name, cluster.spec
    labels = cluster_labels(name) | {COMPONENT_LABEL: ENGINE}
    secrets = tuple(secret.name for secret in spec.engine.image_pull_secrets)
    yield manifest(
        "ServiceAccount",
        engines_name(name),
        owner,
        labels=labels,
        automountServiceAccountToken=False,
        imagePullSecrets=pods.pull_secrets(secrets),
    )
    yield manifest(
        "Service",
        engine_service_name(name),
        owner,
        labels=labels,
        spec={
            "clusterIP": "None",
            # For people and scrapers; the proxy judges readiness by itself.
            "publishNotReadyAddresses": True,
            "selector": {CLUSTER_LABEL: name, COMPONENT_LABEL: ENGINE},
            "ports": [
                {"name": "http", "port": spec.engine.port, "protocol": "TCP"},
                {
                    "name": "side-channel",
                    "port": spec.kv_transfer.side_channel_port,
                    "protocol": "TCP",
                },
            ],
        },
    )
    for role in Role:
        yield manifest(
            "PodDisruptionBudget",
            pool_name(name, role),
            owner,
            labels=cluster_labels(name) | engine_selector(name, role),
            spec={
                # Not minAvailable: with one engine that would block every node drain for ever.
                "maxUnavailable": 1,
                "selector": {"matchLabels": engine_selector(name, role)},
                # One that can't serve must not keep a node from being drained.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        )
