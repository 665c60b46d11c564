"""The cluster's own certificate authority, its certificates and kubeconfigs.

Shell around openssl 3, which makes a key and its signed certificate in one call.
"""

from __future__ import annotations

import base64
import json

from tools.kubernetes.cluster.layout import NODE, Layout
from tools.kubernetes.cluster.shell import run

__all__ = ["write_certificates"]

_SUBJECTS = {
    "server": f"/O=system:nodes/CN=system:node:{NODE}",
    "admin": "/O=system:masters/CN=admin",
    "kcm": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    "front-proxy": "/CN=front-proxy",
}
_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
    NODE,
)
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "365")


def write_certificates(layout: Layout) -> None:
    """Make everything anew in the cluster's folder."""
    pki = layout.pki
    pki.mkdir(mode=0o700, parents=True, exist_ok=True)
    ca = ("-keyout", pki / "ca.key", "-out", pki / "ca.crt")
    run("openssl", "req", "-x509", *_NEW_KEY, *ca, "-subj", "/CN=pdcluster-test-ca")
    addresses = ("127.0.0.1", layout.node_ip, layout.api_ip)
    san = ",".join([f"DNS:{name}" for name in _NAMES] + [f"IP:{ip}" for ip in addresses])
    for name, subject in _SUBJECTS.items():
        signed = ("-CA", pki / "ca.crt", "-CAkey", pki / "ca.key")
        out = ("-keyout", pki / f"{name}.key", "-out", pki / f"{name}.crt", "-subj", subject)
        extensions = (
            f"subjectAltName={san}",
            "basicConstraints=critical,CA:FALSE",
            "extendedKeyUsage=clientAuth,serverAuth",
        )
        added = [word for each in extensions for word in ("-addext", each)]
        run("openssl", "req", "-x509", *_NEW_KEY, *signed, *out, *added)
        if name != "front-proxy":
            path = layout.kubeconfig if name == "admin" else pki / f"{name}.conf"
            path.write_text(_kubeconfig(layout, name))
            path.chmod(0o600)
    run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", pki / "sa.key")
    run("openssl", "ec", "-in", pki / "sa.key", "-pubout", "-out", pki / "sa.pub")


def _kubeconfig(layout: Layout, user: str) -> str:
    def data(name: str) -> str:
        return base64.b64encode((layout.pki / name).read_bytes()).decode()

    cluster = {"server": layout.api_url, "certificate-authority-data": data("ca.crt")}
    keys = {
        "client-certificate-data": data(f"{user}.crt"),
        "client-key-data": data(f"{user}.key"),
    }
    context = {"cluster": layout.name, "user": user, "namespace": "default"}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": layout.name,
            "clusters": [{"name": layout.name, "cluster": cluster}],
            "users": [{"name": user, "user": keys}],
            "contexts": [{"name": layout.name, "context": context}],
        }
    )
