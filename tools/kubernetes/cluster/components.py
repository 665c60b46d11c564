"""Command lines and configuration of the cluster's components.

Pure. What differs from the components' defaults has its reason beside it; most of them come from
running in namespaces without systemd, without CAP_SYS_RESOURCE and without any network outside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from tools.kubernetes.cluster.layout import NODE, Layout

__all__ = [
    "AUDIT_POLICY",
    "BUSYBOX_IMAGE",
    "DNS_IMAGE",
    "PAUSE_IMAGE",
    "cni_config",
    "command",
    "containerd_config",
    "kube_proxy_config",
    "kubelet_config",
]

PAUSE_IMAGE: Final = "docker.io/local/pause:1"
BUSYBOX_IMAGE: Final = "docker.io/local/busybox:1"
DNS_IMAGE: Final = "docker.io/local/coredns:1"

AUDIT_POLICY: Final[Mapping[str, object]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # The control plane's own traffic is most of it and tells nothing of ours.
        {
            "level": "None",
            "userGroups": ["system:nodes", "system:masters"],
            "resources": [{"group": "coordination.k8s.io"}],
        },
        {"level": "Metadata"},
    ],
}


def command(component: str, layout: Layout) -> list[str]:
    """Give a component's command line; its program is looked for in the cluster's own folder only.

    Raises:
        KeyError: There is no such component.
    """
    arguments = {
        "etcd": _etcd,
        "kube-apiserver": _apiserver,
        "kube-controller-manager": _controller_manager,
        "kube-scheduler": _scheduler,
        "containerd": _containerd,
        "kubelet": _kubelet,
        "kube-proxy": _kube_proxy,
        "kube-router": _kube_router,
    }[component](layout)
    return [str(layout.bin / component), *arguments]


def _etcd(layout: Layout) -> list[str]:
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return [
        f"--data-dir={layout.folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        # A test cluster need not survive a power cut.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _apiserver(layout: Layout) -> list[str]:
    pki = layout.pki
    return [
        "--etcd-servers=http://127.0.0.1:2379",
        "--bind-address=0.0.0.0",
        f"--advertise-address={layout.node_ip}",
        "--secure-port=6443",
        f"--service-cluster-ip-range={layout.services}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'server.crt'}",
        f"--tls-private-key-file={pki / 'server.key'}",
        f"--kubelet-client-certificate={pki / 'admin.crt'}",
        f"--kubelet-client-key={pki / 'admin.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        # By default the node's name is tried first, and nobody resolves it.
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        f"--service-account-key-file={pki / 'sa.pub'}",
        "--authorization-mode=Node,RBAC",
        # The second as on OpenShift: whoever makes children that block their owner needs a right.
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
        "--allow-privileged",
        f"--requestheader-client-ca-file={pki / 'ca.crt'}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy.key'}",
        "--enable-aggregator-routing",
        f"--audit-policy-file={layout.folder / 'audit.json'}",
        f"--audit-log-path={layout.audit_log}",
    ]


def _controller_manager(layout: Layout) -> list[str]:
    pki, config = layout.pki, layout.pki / "kcm.conf"
    arguments = [
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        f"--service-account-private-key-file={pki / 'sa.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        # With the default of 20 the controllers start one by one, over five seconds.
        "--kube-api-qps=500",
        "--kube-api-burst=500",
    ]
    if not layout.facts.is_full:
        # Nodes that a test makes have no kubelet that would keep them ready.
        arguments.append("--node-monitor-grace-period=24h")
    return arguments


def _scheduler(layout: Layout) -> list[str]:
    config = layout.pki / "scheduler.conf"
    return [
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    ]


def _containerd(layout: Layout) -> list[str]:
    return [f"--config={layout.folder / 'containerd.toml'}", "--log-level=warn"]


def _kubelet(layout: Layout) -> list[str]:
    return [
        f"--config={layout.folder / 'kubelet.json'}",
        f"--kubeconfig={layout.pki / 'server.conf'}",
        f"--hostname-override={NODE}",
        f"--node-ip={layout.node_ip}",
    ]


def _kube_proxy(layout: Layout) -> list[str]:
    return [f"--config={layout.folder / 'kube-proxy.json'}"]


def _kube_router(layout: Layout) -> list[str]:
    return [
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        f"--kubeconfig={layout.kubeconfig}",
        f"--hostname-override={NODE}",
        f"--service-cluster-ip-range={layout.services}",
    ]


def containerd_config(layout: Layout) -> str:
    """``containerd.toml``, config version 3."""
    unused = (
        "snapshotter.v1.btrfs",
        "snapshotter.v1.devmapper",
        "snapshotter.v1.zfs",
        "snapshotter.v1.blockfile",
        "snapshotter.v1.erofs",
        "differ.v1.erofs",
        "internal.v1.opt",
        "nri.v1.nri",
        "tracing.processor.v1.otlp",
    )
    disabled = json.dumps([f"io.containerd.{plugin}" for plugin in unused])
    runtime = '[plugins."io.containerd.cri.v1.runtime"'
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = {disabled}
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"
{runtime}]
restrict_oom_score_adj = true
{runtime}.cni]
bin_dirs = ["{layout.bin}"]
conf_dir = "{layout.folder}/cni"
{runtime}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
{runtime}.containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def cni_config(layout: Layout) -> Mapping[str, object]:
    """Pods on a bridge; the host has a route back, so nothing is masqueraded."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isDefaultGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": layout.pods}]],
            "dataDir": "/run/cni-ipam",
        },
    }
    portmap = {
        "type": "portmap",
        "backend": "nftables",
        "capabilities": {"portMappings": True},
    }
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, portmap]}


def kubelet_config(layout: Layout) -> Mapping[str, object]:
    """``KubeletConfiguration``."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.node_ip,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki / "server.crt"),
        "tlsPrivateKeyFile": str(layout.pki / "server.key"),
        "clusterDNS": [layout.dns_ip],
        "clusterDomain": "cluster.local",
        "resolvConf": str(layout.folder / "resolv.conf"),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        # The default makes a folder in /usr/libexec of the host.
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.name}",
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        # Version 1 is what many a container host still has; refused from Kubernetes 1.35 on.
        "failCgroupV1": False,
        "makeIPTablesUtilChains": False,
        "readOnlyPort": 0,
        "maxPods": 200,
        # By memory alone: a disk that is full for other reasons would evict our pods.
        "evictionHard": {"memory.available": "100Mi"},
        # An image that was collected can't be pulled again.
        "imageGCHighThresholdPercent": 100,
    }


def kube_proxy_config(layout: Layout) -> Mapping[str, object]:
    """``KubeProxyConfiguration``."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(layout.pki / "proxy.conf")},
        "clusterCIDR": layout.pods,
        "hostnameOverride": NODE,
        # Neither conntrack's limits nor the OOM score may be written in here.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "oomScoreAdj": 0,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }
