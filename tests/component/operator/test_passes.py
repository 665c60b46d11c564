"""Store, executor and reconciler against an API that remembers, refuses and goes away."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.kubernetes_world import NOW, SETTINGS, resource

from pdcluster_operator.errors import (
    ApplyRejectedError,
    ClusterApiError,
    ConflictError,
    OperatorError,
)
from pdcluster_operator.kube.executor import Executor
from pdcluster_operator.kube.store import Store
from pdcluster_operator.manifests.objects import ObjectKey
from pdcluster_operator.plan.reconcile import STRANGER_S
from pdcluster_operator.reconciler import Reconciler

KEY = ("serving", "qwen")
Raw = dict[str, Any]


class Api:
    """An API server of plain dicts; it can refuse and be away."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Raw] = {}
        self.events: list[Mapping[str, object]] = []
        self.calls: list[str] = []
        self.refuse: dict[str, OperatorError] = {}
        self._version = 0

    def next_version(self) -> str:
        self._version += 1
        return str(self._version)

    async def get(self, key: ObjectKey, _namespace: str) -> Raw | None:
        self._called("get", key.kind, key.name)
        return copy.deepcopy(self.objects.get((key.kind, key.name)))

    async def apply(self, manifest: Mapping[str, Any], _namespace: str, *, uid: str) -> Raw:
        kind, name = str(manifest["kind"]), str(manifest["metadata"]["name"])
        self._called("apply", kind, name)
        found = self.objects.get((kind, name))
        if found is not None and uid and found["metadata"]["uid"] != uid:
            message = "another uid"
            raise ConflictError(message)
        made: Raw = copy.deepcopy(dict(manifest))
        version = self.next_version()
        made["metadata"] |= {"uid": uid or f"uid-{version}", "generation": 1}
        made["metadata"]["resourceVersion"] = version
        self.objects[kind, name] = made
        return copy.deepcopy(made)

    async def apply_status(self, key: ObjectKey, _ns: str, status: Mapping[str, object]) -> Raw:
        self._called("status", key.kind, key.name)
        target = self.objects[key.kind, key.name]
        target["status"] = copy.deepcopy(dict(status))
        target["metadata"]["resourceVersion"] = self.next_version()
        return copy.deepcopy(target)

    async def patch(self, key: ObjectKey, _ns: str, content: Mapping[str, Any], *, uid: str) -> Raw:
        self._called("patch", key.kind, key.name)
        assert self.objects[key.kind, key.name]["metadata"]["uid"] == uid
        self.objects[key.kind, key.name]["spec"] |= content["spec"]
        return copy.deepcopy(self.objects[key.kind, key.name])

    async def delete(self, key: ObjectKey, _namespace: str, *, uid: str) -> None:
        self._called("delete", key.kind, key.name)
        found = self.objects.get((key.kind, key.name))
        if found is not None and found["metadata"]["uid"] == uid:
            del self.objects[key.kind, key.name]

    async def create_event(self, _namespace: str, event: Mapping[str, object]) -> None:
        self._called("event", "", "")
        self.events.append(event)

    async def list_events(self, _namespace: str, pod: str) -> list[Raw]:
        self._called("list", "Event", pod)
        return []

    def _called(self, verb: str, kind: str, name: str) -> None:
        self.calls.append(f"{verb} {kind}/{name}")
        for prefix, error in self.refuse.items():
            if self.calls[-1].startswith(prefix):
                raise error


class Rig:
    def __init__(self) -> None:
        self.api, self.store = Api(), Store()
        cluster = resource()
        cluster["metadata"]["resourceVersion"] = "0"
        self.api.objects["PDCluster", "qwen"] = cluster
        self.store.put(copy.deepcopy(cluster))
        executor = Executor(self.api, self.store, now=lambda: NOW, instance="test")
        self.reconcile = Reconciler(self.store, executor, self.api, SETTINGS, now=lambda: NOW)

    async def settle(self) -> float | None:
        for _ in range(20):
            again = await self.reconcile(KEY)
            if again != 0.0:
                return again
        message = "it never settled"
        raise AssertionError(message)

    @property
    def conditions(self) -> dict[str, tuple[str, str]]:
        status = self.api.objects["PDCluster", "qwen"]["status"]
        return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


async def test_passes_make_everything_and_then_are_quiet() -> None:
    rig = Rig()
    assert await rig.settle() is None
    assert len(rig.api.objects) > 18
    before = len(rig.api.calls)
    assert await rig.reconcile(KEY) is None
    assert len(rig.api.calls) == before, "a quiet pass reads and writes nothing"


