"""The proxies' Deployment, configuration, Service, account and rights.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from pdcluster_api import defaults
from pdcluster_api.proxy_config import KubernetesDiscovery
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_operator.manifests import pods
from pdcluster_operator.manifests.labels import (
    PROXY,
    proxy_labels,
    proxy_name,
    proxy_selector,
    service_name,
)
from pdcluster_operator.manifests.objects import Manifest, Owner, hash_of, manifest
from pdcluster_operator.manifests.settings import RenderSettings
from pdcluster_operator.program.programs import ProxyPlacement, ProxyProgram
from pdcluster_operator.program.proxy import PROXY_COMMAND, proxy_program

__all__ = ["place_proxy_in_pod", "proxy_objects", "service_url"]

_CONFIG_FOLDER: Final = "/etc/pdcluster"
_CONFIG_KEY: Final = "proxy.json"
_ANY: Final = "0.0.0.0"
_CONFIG_ANNOTATION: Final = f"{defaults.API_GROUP}/config-hash"


def place_proxy_in_pod(owner: Owner) -> ProxyPlacement:
    """Where a proxy runs in a pod."""
    return ProxyPlacement(
        host=_ANY,
        port=defaults.PROXY_PORT,
        admin_host=_ANY,
        admin_port=defaults.ADMIN_PORT,
        command=PROXY_COMMAND,
        config_file=f"{_CONFIG_FOLDER}/{_CONFIG_KEY}",
        discovery=KubernetesDiscovery(namespace=owner.namespace, cluster=owner.name),
        # Until every Service and load balancer has noticed that it leaves.
        drain_s=defaults.SETTLE_SECONDS,
    )


def service_url(owner: Owner, cluster: PDCluster) -> str:
    """Where clients within the Kubernetes cluster connect."""
    port = cluster.spec.proxy.service.port
    suffix = "" if port == defaults.SERVICE_PORT else f":{port}"
    return f"http://{service_name(owner.name)}.{owner.namespace}.svc{suffix}"


def proxy_objects(cluster: PDCluster, owner: Owner, settings: RenderSettings) -> Iterator[Manifest]:
    """Everything of the proxies.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    program = proxy_program(cluster, place_proxy_in_pod(owner))
    labels, name = proxy_labels(owner.name), proxy_name(owner.name)
    # A proxy rejects what it does not know, and may be older than this (spec.proxy.image): what is
    # as by default stays unsaid, so that a field added later neither stops nor replaces it.
    config = program.config.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True
    )
    yield manifest(
        "ConfigMap",
        name,
        owner,
        labels=labels,
        data={_CONFIG_KEY: json.dumps(config, indent=1, sort_keys=True)},
    )
    yield from _rights(cluster, owner, settings)
    yield _service(cluster, owner)
    yield manifest(
        "PodDisruptionBudget",
        name,
        owner,
        labels=labels,
        spec={
            "maxUnavailable": 1,
            "selector": {"matchLabels": proxy_selector(owner.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    )
    yield _deployment(cluster, owner, settings, program, hash_of(config))


def _rights(cluster: PDCluster, owner: Owner, settings: RenderSettings) -> Iterator[Manifest]:
    """List and watch pods: labels can't narrow that, and nothing else is needed."""
    labels, name = proxy_labels(owner.name), proxy_name(owner.name)
    own = tuple(secret.name for secret in cluster.spec.engine.image_pull_secrets)
    secrets = tuple(dict.fromkeys((*settings.image_pull_secrets, *own)))
    yield manifest(
        "ServiceAccount",
        name,
        owner,
        labels=labels,
        automountServiceAccountToken=False,
        imagePullSecrets=pods.pull_secrets(secrets),
    )
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    yield manifest("Role", name, owner, labels=labels, rules=rules)
    group = "rbac.authorization.k8s.io"
    yield manifest(
        "RoleBinding",
        name,
        owner,
        labels=labels,
        roleRef={"apiGroup": group, "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
    )


def _service(cluster: PDCluster, owner: Owner) -> Manifest:
    asked = cluster.spec.proxy.service
    port = {
        "name": "http",
        "port": asked.port,
        "targetPort": "http",
        "protocol": "TCP",
        "appProtocol": "http",
    }
    return manifest(
        "Service",
        service_name(owner.name),
        owner,
        labels=proxy_labels(owner.name),
        annotations=asked.annotations,
        spec={
            "type": asked.type.value,
            "selector": proxy_selector(owner.name),
            "ports": [port],
        },
    )


def _deployment(
    cluster: PDCluster,
    owner: Owner,
    settings: RenderSettings,
    program: ProxyProgram,
    config_hash: str,
) -> Manifest:
    labels, selector = proxy_labels(owner.name), proxy_selector(owner.name)
    return manifest(
        "Deployment",
        proxy_name(owner.name),
        owner,
        labels=labels,
        spec={
            "replicas": cluster.spec.proxy.replicas,
            "selector": {"matchLabels": selector},
            # A proxy holds streams: the new one serves before the old one leaves.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "revisionHistoryLimit": 2,
            "template": {
                "metadata": {
                    "labels": labels,
                    # The configuration is read once: a changed one needs new processes.
                    "annotations": {_CONFIG_ANNOTATION: config_hash},
                },
                "spec": _pod(cluster, owner, settings, program),
            },
        },
    )


def _pod(
    cluster: PDCluster, owner: Owner, settings: RenderSettings, program: ProxyProgram
) -> dict[str, object]:
    asked = cluster.spec.proxy
    name = proxy_name(owner.name)
    container = {
        "name": PROXY,
        "image": asked.image or settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": [program.argv[0]],
        "args": list(program.argv[1:]),
        "env": pods.environment(program.env),
        "ports": pods.ports(program.ports),
        "resources": pods.resources(asked.resources),
        "securityContext": {**pods.CONTAINER_SECURITY, "readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "config", "mountPath": _CONFIG_FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 (the container's own)
        ],
        **pods.probes(program.probes),
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": proxy_selector(owner.name)},
    }
    return {
        "serviceAccountName": name,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        **pods.SIGNALS,
        "terminationGracePeriodSeconds": program.grace_s,
        "securityContext": pods.pod_security(settings.run_as_user),
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": name}},
            {"name": "tmp", "emptyDir": {"medium": "Memory"}},
        ],
        "topologySpreadConstraints": [spread],
    }
