"""The build's context: what belongs to it, and a key that follows every change of it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from tools.image import inputs
from tools.image.inputs import (
    AllowList,
    IgnoreFileError,
    context_files,
    context_key,
    read_allow_list,
)
from tools.image.recipe import LOCKS, PYTHON, SUITE, TARGETS

ROOT = Path(__file__).resolve().parents[3]
RECIPE = (ROOT / "Containerfile").read_text()


def pins(name: str) -> dict[str, str]:
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+) \\$", text, re.MULTILINE))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "code" / "__pycache__").mkdir(parents=True)
    (tmp_path / "code" / "a.py").write_text("a")
    (tmp_path / "code" / "b.py").write_text("b")
    (tmp_path / "code" / "link").symlink_to("a.py")
    (tmp_path / "code" / "__pycache__" / "a.pyc").write_text("compiled")
    (tmp_path / "lock.txt").write_text("lock")
    (tmp_path / "notes.md").write_text("notes")
    (tmp_path / "Containerfile").write_text("FROM scratch")
    (tmp_path / ".containerignore").write_text("*\n!code\n!lock.txt\n**/__pycache__\n")
    return tmp_path


def test_an_allow_list_has_paths_and_names() -> None:
    text = "# why\n\n*\n!a/b\n!c.txt\n**/__pycache__\n**/*.pyc\n"
    assert read_allow_list(text) == AllowList(("a/b", "c.txt"), ("__pycache__", "*.pyc"))


@pytest.mark.parametrize(
    "text",
    ["", "!a\n", "node_modules\n*\n", "*\n!a/*.py\n", "*\nb\n", "*\n**/a/b\n", "*\n!/a\n"],
)
def test_a_form_that_would_be_read_otherwise_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(IgnoreFileError):
        read_allow_list(text)


def test_the_context_has_what_is_listed_and_nothing_else(tree: Path) -> None:
    listed = context_files(tree, read_allow_list((tree / ".containerignore").read_text()))
    names = [str(path.relative_to(tree)) for path in listed]
    assert names == ["code/a.py", "code/b.py", "code/link", "lock.txt"]


def test_a_name_may_be_a_pattern(tree: Path) -> None:
    listed = context_files(tree, AllowList(("code",), ("__py*", "b.??")))
    assert [path.name for path in listed] == ["a.py", "link"]


def test_a_listed_path_has_to_exist(tree: Path) -> None:
    with pytest.raises(IgnoreFileError, match="gone is listed"):
        list(context_files(tree, AllowList(("gone",), ())))


def edit(tree: Path) -> None:
    (tree / "code" / "a.py").write_text("A")


def move(tree: Path) -> None:
    (tree / "code" / "b.py").rename(tree / "code" / "c.py")


def swap(tree: Path) -> None:
    (tree / "code" / "a.py").write_text("b")
    (tree / "code" / "b.py").write_text("a")


def make_executable(tree: Path) -> None:
    (tree / "code" / "a.py").chmod(0o755)


def turn_the_link(tree: Path) -> None:
    (tree / "code" / "link").unlink()
    (tree / "code" / "link").symlink_to("../code/a.py")


def change_the_recipe(tree: Path) -> None:
    (tree / "Containerfile").write_text("FROM other")


def change_the_rules(tree: Path) -> None:
    with (tree / ".containerignore").open("a") as rules:
        rules.write("**/nothing\n")


@pytest.mark.parametrize(
    "change",
    [
        edit,
        move,
        swap,
        make_executable,
        turn_the_link,
        change_the_recipe,
        change_the_rules,
    ],
    ids=lambda change: change.__name__,
)
def test_the_key_follows_every_change_of_the_context(tree: Path, change: object) -> None:
    before = context_key(tree)
    assert callable(change)
    change(tree)
    assert context_key(tree) != before


def test_the_key_follows_the_settings(tree: Path) -> None:
    assert len({context_key(tree), context_key(tree, "a"), context_key(tree, "b")}) == 3


def test_the_key_follows_the_builder_itself(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = tree / "tools"
    builder.mkdir()
    monkeypatch.setattr(inputs, "_HERE", builder)
    keys = {context_key(tree)}
    (builder / "recipe.py").write_text("one")
    keys.add(context_key(tree))
    (builder / "recipe.py").write_text("two")
    keys.add(context_key(tree))
    assert len(keys) == 3


def test_the_key_stays_when_something_else_changes(tree: Path) -> None:
    before = context_key(tree)
    (tree / "notes.md").write_text("other notes")
    (tree / "code" / "__pycache__" / "a.pyc").write_text("compiled anew")
    (tree / "code" / "a.py").touch()
    assert context_key(tree) == before


def test_the_context_is_what_the_containerfile_copies() -> None:
    allowed = {*read_allow_list((ROOT / ".containerignore").read_text()).paths}
    lines = re.findall(r"^COPY (?!--from)(.+)$", RECIPE, re.MULTILINE)
    assert "." in {word for line in lines for word in line.split()[:-1]}
    locks = {word for line in lines for word in line.split()[:-1]} - {"."}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    metadata = {
        "pyproject.toml",
        project["project"]["readme"],
        *project["project"]["license-files"],
    }
    # The package has a link to the example.
    example = {"examples/01-minimal/pdcluster.yaml"}
    assert allowed == locks | {*packages} | metadata | example
    assert {f"locks/{name}.txt" for name in (*LOCKS, "image")} == locks


def test_docker_reads_the_same_rules() -> None:
    assert (ROOT / ".dockerignore").read_text() == (ROOT / ".containerignore").read_text()


def test_the_containerfile_has_the_targets_and_ends_with_the_first() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", RECIPE, re.MULTILINE)
    assert {*TARGETS} <= {*stages}
    assert stages[-1] == TARGETS[0]
    # No stage but these two rests on anything but BASE and each other.
    assert re.findall(r"^FROM (\S+)", RECIPE, re.MULTILINE).count("${BASE}") == 2


def test_any_base_has_the_python_that_the_locks_were_resolved_for() -> None:
    (default,) = re.findall(r"^ARG BASE=(\S+)$", RECIPE, re.MULTILINE)
    assert f"python:{PYTHON}-slim-{SUITE}" in default


def test_nothing_is_installed_but_by_hash() -> None:
    installs = re.findall(r"bin/pip [^&;]*?\binstall\b[^&;]*", RECIPE.replace("\\\n", " "))
    assert len(installs) == 4
    by_hash = [line for line in installs if "--require-hashes" in line and "--no-deps" in line]
    assert len(by_hash) == 3
    (ours,) = {*installs} - {*by_hash}
    assert "--no-index" in ours
    assert "/wheel/" in ours


@pytest.mark.parametrize("name", ["image", "image-sim", "image-build"])
def test_an_image_holds_the_versions_that_were_tested(name: str) -> None:
    tested, shipped = pins("dev"), pins(name)
    assert shipped.items() <= tested.items()
    assert len(shipped) > 4


def test_the_simulators_image_only_adds_to_the_other() -> None:
    small, large = pins("image"), pins("image-sim")
    assert small.items() < large.items()
    assert {*large} - {*small} == {"numpy", "pyzmq"}
    assert "image" not in LOCKS, "its wheels come with those of image-sim"


def test_no_image_holds_torch() -> None:
    for name in ("image", *LOCKS):
        assert "torch" not in pins(name)
