"""The chart as tests see it: rendered by a real Helm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.kubernetes.build import BuildError, build_all, default_cache
from tools.kubernetes.cluster.host import Cluster
from tools.kubernetes.cluster.layout import Layout
from tools.kubernetes.cluster.shell import ClusterError

from tests.support.kubernetes import claimed_folder
from tests.support.node import CHART, Helm

__all__ = [
    "PRESETS",
    "bare_control_plane",
    "find_programs",
    "kubeconfig_of",
    "pod_specs",
    "preset",
    "render",
]

PRESETS = ("minimal", "production", "namespaced", "restricted")


def find_programs() -> Path:
    """Folder with Helm 3, Helm 4 and Kubernetes: built, or one that a variable names."""
    given = os.environ.get("PDCLUSTER_KUBERNETES_BIN")
    if given:
        return Path(given)
    if shutil.which("go") is None and not os.environ.get("CI"):
        pytest.skip("Go is missing: it builds Helm")
    try:
        return build_all(default_cache())
    except BuildError as error:
        pytest.fail(str(error))


def preset(name: str) -> tuple[str, ...]:
    """Words that choose a preset."""
    return ("--values", str(CHART / "presets" / f"{name}.yaml"))


def render(
    helm: Helm,
    *words: str,
    release: str = "pdcluster",
    namespace: str = "sys",
    values: Mapping[str, object] | None = None,
) -> list[dict[str, Any]]:
    """Render the chart; give its objects.

    Args:
        helm: Which Helm.
        words: Further words of the command line.
        release: Name of the release.
        namespace: Where it is.
        values: Values, as a file would have them.
    """
    if values is not None:
        path = helm.scratch / "values.yaml"
        path.write_text(yaml.safe_dump(dict(values)))
        words = (*words, "--values", str(path))
    text = helm("template", release, str(CHART), "--namespace", namespace, *words)
    return [each for each in yaml.safe_load_all(text) if each]


def pod_specs(objects: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Every pod's spec, of Pods and of templates."""
    for each in objects:
        if each["kind"] == "Pod":
            yield each["spec"]
        elif each["kind"] == "Deployment":
            yield each["spec"]["template"]["spec"]


@contextmanager
def bare_control_plane(programs: Path, name: str) -> Iterator[Layout]:
    """A control plane of one's own, without our CRDs: those are the chart's to bring."""
    with claimed_folder(name) as folder:
        cluster = Cluster(folder)
        try:
            layout = cluster.start(programs, is_full=False, ends_with_us=True)
        except ClusterError as error:
            if os.environ.get("CI"):
                pytest.fail(str(error))
            pytest.skip(str(error))
        try:
            yield layout
        finally:
            cluster.stop()
            shutil.rmtree(folder)


def kubeconfig_of(layout: Layout, folder: Path, token: str) -> Path:
    """A kubeconfig with a token in place of the administrator's certificate."""
    config = yaml.safe_load(layout.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
