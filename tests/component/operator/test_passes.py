"""Store, executor and reconciler against an API that remembers, refuses and goes away."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kubernetes_world import NOW, SETTINGS, resource

from pdcluster_operator.errors import (
    ApplyRejectedError,
    ClusterApiError,
    ConflictError,
    ForbiddenError,
    MissingError,
    OperatorError,
    TerminatingError,
)
from pdcluster_operator.kube.executor import Executor
from pdcluster_operator.kube.store import Store
from pdcluster_operator.manifests.objects import ObjectKey
from pdcluster_operator.plan.reconcile import STRANGER_S
from pdcluster_operator.plan.retries import REJECTED_S
from pdcluster_operator.reconciler import TERMINATING_S, Reconciler

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
        target = self.objects[key.kind, key.name]
        assert target["metadata"]["uid"] == uid
        target["spec"] |= content["spec"]
        target["metadata"]["annotations"] |= content["metadata"]["annotations"]
        target["metadata"]["resourceVersion"] = self.next_version()
        return copy.deepcopy(target)

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
        self.now = datetime.fromisoformat(NOW)
        self.api, self.store = Api(), Store()
        cluster = resource()
        cluster["metadata"]["resourceVersion"] = "0"
        self.api.objects["PDCluster", "qwen"] = cluster
        self.store.put(copy.deepcopy(cluster))
        executor = Executor(self.api, self.store, now=self.clock, instance="test")
        self.reconcile = Reconciler(self.store, executor, self.api, SETTINGS, now=self.clock)

    def clock(self) -> str:
        return self.now.isoformat().replace("+00:00", "Z")

    async def settle(self) -> float | None:
        for _ in range(20):
            again = await self.reconcile(KEY)
            if again != 0.0:
                return again
        message = "it never settled"
        raise AssertionError(message)

    async def settle_for(self, seconds: float) -> int:
        """Let time pass as the queue does; give the calls that were made."""
        until, before = self.now + timedelta(seconds=seconds), len(self.api.calls)
        while True:
            again = await self.settle()
            if again is None or self.now + timedelta(seconds=again) > until:
                self.now = until
                return len(self.api.calls) - before
            self.now += timedelta(seconds=again)

    def edit(self, **spec: object) -> None:
        edited = copy.deepcopy(self.api.objects["PDCluster", "qwen"])
        edited["spec"] |= spec
        edited["metadata"]["generation"] += 1
        edited["metadata"]["resourceVersion"] = self.api.next_version()
        self.store.put(edited)
        self.api.objects["PDCluster", "qwen"] = copy.deepcopy(edited)

    @property
    def children(self) -> dict[tuple[str, str], Raw]:
        """What was made, without what differs from one life to the next."""
        made = copy.deepcopy(self.api.objects)
        del made["PDCluster", "qwen"]
        for each in made.values():
            for name in ("uid", "resourceVersion"):
                del each["metadata"][name]
        return made

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


async def test_a_template_that_is_refused_becomes_a_condition_and_an_edit_is_tried_at_once() -> (
    None
):
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
    rig.edit(decode={"resources": {"limits": {"cpu": "1"}}})
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


FORBIDDEN = ForbiddenError("PATCH /x: no", said='services "qwen" is forbidden: exceeded quota: q')
WRONG = ApplyRejectedError("PATCH /x: no", is_template=False, said="spec.type: Unsupported value")


async def test_what_is_forbidden_is_told_while_all_else_is_made() -> None:
    rig = Rig()
    rig.api.refuse = {"apply Service/qwen-engines": FORBIDDEN}
    again = await rig.settle()
    assert again == 1.0
    assert rig.conditions["ConfigValid"] == ("False", "ApplyForbidden")
    assert rig.conditions["Ready"] == ("False", "ApplyForbidden")
    assert rig.conditions["Stalled"] == ("True", "ApplyForbidden")
    missing = {("Service", "qwen-engines")}
    whole = Rig()
    await whole.settle()
    assert whole.api.objects.keys() - rig.api.objects.keys() == missing
    told = [event for event in rig.api.events if event["reason"] == "ApplyForbidden"]
    assert {event["type"] for event in told} == {"Warning"}
    assert told[0]["message"] == (
        "Ready: Service qwen-engines can't be applied: exceeded quota: q. Raise that quota."
    )


@pytest.mark.parametrize(
    ("error", "within_s", "num_calls_in_an_hour"), [(FORBIDDEN, 60, 128), (WRONG, 300, 24)]
)
async def test_what_was_rejected_heals_without_an_edit_and_costs_little_meanwhile(
    error: OperatorError, within_s: float, num_calls_in_an_hour: int
) -> None:
    rig = Rig()
    rig.api.refuse = {"apply Service/qwen-engines": error}
    await rig.settle()
    num_events = len(rig.api.events)
    calls = await rig.settle_for(3600)
    # A look whether the name is free, and the try itself; a status or an Event never.
    assert calls <= num_calls_in_an_hour
    assert len(rig.api.events) == num_events
    assert not any(call.startswith("status") for call in rig.api.calls[-calls:])
    rig.api.refuse = {}
    await rig.settle_for(within_s)
    assert rig.conditions["ConfigValid"] == ("True", "Valid")
    assert await rig.settle() is None
    whole = Rig()
    await whole.settle()
    assert rig.children == whole.children


async def test_another_operator_process_tells_the_same_and_writes_no_status() -> None:
    rig = Rig()
    rig.api.refuse = {"apply Service/qwen-engines": WRONG}
    await rig.settle()
    before = len(rig.api.calls)
    for key in rig.store.rejections(KEY):
        rig.store.note_rejection(KEY, key, None)
    assert await rig.settle() == REJECTED_S
    assert rig.api.calls[before:] == ["get Service/qwen-engines", "apply Service/qwen-engines"]


async def test_a_rejection_is_forgotten_once_the_same_is_taken() -> None:
    rig = Rig()
    rig.api.refuse = {"apply Service/qwen-engines": WRONG}
    await rig.settle()
    rig.api.refuse = {}
    await rig.settle_for(300)
    assert rig.store.rejections(KEY) == {}
    lost = rig.api.objects.pop(("Service", "qwen-engines"))
    rig.store.drop(lost)
    assert await rig.settle() is None
    assert ("Service", "qwen-engines") in rig.api.objects, "made again at once"
    assert rig.conditions["ConfigValid"] == ("True", "Valid")


async def test_another_content_is_tried_at_once_and_waits_from_the_start() -> None:
    rig = Rig()
    rig.api.refuse = {"apply Service/qwen": FORBIDDEN}
    await rig.settle_for(600)
    rig.edit(proxy={"service": {"port": 8080}})
    assert await rig.settle() == 1.0


async def test_a_rejection_of_what_is_wanted_no_longer_is_forgotten() -> None:
    rig = Rig()
    rig.api.refuse = {"apply Deployment/qwen-decode": WRONG}
    await rig.settle()
    assert rig.conditions["ConfigValid"] == ("False", "ApplyRejected")
    rig.api.refuse = {}
    rig.edit(engine={"image": "engine:2"})  # Another revision, and another Deployment.
    assert await rig.settle() is None
    assert rig.conditions["ConfigValid"] == ("True", "Valid")


async def test_several_rejections_are_counted_and_each_heals() -> None:
    rig = Rig()
    rig.api.refuse = {"apply Service": WRONG, "apply PodDisruptionBudget": FORBIDDEN}
    await rig.settle()
    (message,) = (
        each["message"]
        for each in rig.api.objects["PDCluster", "qwen"]["status"]["conditions"]
        if each["type"] == "ConfigValid"
    )
    _, _, others = message.partition(" Also: ")
    assert sorted(each.split()[0] for each in others.split(", ")) == [
        *["PodDisruptionBudget"] * 3,
        *["Service"] * 2,
        "ServiceAccount",
    ]
    assert "Service qwen," in others
    assert message.endswith(".")
    assert not message.endswith("..")
    del rig.api.refuse["apply PodDisruptionBudget"]
    await rig.settle_for(60)
    assert rig.conditions["ConfigValid"] == ("False", "ApplyRejected")
    rig.api.refuse = {}
    await rig.settle_for(300)
    assert rig.conditions["ConfigValid"] == ("True", "Valid")


@pytest.mark.parametrize("kind", ["NetworkPolicy", "ServiceAccount", "ConfigMap", "Role"])
async def test_no_pod_is_made_before_what_it_needs_not_even_in_the_first_pass(kind: str) -> None:
    rig = Rig()
    rig.api.refuse = {f"apply {kind}/": FORBIDDEN}
    await rig.settle_for(20)
    assert not [call for call in rig.api.calls if call.startswith("apply Deployment")]
    rig.api.refuse = {}
    await rig.settle_for(60)
    assert sum(kind == "Deployment" for kind, _ in rig.api.objects) == 3


async def test_a_change_of_a_pool_and_a_deletion_that_are_forbidden_hold_nothing_up() -> None:
    rig = Rig()
    await rig.settle()
    rig.api.refuse = {"patch PDPool": FORBIDDEN, "delete NetworkPolicy": FORBIDDEN}
    rig.edit(
        decode={"replicas": 5},
        networkPolicy={"enabled": False},
        proxy={"replicas": 4},
    )
    await rig.settle()
    assert rig.api.objects["Deployment", "qwen-proxy"]["spec"]["replicas"] == 4
    assert rig.conditions["ConfigValid"] == ("False", "ApplyForbidden")
    rig.api.refuse = {}
    await rig.settle_for(60)
    assert rig.conditions["ConfigValid"] == ("True", "Valid")
    assert rig.api.objects["PDPool", "qwen-decode"]["spec"]["replicas"] == 5
    assert not [kind for kind, _ in rig.api.objects if kind == "NetworkPolicy"]


async def test_a_namespace_on_its_way_out_alarms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    await rig.settle()
    before = copy.deepcopy(rig.api.objects)
    service = rig.api.objects["Service", "qwen"]
    rig.store.forget(KEY, ObjectKey("Service", "qwen"), uid=service["metadata"]["uid"])
    del rig.api.objects["Service", "qwen"], before["Service", "qwen"]
    num_events = len(rig.api.events)
    rig.api.refuse = {"apply": TerminatingError("because it is being terminated")}
    caplog.clear()
    assert await rig.reconcile(KEY) == TERMINATING_S
    assert rig.api.objects == before
    assert len(rig.api.events) == num_events
    assert [each.levelname for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_what_was_deleted_before_its_status_was_written_alarms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    rig.api.refuse = {"status ": MissingError("gone")}
    with pytest.raises(MissingError):
        await rig.reconcile(KEY)
    assert [each.levelname for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_a_status_that_may_not_be_written_fails_the_pass_and_only_that() -> None:
    rig = Rig()
    rig.api.refuse = {"status PDCluster": FORBIDDEN}
    with pytest.raises(ForbiddenError):
        await rig.reconcile(KEY)
    assert sum(kind == "Deployment" for kind, _ in rig.api.objects) == 3
    rig.api.refuse = {}
    assert await rig.settle() is None
    assert rig.conditions["ConfigValid"] == ("True", "Valid")


async def test_a_paused_cluster_tries_nothing_again() -> None:
    rig = Rig()
    rig.api.refuse = {"apply Service/qwen-engines": FORBIDDEN}
    await rig.settle()
    rig.edit(rollout={"paused": True})
    assert await rig.settle() is None
    assert await rig.settle_for(600) == 0
    assert rig.conditions["ConfigValid"] == ("False", "ApplyForbidden")


KINDS = ["PDPool", "NetworkPolicy", "ServiceAccount", "Service", "ConfigMap", "Role", "Deployment"]


@settings(max_examples=25, deadline=None)
@given(
    weathers=st.lists(
        st.tuples(st.sets(st.sampled_from(KINDS), max_size=4), st.booleans(), st.floats(0, 400)),
        max_size=5,
    )
)
def test_whatever_was_rejected_in_whatever_order_all_is_made_in_the_end(
    weathers: list[tuple[set[str], bool, float]],
) -> None:
    async def live() -> None:
        rig = Rig()
        for kinds, is_wrong, seconds in weathers:
            rig.api.refuse = {f"apply {kind}/": WRONG if is_wrong else FORBIDDEN for kind in kinds}
            await rig.settle_for(seconds)
        rig.api.refuse = {}
        await rig.settle_for(300)
        assert await rig.settle() is None
        whole = Rig()
        await whole.settle()
        assert rig.children == whole.children
        assert rig.conditions == whole.conditions

    asyncio.run(live())


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
