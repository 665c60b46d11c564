"""Which programs are built, and what they are told of their version."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.kubernetes.build import (
    MODULES,
    BuildError,
    chosen_minor,
    family_key,
    find_built,
    output_of,
)
from tools.kubernetes.cluster.layout import COMPONENTS, CONTROL_PLANE, NODE_PROGRAMS
from tools.kubernetes.programs import (
    FAMILIES,
    KUBERNETES,
    Family,
    linker_flags,
    required_version,
)

ALL = (*KUBERNETES.values(), *FAMILIES)


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.folder)
def test_every_family_has_a_module_file_that_says_its_version(family: Family) -> None:
    folder = MODULES / family.folder
    assert (folder / "go.sum").read_text().count(" h1:") > 10
    assert required_version((folder / "go.mod").read_text(), family.module).startswith("v")


@pytest.mark.parametrize("minor", KUBERNETES)
def test_a_minor_version_is_what_its_module_file_pins(minor: str) -> None:
    family = KUBERNETES[minor]
    version = required_version((MODULES / family.folder / "go.mod").read_text(), family.module)
    assert version.startswith(f"v{minor}.")


@pytest.mark.parametrize(("chosen", "minor"), [(None, "1.34"), ("", "1.34"), ("1.37", "1.37")])
def test_one_variable_chooses_the_minor_version(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, minor: str
) -> None:
    monkeypatch.delenv("PDCLUSTER_KUBERNETES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("PDCLUSTER_KUBERNETES", chosen)
    assert chosen_minor() == minor


def test_a_minor_version_that_there_is_not_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCLUSTER_KUBERNETES", "1.20")
    with pytest.raises(BuildError, match=r"PDCLUSTER_KUBERNETES=1\.20: choose one of 1\.34, 1\.37"):
        chosen_minor()


def test_whatever_a_cluster_runs_is_built() -> None:
    built = {
        program.name for family in (KUBERNETES["1.34"], *FAMILIES) for program in family.programs
    }
    assert {*CONTROL_PLANE, *NODE_PROGRAMS, *COMPONENTS, "kubectl", "helm3", "helm4"} <= built


def test_kubernetes_is_told_its_version() -> None:
    flags = linker_flags(KUBERNETES["1.34"], "v1.34.4", kubernetes_minor="34")
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        assert f"-X {package}.gitVersion=v1.34.4 -X {package}.gitMajor=1" in flags
        assert f"-X {package}.gitMinor=34" in flags


def test_helm_3_is_told_which_kubernetes_it_renders_for() -> None:
    (helm3,) = (family for family in FAMILIES if family.folder == "helm3")
    flags = linker_flags(helm3, "v3.22.0", kubernetes_minor="34")
    assert "chartutil.k8sVersionMinor=34" in flags
    assert "helm.sh/helm/v3/internal/version.version=v3.22.0" in flags


def test_a_module_that_is_not_required_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"does not require example\.com/b"):
        required_version("require example.com/a v1.0.0\n", "example.com/b")


@pytest.mark.parametrize(
    "text",
    ["require example.com/a v1.2.3\n", "require (\n\texample.com/a v1.2.3 // indirect\n)\n"],
)
def test_a_version_is_read_in_both_forms(text: str) -> None:
    assert required_version(text, "example.com/a") == "v1.2.3"


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.folder)
def test_each_program_gets_its_own_name(family: Family, tmp_path: Path) -> None:
    out = output_of(family, tmp_path)
    if out.endswith("/"):
        named_by_go = [program.package.rpartition("/")[2] for program in family.programs]
        assert [program.name for program in family.programs] == named_by_go
    else:
        assert [str(tmp_path / program.name) for program in family.programs] == [out]


def test_nothing_is_found_where_nothing_was_built(tmp_path: Path) -> None:
    assert find_built(tmp_path) is None


def test_a_build_is_named_by_its_content() -> None:
    family = FAMILIES[0]
    before = family_key(family, "1.34")
    assert family_key(family, "1.34") == before
    assert family_key(family, "1.37") != before
