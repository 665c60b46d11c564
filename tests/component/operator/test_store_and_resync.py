"""What the store knows after events in any order, and what a list tells it that no watch did."""

from __future__ import annotations

from typing import Any

import pytest

from pdcluster_operator.errors import ClusterApiError
from pdcluster_operator.kube.store import Store
from pdcluster_operator.manifests.objects import ObjectKey
from pdcluster_operator.resync import Resync

KEY = ("serving", "qwen")


def raw(kind: str, name: str, version: int, *, uid: str = "", cluster: str = "qwen") -> Any:
    return {
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": "serving",
            "uid": uid or f"{kind}-{name}",
            "resourceVersion": str(version),
            "labels": {"pdcluster.io/cluster": cluster} if kind != "PDCluster" else {},
        },
    }


def names(store: Store) -> set[str]:
    children = {str(child["metadata"]["name"]) for child in store.children(KEY)}  # type: ignore[index]
    return children | {str(pod["metadata"]["name"]) for pod in store.pods(KEY)}  # type: ignore[index]


def test_objects_are_filed_under_their_cluster() -> None:
    store = Store()
    assert store.put(raw("PDCluster", "qwen", 1)) == KEY
    assert store.put(raw("Service", "qwen", 2)) == KEY
    assert store.put(raw("Pod", "p-1", 3)) == KEY
    assert store.put(raw("Service", "other", 4, cluster="")) is None
    assert names(store) == {"qwen", "p-1"}


def test_a_new_object_of_an_old_name_is_taken_whatever_its_version() -> None:
    store = Store()
    store.put(raw("Service", "qwen", 9))
    store.put(raw("Service", "qwen", 3, uid="another"))
    (child,) = store.children(KEY)
    assert child["metadata"]["uid"] == "another"  # type: ignore[index]


@pytest.mark.parametrize("kind", ["Service", "Pod", "PDCluster"])
def test_what_a_list_lacks_is_gone(kind: str) -> None:
    store = Store()
    store.put(raw(kind, "qwen", 5))
    assert store.replace_kind(kind, [], version="9") == {KEY}
    assert names(store) == set()
    assert store.cluster(KEY) is None


def test_what_is_newer_than_the_list_stays() -> None:
    store = Store()
    store.put(raw("Service", "qwen", 12))
    assert store.replace_kind("Service", [], version="9") == set()
    assert names(store) == {"qwen"}


def test_a_list_of_one_kind_or_namespace_says_nothing_of_others() -> None:
    store = Store()
    store.put(raw("Service", "qwen", 1))
    assert store.replace_kind("ConfigMap", [], version="9") == set()
    assert store.replace_kind("Service", [], version="9", namespace="elsewhere") == set()
    assert names(store) == {"qwen"}


def test_a_list_brings_what_no_watch_told_and_wakes_nobody_for_what_is_known() -> None:
    store = Store()
    known = raw("Service", "qwen", 1)
    store.put(known)
    listed = [known, raw("Service", "qwen-engines", 2)]
    assert store.replace_kind("Service", listed, version="9") == {KEY}
    assert names(store) == {"qwen", "qwen-engines"}
    assert store.replace_kind("Service", listed, version="9") == set()


def test_a_child_that_was_forgotten_is_not_forgotten_for_its_successor() -> None:
    store = Store()
    store.put(raw("Service", "qwen", 5, uid="new"))
    store.forget(KEY, ObjectKey("Service", "qwen"), uid="old")
    assert names(store) == {"qwen"}


class Lister:
    def __init__(self) -> None:
        self.lists: dict[str, list[Any]] = {}
        self.fails_in: set[str] = set()
        self.asked: list[tuple[str, str]] = []

    async def list_ours(self, kind: str, namespace: str = "") -> tuple[list[Any], str]:
        self.asked.append((kind, namespace))
        if namespace in self.fails_in:
            message = "away"
            raise ClusterApiError(message, retry_after_s=7.0)
        found = self.lists.get(kind, [])
        return [each for each in found if namespace in ("", each["metadata"]["namespace"])], "100"


class Woken(list[tuple[str, str]]):
    """Clusters that are to be looked at."""

    def __call__(self, key: tuple[str, str]) -> None:
        self.append(key)


async def test_a_deletion_that_no_watch_told_has_its_cluster_looked_at() -> None:
    store, lister, woken = Store(), Lister(), Woken()
    resync = Resync(lister, store, kinds=("Service", "Pod"), namespaces=(), enqueue=woken)
    await resync.once()
    store.put(raw("Service", "qwen", 5))
    store.put(raw("Pod", "p", 6))
    lister.lists["Pod"] = [raw("Pod", "p", 6)]
    await resync.once()
    assert woken == [KEY]
    assert names(store) == {"p"}
    await resync.once()
    assert woken == [KEY]
    assert lister.asked[:2] == [("Service", ""), ("Pod", "")]


async def test_a_namespaced_operator_lists_its_namespaces_alone() -> None:
    lister = Lister()
    resync = Resync(lister, Store(), kinds=("Pod",), namespaces=("a", "b"), enqueue=Woken())
    await resync.once()
    assert lister.asked == [("Pod", "a"), ("Pod", "b")]


async def test_a_list_that_fails_changes_nothing() -> None:
    store, lister = Store(), Lister()
    store.put(raw("Service", "qwen", 5))
    lister.fails_in = {""}
    resync = Resync(lister, store, kinds=("Service",), namespaces=(), enqueue=Woken())
    assert await resync.once() == 7.0
    assert names(store) == {"qwen"}


async def test_no_cluster_is_looked_at_before_all_that_belongs_to_it_is_listed() -> None:
    store, lister, woken = Store(), Lister(), Woken()
    mine, other = (KEY[0], "other")
    elsewhere = raw("PDCluster", "qwen", 5, uid="elsewhere")
    elsewhere["metadata"]["namespace"] = other
    lister.lists["PDCluster"] = [raw("PDCluster", "qwen", 5), elsewhere]
    resync = Resync(
        lister, store, kinds=("PDCluster", "Pod"), namespaces=(mine, other), enqueue=woken
    )
    assert not resync.has_listed(KEY)
    # One namespace is forbidden, maybe because it is gone: the others have an operator.
    lister.fails_in = {mine}
    await resync.once()
    assert not resync.has_listed(KEY)
    assert resync.has_listed((other, "qwen"))
    assert woken == [(other, "qwen")]
    lister.fails_in = set()
    await resync.once()
    assert resync.has_listed(KEY)
    assert woken == [(other, "qwen"), KEY]
    await resync.once()
    assert len(woken) == 2
