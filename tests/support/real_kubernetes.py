"""A real Kubernetes for tests: built once, started per session, gone with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tools.kubernetes.build import default_cache, find_built
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
    """Folder with Kubernetes' programs: built before, or one that PDCLUSTER_KUBERNETES_BIN names.

    Never built from here: that takes a quarter of an hour, with nothing shown.
    """
    given = os.environ.get("PDCLUSTER_KUBERNETES_BIN")
    found = Path(given) if given else find_built(default_cache())
    if found is None:
        give_up("no Kubernetes to test on: make kubernetes builds one, once")
    return found


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
            cluster.remove()