async def test_what_one_wrote_is_known_before_any_watch_tells() -> None:
    rig = Rig()
    await rig.settle()
    applied = [call for call in rig.api.calls if call.startswith("apply")]
    assert len(applied) == len(set(applied))


async def test_an_older_version_from_a_watch_is_not_taken() -> None:
    rig = Rig()
    await rig.settle()
    service = copy.deepcopy(rig.api.objects["Service", "qwen"])
    older = copy.deepcopy(service)
    older["metadata"]["resourceVersion"] = "0"
    older["spec"] = {}
    rig.store.put(older)
    assert await rig.reconcile(KEY) is None
    older["metadata"]["resourceVersion"] = rig.api.next_version()
    rig.store.put(older)
    assert await rig.settle() is None
    assert rig.api.objects["Service", "qwen"]["spec"] == service["spec"]


async def test_a_taken_name_is_told_and_looked_at_again() -> None:
    rig = Rig()
    stranger = {"kind": "Service", "metadata": {"name": "qwen", "uid": "theirs"}, "spec": {"a": 1}}
    rig.api.objects["Service", "qwen"] = copy.deepcopy(stranger)
    assert await rig.settle() == STRANGER_S
    assert rig.api.objects["Service", "qwen"] == stranger
    assert rig.conditions["ConfigValid"] == ("False", "NameTaken")
    del rig.api.objects["Service", "qwen"]
    assert await rig.settle() is None
    assert rig.conditions["ConfigValid"] == ("True", "Valid")


async def test_a_template_that_is_refused_becomes_a_condition_and_is_not_tried_again() -> None:
    rig = Rig()
    refusal = ApplyRejectedError("no such field nodeSelectr", is_template=True)
    rig.api.refuse = {"apply Deployment/qwen-decode": refusal}
    await rig.settle()
    assert rig.conditions["ConfigValid"] == ("False", "PodTemplateInvalid")
    assert rig.conditions["Stalled"][0] == "True"
    assert ("Deployment", "qwen-proxy") in rig.api.objects, "the rest goes on"
    before = len(rig.api.calls)
    await rig.reconcile(KEY)
    assert len(rig.api.calls) == before
    rig.api.refuse = {}
    edited = copy.deepcopy(rig.api.objects["PDCluster", "qwen"])
    edited["spec"]["decode"] = {"resources": {"limits": {"cpu": "1"}}}
    edited["metadata"] |= {"generation": 2, "resourceVersion": rig.api.next_version()}
    rig.store.put(edited)
    rig.api.objects["PDCluster", "qwen"] = copy.deepcopy(edited)
    await rig.settle()
    assert rig.conditions["ConfigValid"] == ("True", "Valid")


@pytest.mark.parametrize("verb", ["apply Service/qwen", "apply PDPool", "get "])
async def test_an_api_server_that_is_away_costs_a_pass_and_nothing_else(verb: str) -> None:
    rig = Rig()
    rig.api.refuse = {verb: ClusterApiError("away")}
    with pytest.raises(ClusterApiError):
        await rig.settle()
    rig.api.refuse = {}
    assert await rig.settle() is None


async def test_what_is_wrong_is_told_though_nothing_else_could_be_done() -> None:
    rig = Rig()
    rig.api.refuse = {"apply Role/": ClusterApiError("not allowed")}
    with pytest.raises(ClusterApiError):
        await rig.reconcile(KEY)
    assert rig.conditions["Ready"][0] == "False"


async def test_events_name_their_cluster() -> None:
    rig = Rig()
    await rig.settle()
    assert rig.api.events
    for event in rig.api.events:
        involved = event["involvedObject"]
        assert isinstance(involved, Mapping)
        assert (involved["kind"], involved["name"]) == ("PDCluster", "qwen")
        assert involved["uid"] == "cluster-uid"


async def test_a_cluster_that_is_gone_needs_nothing() -> None:
    rig = Rig()
    rig.store.drop(rig.api.objects["PDCluster", "qwen"])
    assert await rig.reconcile(KEY) is None
    assert rig.api.calls == []


async def test_a_child_that_was_deleted_behind_a_newer_one_stays() -> None:
    rig = Rig()
    await rig.settle()
    old = copy.deepcopy(rig.api.objects["Service", "qwen"])
    old["metadata"]["uid"] = "an earlier one"
    rig.store.drop(old)
    assert await rig.reconcile(KEY) is None


async def test_a_cluster_that_was_deleted_behind_its_successor_stays() -> None:
    rig = Rig()
    await rig.settle()
    old = copy.deepcopy(rig.api.objects["PDCluster", "qwen"])
    old["metadata"]["uid"] = "an earlier one"
    rig.store.drop(old)
    assert rig.store.cluster(KEY) is not None
