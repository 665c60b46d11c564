from __future__ import annotations

import os
from pathlib import Path

from tests.support.resources import cluster

from pdcluster_cli.up.command import _opening, example_file
from pdcluster_cli.up.run_folders import make_run_dir
from pdcluster_cli.up.wishes import EngineSource


def test_each_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = make_run_dir(tmp_path, "qwen")
    assert folder.is_dir()
    assert folder.parent == tmp_path / "runs"
    assert folder.name.endswith(f"-qwen-{os.getpid()}")


def test_old_runs_are_removed_and_living_ones_are_not(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    dead = [runs / f"20200101-0000{n:02}-qwen-{2**22 + n}" for n in range(15)]
    living = runs / f"20190101-000000-qwen-{os.getppid()}"
    for folder in (*dead, living):
        (folder / "logs").mkdir(parents=True)
    mine = make_run_dir(tmp_path, "qwen")
    left = set(runs.iterdir())
    assert {mine, living} <= left
    assert left - {mine, living} == set(dead[-9:])


def test_people_are_told_what_runs_and_what_is_ignored() -> None:
    asked = cluster(
        prefill={"replicas": 3}, proxy={"replicas": 4}, ratio={"maxPrefillPerDecode": "3:1"}
    )
    source = EngineSource(label="simulator", command=("x",))
    lines = list(_opening(Path("my.yaml"), ("Namespace",), asked, source, Path("/run")))
    assert lines[0] == "qwen from my.yaml: 3P + 2D (simulator) and a proxy."
    assert lines[1] == "Logs: /run/logs"
    assert "Skipped documents of other kinds: Namespace." in lines
    assert "Only a Kubernetes cluster honours: spec.proxy.replicas, spec.ratio." in lines


def test_nothing_is_said_of_what_every_resource_has() -> None:
    source = EngineSource(label="simulator", command=("x",))
    lines = list(_opening(Path("my.yaml"), (), cluster(), source, Path("/run")))
    assert len(lines) == 3


def test_the_example_is_there() -> None:
    assert example_file().is_file()
