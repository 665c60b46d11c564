"""A real Kubernetes for tests: built once, started per session, gone with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tools.kubernetes.build import BuildError, build_all, default_cache
from tools.kubernetes.cluster.host import Cluster
from tools.kubernetes.cluster.shell import ClusterError

from tests.support.kubernetes import claimed_folder

__all__ = ["find_programs", "give_up", "started_cluster"]


def give_up(reason: str) -> NoReturn:
    """Fail where everything has to be there, skip elsewhere."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def find_programs() -> Path:
    """Folder with Kubernetes' programs: built, or one that PDCLUSTER_KUBERNETES_BIN names."""
    given = os.environ.get("PDCLUSTER_KUBERNETES_BIN")
    if given:
        return Path(given)
    if shutil.which("go") is None:
        give_up("Go is missing: it builds Kubernetes")
    try:
        return build_all(default_cache())
    except BuildError as error:
        pytest.fail(str(error))


@contextmanager
def started_cluster(programs: Path, name: str, **wanted: Any) -> Iterator[Cluster]:
    """Start a cluster in a folder that no other session uses.

    Args:
        programs: Folder of the programs.
        name: Of the folder, without its number.
        wanted: What :meth:`Cluster.start` is asked for.
    """
    with claimed_folder(name) as folder:
        cluster = Cluster(folder)
        try:
            cluster.start(programs, ends_with_us=True, **wanted)
        except ClusterError as error:
            give_up(str(error))
        try:
            yield cluster
        finally:
            cluster.stop()
            shutil.rmtree(folder)
