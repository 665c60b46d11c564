"""CoreDNS for the test cluster, as API paths and manifests.

Pure. It has the name and labels that NetworkPolicies for real clusters expect of cluster DNS.
"""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["DNS_DEPLOYMENT", "dns_manifests"]

Manifest: TypeAlias = dict[str, object]

DNS_DEPLOYMENT = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"
_CORE = "/api/v1/namespaces/kube-system"
_RBAC = "rbac.authorization.k8s.io"
_LABELS = {"k8s-app": "kube-dns"}
_META = {"name": "coredns", "namespace": "kube-system"}
_COREFILE = """.:53 {
  errors
  health
  ready
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    pods insecure
    ttl 5
  }
  cache 5
  reload
}
"""


def dns_manifests(ip: str, image: str) -> list[tuple[str, Manifest]]:
    """Give what to apply, in order, each with the path of its collection."""
    return [
        (f"{_CORE}/serviceaccounts", _object("v1", "ServiceAccount", _META)),
        (
            f"{_CORE}/configmaps",
            _object("v1", "ConfigMap", _META, data={"Corefile": _COREFILE}),
        ),
        *_rights(),
        (f"{_CORE}/services", _service(ip)),
        (DNS_DEPLOYMENT.rpartition("/")[0], _deployment(image)),
    ]


def _object(version: str, kind: str, metadata: object, **rest: object) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def _rights() -> list[tuple[str, Manifest]]:
    version, name = f"{_RBAC}/v1", "system:coredns"
    rules = [
        {
            "apiGroups": [""],
            "resources": ["endpoints", "services", "pods", "namespaces"],
            "verbs": ["list", "watch"],
        },
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        },
    ]
    role = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name}
    subjects = [{"kind": "ServiceAccount", **_META}]
    return [
        (
            f"/apis/{version}/clusterroles",
            _object(version, "ClusterRole", {"name": name}, rules=rules),
        ),
        (
            f"/apis/{version}/clusterrolebindings",
            _object(version, "ClusterRoleBinding", {"name": name}, roleRef=role, subjects=subjects),
        ),
    ]


def _service(ip: str) -> Manifest:
    metadata = {"name": "kube-dns", "namespace": "kube-system", "labels": _LABELS}
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    spec = {"clusterIP": ip, "selector": _LABELS, "ports": ports}
    return _object("v1", "Service", metadata, spec=spec)


def _deployment(image: str) -> Manifest:
    container = {
        "name": "coredns",
        "image": image,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
    }
    pod = {
        "serviceAccountName": "coredns",
        "dnsPolicy": "Default",
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
        "priorityClassName": "system-cluster-critical",
    }
    template = {"metadata": {"labels": _LABELS}, "spec": pod}
    spec = {"replicas": 1, "selector": {"matchLabels": _LABELS}, "template": template}
    return _object("apps/v1", "Deployment", _META, spec=spec)
