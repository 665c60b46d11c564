"""Other projects' CRDs are pinned as programs are."""

from __future__ import annotations

import pytest
from tools.kubernetes.build import MODULES
from tools.kubernetes.foreign_crds import Project
from tools.kubernetes.programs import required_version


@pytest.mark.parametrize("project", Project)
def test_every_project_is_pinned_by_version_and_sum(project: Project) -> None:
    folder = MODULES / "foreign-crds"
    version = required_version((folder / "go.mod").read_text(), project.value)
    sums = (folder / "go.sum").read_text().splitlines()
    assert any(line.startswith(f"{project.value} {version} h1:") for line in sums)
