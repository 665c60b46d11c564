"""The chart as tests see it: rendered by a real Helm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from tools.kubernetes.cluster.layout import Layout

from tests.support.node import CHART, Helm

__all__ = [
    "PRESETS",
    "kubeconfig_of",
    "pod_specs",
    "preset",
    "render",
]

PRESETS = ("minimal", "production", "namespaced", "restricted")


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


def kubeconfig_of(layout: Layout, folder: Path, token: str) -> Path:
    """A kubeconfig with a token in place of the administrator's certificate."""
    config = yaml.safe_load(layout.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
