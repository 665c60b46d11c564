"""Which programs the test cluster is made of, and how each is built from its Go module.

Pure. One module file per family, because their dependencies' versions contradict each other. The
versions stand in those files alone; a program that is not told its version by a linker flag says
0.0.0, and then version checks of its peers go wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["FAMILIES", "KUBERNETES", "Family", "Program", "linker_flags", "required_version"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program.

    Attributes:
        name: Its file name.
        package: The Go package of its ``main``.
    """

    name: str
    package: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The programs of one Go module file.

    Attributes:
        folder: Its folder under ``modules/``.
        module: The module that the version is read from.
        programs: What is built.
        version_symbols: Variables that are set to the version, as it stands in ``go.mod``.
    """

    folder: str
    module: str
    programs: tuple[Program, ...]
    version_symbols: tuple[str, ...] = ()


def _kubernetes(folder: str) -> Family:
    names = (
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubelet",
        "kube-proxy",
        "kubectl",
    )
    return Family(
        folder=folder,
        module="k8s.io/kubernetes",
        programs=tuple(
            Program(name=name, package=f"k8s.io/kubernetes/cmd/{name}") for name in names
        ),
    )


KUBERNETES = {"1.34": _kubernetes("k8s"), "1.37": _kubernetes("k8s-1.37")}
"""Kubernetes itself, by minor version; the first is what tests run on."""

_CNI = "github.com/containernetworking/plugins"
_CONTAINERD = "github.com/containerd/containerd/v2"

FAMILIES = (
    Family(
        folder="etcd",
        module="go.etcd.io/etcd/server/v3",
        programs=(Program(name="etcd", package="go.etcd.io/etcd/server/v3"),),
    ),
    Family(
        folder="containerd",
        module=_CONTAINERD,
        programs=tuple(
            Program(name=name, package=f"{_CONTAINERD}/cmd/{name}")
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        ),
        version_symbols=(f"{_CONTAINERD}/version.Version",),
    ),
    Family(
        folder="cni",
        module=_CNI,
        programs=tuple(
            Program(name=path.rpartition("/")[2], package=f"{_CNI}/plugins/{path}")
            for path in ("main/bridge", "ipam/host-local", "main/loopback", "meta/portmap")
        ),
    ),
    Family(
        folder="coredns",
        module="github.com/coredns/coredns",
        programs=(Program(name="coredns", package="."),),
    ),
    Family(
        folder="kube-router",
        module="github.com/cloudnativelabs/kube-router/v2",
        programs=(
            Program(
                name="kube-router",
                package="github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
            ),
        ),
    ),
    Family(
        folder="helm3",
        module="helm.sh/helm/v3",
        programs=(Program(name="helm3", package="helm.sh/helm/v3/cmd/helm"),),
        version_symbols=("helm.sh/helm/v3/internal/version.version",),
    ),
    Family(
        folder="helm4",
        module="helm.sh/helm/v4",
        programs=(Program(name="helm4", package="helm.sh/helm/v4/cmd/helm"),),
        version_symbols=("helm.sh/helm/v4/internal/version.version",),
    ),
)
"""What Kubernetes does not bring itself."""


def required_version(go_mod: str, module: str) -> str:
    """Read a module's version from the text of a ``go.mod``.

    Raises:
        ValueError: The file does not require that module.
    """
    found = re.search(rf"^(?:require )?\s*{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if found is None:
        message = f"go.mod does not require {module}"
        raise ValueError(message)
    return found[1]


def linker_flags(family: Family, version: str, *, kubernetes_minor: str) -> str:
    """Give what ``go build -ldflags`` gets: no debug information, and the version.

    Args:
        family: What is built.
        version: Its version, with the ``v``.
        kubernetes_minor: The Kubernetes version that charts are rendered for where no server says
            it, like ``34``: Helm 3 takes 1.20 unless it is told.
    """
    settings = dict.fromkeys(family.version_symbols, version)
    if family.module == "k8s.io/kubernetes":
        minor = version.split(".")[1]
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
            settings |= {
                f"{package}.gitVersion": version,
                f"{package}.gitMajor": "1",
                f"{package}.gitMinor": minor,
                f"{package}.gitTreeState": "clean",
            }
    if family.module == "helm.sh/helm/v3":
        for package in ("lint/rules", "chartutil"):
            prefix = f"helm.sh/helm/v3/pkg/{package}"
            settings |= {
                f"{prefix}.k8sVersionMajor": "1",
                f"{prefix}.k8sVersionMinor": kubernetes_minor,
            }
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in settings.items())])
