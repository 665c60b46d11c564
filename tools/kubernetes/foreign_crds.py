"""Other projects' custom resource definitions, from their Go modules.

Shell; standard library only. Go checks what it downloads against ``go.sum`` and keeps it in its own
cache, so nothing of them lies in this tree.
"""

from __future__ import annotations

import json
import subprocess
from enum import StrEnum
from pathlib import Path

from tools.kubernetes.build import MODULES, BuildError, check_go

__all__ = ["Project", "crd_files"]

_FOLDER = MODULES / "foreign-crds"


class Project(StrEnum):
    """Whose CRDs; the value is the Go module."""

    PROMETHEUS_OPERATOR = "github.com/prometheus-operator/prometheus-operator"
    """PodMonitor, ServiceMonitor, PrometheusRule and more."""
    GATEWAY_API = "sigs.k8s.io/gateway-api"
    """Gateway, HTTPRoute and more, of the standard channel."""


_WHERE = {
    Project.PROMETHEUS_OPERATOR: "example/prometheus-operator-crd",
    Project.GATEWAY_API: "config/crd/standard",
}


def crd_files(project: Project) -> tuple[Path, ...]:
    """Give the files of a project's CRDs, downloaded if they are not there yet.

    Raises:
        BuildError: Go is missing, or the module can't be had.
    """
    check_go()
    ended = subprocess.run(
        ["go", "mod", "download", "-json", project.value],
        cwd=_FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        message = f"{project.value} could not be downloaded: {ended.stderr}{ended.stdout}"
        raise BuildError(message)
    folder = Path(json.loads(ended.stdout)["Dir"]) / _WHERE[project]
    found = sorted(folder.glob("*.yaml"))
    if not found:
        message = f"{folder} has no CRDs: has the project moved them?"
        raise BuildError(message)
    return tuple(found)
