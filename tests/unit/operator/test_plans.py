"""Plans over whole lives of a cluster: created, changed, scaled, cut off at any action."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kubernetes_world import NOW, SETTINGS, World, resource

from pdcluster_operator.manifests.objects import key_of
from pdcluster_operator.manifests.settings import RenderSettings
from pdcluster_operator.model.actions import Apply, Delete, EmitEvent, SetStatus, target_of
from pdcluster_operator.model.observed import Rejection
from pdcluster_operator.plan.reconcile import plan

LEASE = {"kvTransfer": {"kvLeaseDurationSeconds": 60}}


def settled(**spec: object) -> World:
    world = World(resource(**spec))
    world.settle()
    return world


def engine_pods(world: World, role: str) -> list[dict[str, Any]]:
    return [
        pod
        for pod in world.pods.values()
        if pod["metadata"]["labels"].get("pdcluster.io/role") == role
    ]


def content(world: World) -> dict[tuple[str, str], Any]:
    """What a finished plan has made, without what differs from one life to the next."""
    state = copy.deepcopy(world.objects)
    for each in state.values():
        each["metadata"].pop("uid")
        each["metadata"].pop("generation")
        each.pop("status", None)
    return state


def test_a_new_cluster_gets_all_its_objects() -> None:
    world = settled()
    names = sorted(f"{kind}/{name}" for kind, name in world.objects if kind != "ControllerRevision")
    (revision,) = {
        pod["metadata"]["labels"]["pdcluster.io/revision"] for pod in engine_pods(world, "prefill")
    }
    assert names == sorted(
        [
            "ConfigMap/qwen-proxy",
            f"Deployment/qwen-decode-{revision}",
            f"Deployment/qwen-prefill-{revision}",
            "Deployment/qwen-proxy",
            "NetworkPolicy/qwen-engine",
            "NetworkPolicy/qwen-proxy",
            "PDPool/qwen-decode",
            "PDPool/qwen-prefill",
            "PodDisruptionBudget/qwen-decode",
            "PodDisruptionBudget/qwen-prefill",
            "PodDisruptionBudget/qwen-proxy",
            "Role/qwen-proxy",
            "RoleBinding/qwen-proxy",
            "Service/qwen",
            "Service/qwen-engines",
            "ServiceAccount/qwen-engine",
            "ServiceAccount/qwen-proxy",
        ]
    )
    assert world.condition("Ready") == ("True", "Serving")
    status = world.cluster["status"]
    assert (status["url"], status["summary"]) == ("http://qwen.serving.svc", "2P2D")
    assert status["revision"] == {"current": revision, "updated": revision}


def test_a_finished_plan_is_quiet() -> None:
    world = settled()
    before = world.num_writes
    assert world.plan().actions == ()
    world.settle()
    assert world.num_writes == before


EDITS: dict[str, dict[str, Any]] = {
    "lease": LEASE,
    "image": {"engine": {"image": "engine:2"}},
    "resources": {"prefill": {"resources": {"limits": {"cpu": "2"}}}},
    "replicas": {"decode": {"replicas": 4}},
    "no policy": {"networkPolicy": {"enabled": False}},
    "proxy": {"proxy": {"requestTimeoutSeconds": 60}},
    "drain first": {"rollout": {"strategy": "DrainFirst"}, **LEASE},
}


def has_serving_pair(world: World) -> bool:
    def ready(role: str) -> set[str]:
        return {
            pod["metadata"]["labels"]["pdcluster.io/revision"]
            for pod in engine_pods(world, role)
            if pod["status"].get("conditions") and "deletionTimestamp" not in pod["metadata"]
        }

    return bool(ready("prefill") & ready("decode"))


def check_order(world: World) -> None:
    """A decode engine never leaves before the prefill engines whose blocks only it can read."""
    deployments = {
        (
            each["metadata"]["labels"].get("pdcluster.io/role"),
            each["metadata"]["labels"].get("pdcluster.io/revision"),
        )
        for (kind, _), each in world.objects.items()
        if kind == "Deployment"
    }
    for pod in engine_pods(world, "prefill"):
        if pod["status"].get("conditions"):
            assert ("decode", pod["metadata"]["labels"]["pdcluster.io/revision"]) in deployments


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_leads_to_what_a_new_cluster_would_have(edit: dict[str, Any]) -> None:
    world = settled()
    world.edit(**edit)
    world.settle(check=check_order)
    assert content(world) == content(settled(**edit))
    assert world.condition("Ready") == ("True", "Serving")
    assert world.cluster["status"]["observedGeneration"] == 2


@pytest.mark.parametrize("edit", [LEASE, EDITS["image"]], ids=["lease", "image"])
def test_clients_have_a_pair_all_through_a_coordinated_rollout(edit: dict[str, Any]) -> None:
    world = settled()
    world.edit(**edit)

    def check(now: World) -> None:
        check_order(now)
        assert has_serving_pair(now)

    world.settle(check=check)


def test_a_new_prefill_engine_comes_once_new_decode_engines_serve() -> None:
    world = settled()
    world.edit(**LEASE)
    made = [a for a in world.plan().actions if isinstance(a, Apply) and not a.uid]
    roles = [
        a.manifest["metadata"]["labels"].get("pdcluster.io/role")  # type: ignore[index]
        for a in made
        if a.manifest["kind"] == "Deployment"
    ]
    assert roles == ["decode"]


def test_draining_first_leaves_no_old_engine_when_the_new_ones_come() -> None:
    world = settled(rollout={"strategy": "DrainFirst"})
    (old,) = {
        p["metadata"]["labels"]["pdcluster.io/revision"] for p in engine_pods(world, "decode")
    }
    world.edit(**LEASE)

    def check(now: World) -> None:
        revisions = {
            pod["metadata"]["labels"]["pdcluster.io/revision"]
            for role in ("prefill", "decode")
            for pod in engine_pods(now, role)
        }
        assert len(revisions) <= 1

    world.settle(check=check)
    assert {
        p["metadata"]["labels"]["pdcluster.io/revision"] for p in engine_pods(world, "decode")
    } != {old}


@settings(max_examples=40, deadline=None)
@given(edit=st.sampled_from(list(EDITS)), cuts=st.lists(st.integers(0, 30), max_size=6))
def test_a_plan_cut_at_any_action_ends_the_same(edit: str, cuts: list[int]) -> None:
    whole, cut = settled(), settled()
    for world in (whole, cut):
        world.edit(**EDITS[edit])
    whole.settle()
    for number in cuts:
        for action in cut.plan().actions[:number]:
            cut.do(action)
            check_order(cut)
        cut.move()
    cut.settle(check=check_order)
    assert content(cut) == content(whole)
    assert cut.plan().actions == ()


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, 30), max_size=8))
def test_so_does_the_first_plan_of_all(cuts: list[int]) -> None:
    world = World()
    for number in cuts:
        for action in world.plan().actions[:number]:
            world.do(action)
    world.settle()
    assert content(world) == content(settled())


def test_a_scaler_and_the_resource_may_both_say_how_many() -> None:
    world = settled()
    world.scale("decode", 5)
    world.settle()
    assert len(engine_pods(world, "decode")) == 5
    assert world.cluster["status"]["summary"] == "2P5D"
    world.edit(decode={"replicas": 3})
    world.settle()
    assert len(engine_pods(world, "decode")) == 3
    pool = world.objects["PDPool", "qwen-decode"]
    assert pool["status"]["replicas"] == 3
    assert pool["status"]["selector"] == (
        "app.kubernetes.io/component=engine,pdcluster.io/cluster=qwen,pdcluster.io/role=decode"
    )


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("Service", "qwen", lambda o: o["spec"].update(selector={"app": "mine"})),
        ("ConfigMap", "qwen-proxy", lambda o: o["data"].update({"proxy.json": "{}"})),
        ("Role", "qwen-proxy", lambda o: o.update(rules=[])),
        ("Deployment", "qwen-proxy", lambda o: o["spec"].update(replicas=9)),
        ("NetworkPolicy", "qwen-engine", lambda o: o["spec"].update(ingress=[{}])),
        ("Service", "qwen", lambda o: o["metadata"].update(labels={})),
    ],
)
def test_what_somebody_changed_by_hand_is_restored(kind: str, name: str, change: Any) -> None:
    world = settled()
    before = content(world)
    change(world.objects[kind, name])
    world.settle()
    assert content(world) == before


@pytest.mark.parametrize("kind", ["Service", "ConfigMap", "Deployment", "PDPool", "Role"])
def test_what_somebody_deleted_is_made_again(kind: str) -> None:
    world = settled()
    before = content(world)
    for key in [key for key in world.objects if key[0] == kind]:
        del world.objects[key]
    world.settle()
    assert content(world) == before


def test_what_others_add_is_theirs() -> None:
    world = settled()
    deployment = next(
        o for (kind, name), o in world.objects.items() if "prefill" in name and kind == "Deployment"
    )
    deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    deployment["spec"]["template"]["spec"]["containers"].append({"name": "mesh", "image": "m:1"})
    world.objects["Service", "qwen"]["spec"]["clusterIP"] = "10.0.0.7"
    assert [a for a in world.plan().actions if isinstance(a, Apply | Delete)] == []


@pytest.mark.parametrize("key", [("Service", "qwen"), ("PDPool", "qwen-decode")])
def test_a_stranger_of_a_childs_name_is_left_alone_and_told_of(key: tuple[str, str]) -> None:
    world = World()
    stranger = {
        "kind": key[0],
        "metadata": {"name": key[1], "uid": "theirs", "generation": 1},
        "spec": {"clusterIP": "10.0.0.1"},
    }
    world.objects[key] = copy.deepcopy(stranger)
    world.settle()
    assert world.objects == {key: stranger}
    assert world.condition("ConfigValid") == ("False", "NameTaken")
    assert world.condition("Stalled")[0] == "True"
    del world.objects[key]
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")


def test_an_operator_that_renders_otherwise_restarts_no_engine() -> None:
    world = settled()
    newer = RenderSettings(operator=SETTINGS.operator, image="pdcluster:2", run_as_user=1000)
    records = {k: o for k, o in world.objects.items() if k[0] == "ControllerRevision"}
    assert len(records) == 2
    touched = [
        a.manifest["metadata"]["name"]  # type: ignore[index]
        for a in world.plan(RenderSettings(operator=SETTINGS.operator, image="pdcluster:2")).actions
        if isinstance(a, Apply)
    ]
    assert touched == ["qwen-proxy"]
    assert newer.run_as_user != SETTINGS.run_as_user


def test_a_newer_rendering_is_not_what_a_changed_child_is_restored_to() -> None:
    world = settled()
    key = next(k for k in world.objects if k[0] == "Deployment" and "prefill" in k[1])
    # As an older operator rendered it: its record says another grace.
    record = next(
        o
        for (kind, name), o in world.objects.items()
        if kind == "ControllerRevision" and name.startswith(key[1])
    )
    record["data"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 77
    world.settle()
    live = world.objects[key]["spec"]["template"]["spec"]
    assert live["terminationGracePeriodSeconds"] == 77


def test_records_of_renderings_go_with_their_deployments() -> None:
    world = settled()
    for number in range(4):
        world.edit(kvTransfer={"kvLeaseDurationSeconds": 40 + number})
        world.settle()
    assert sum(kind == "ControllerRevision" for kind, _ in world.objects) == 2


def test_a_paused_cluster_is_left_as_it_is_and_says_so() -> None:
    world = settled()
    before = content(world)
    world.cluster["metadata"]["annotations"] = {"pdcluster.io/paused": "true"}
    world.edit(**LEASE)
    world.settle()
    assert content(world) == before
    assert world.condition("Progressing") == ("Unknown", "Paused")
    world.cluster["metadata"]["annotations"] = {}
    world.settle()
    assert content(world) == content(settled(**LEASE))


def test_a_resource_that_became_invalid_disturbs_nothing_that_runs() -> None:
    world = settled()
    before = content(world)
    world.edit(kvTransfer={"kvLeaseDurationSeconds": 3})
    world.settle()
    assert content(world) == before
    assert world.condition("ConfigValid") == ("False", "InvalidSpec")
    assert world.condition("Ready")[0] == "False"
    assert "kvLeaseDurationSeconds" in world.cluster["status"]["conditions"][0]["message"]
    assert world.cluster["status"]["url"] == "http://qwen.serving.svc"


def test_what_is_not_supported_yet_is_a_condition() -> None:
    world = World(resource(prefill={"nodes": 2}))
    world.settle()
    assert world.objects == {}
    assert world.condition("ConfigValid") == ("False", "NotYetSupported")


def test_a_cluster_on_its_way_out_needs_nothing() -> None:
    world = settled()
    world.cluster["metadata"]["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    assert world.plan().actions == ()


def test_another_operators_cluster_is_not_touched() -> None:
    world = settled()
    mine = RenderSettings(operator="other/pdcluster", image="pdcluster:1")
    actions = world.plan(mine).actions
    assert not [a for a in actions if isinstance(a, Apply | Delete)]
    (status,) = [a for a in actions if isinstance(a, SetStatus)]
    conditions = status.status["conditions"]
    assert isinstance(conditions, list)
    assert conditions[0]["reason"] == "ManagedByAnother"
    assert "pdcluster-system/pdcluster" in conditions[0]["message"]


def test_scaled_to_nothing_it_sleeps() -> None:
    world = settled(prefill={"replicas": 0}, decode={"replicas": 0})
    assert engine_pods(world, "prefill") == engine_pods(world, "decode") == []
    assert world.condition("Ready") == ("False", "Asleep")
    assert world.condition("Reconciling")[0] == "False"


def test_a_condition_keeps_the_time_of_its_last_turn() -> None:
    world = settled()
    for each in world.cluster["status"]["conditions"]:
        each["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    world.edit(decode={"replicas": 3})
    for action in world.plan().actions:
        world.do(action)
    times = {c["type"]: c["lastTransitionTime"] for c in world.cluster["status"]["conditions"]}
    assert times["ConfigValid"] == "2020-01-01T00:00:00Z"
    assert times["Ready"] == "2026-11-29T12:00:00Z"


def test_ready_of_an_older_generation_is_not_left_standing() -> None:
    world = settled()
    world.edit(**LEASE)
    for action in world.plan().actions:
        world.do(action)
    assert world.cluster["status"]["observedGeneration"] == 2
    assert world.condition("Ready")[0] == "False"
    assert world.condition("Progressing") == ("True", "RollingOut")


def test_what_does_not_pass_by_waiting_is_told_as_a_warning() -> None:
    world = World()
    world.settle()
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling"}
    for pod in world.pods.values():
        if pod["metadata"]["labels"].get("pdcluster.io/role") == "decode":
            pod["status"] = {
                "phase": "Pending",
                "containerStatuses": [{"name": "engine", "state": {"waiting": waiting}}],
            }
    events = [each for each in world.plan().actions if isinstance(each, EmitEvent)]
    told = {(each.reason, each.message.split(":")[0]): each.is_warning for each in events}
    assert told["ImageUnavailable", "DecodeReady"]
    # That the proxies wait is a consequence, and passes with it.
    assert not any(warns for (reason, _), warns in told.items() if reason != "ImageUnavailable")


QUOTA = 'pods "x" is forbidden: exceeded quota: none, requested: pods=1'


def message(world: World, kind: str) -> str:
    (found,) = (
        each["message"] for each in world.cluster["status"]["conditions"] if each["type"] == kind
    )
    assert isinstance(found, str)
    return found


def test_pods_that_may_not_be_made_are_told_and_come_once_they_may() -> None:
    world = World()
    world.pods_forbidden = QUOTA
    world.settle()
    for kind in ("PrefillReady", "DecodeReady", "ProxyReady", "Ready"):
        assert world.condition(kind) == ("False", "PodsRejected")
    assert message(world, "DecodeReady") == (
        "0 of 2 decode engines are ready. Pods can't be made: exceeded quota: none, requested: "
        "pods=1. Raise that quota, or want fewer of them: spec.decode.replicas."
    )
    assert world.condition("Stalled") == ("True", "PodsRejected")
    assert world.condition("Reconciling") == ("False", "NothingDue")
    assert world.condition("ConfigValid")[0] == "True", "the resource is not to blame"
    warnings = [(e.reason, e.message.split(":")[0]) for e in world.events if e.is_warning]
    assert ("PodsRejected", "Ready") in warnings
    assert len(warnings) == 4
    before = world.num_writes
    world.settle()
    assert world.num_writes == before, "what stays as it is needs no write"
    world.pods_forbidden = ""
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    assert content(world) == content(settled())


def test_a_pod_that_is_there_is_told_before_those_that_may_not_be_made() -> None:
    world = World()
    for _ in range(2):
        for action in world.plan().actions:
            world.do(action)
        world.move()
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling"}
    first, second = engine_pods(world, "decode")
    first["stuck"] = True
    first["status"] = {"containerStatuses": [{"name": "e", "state": {"waiting": waiting}}]}
    del world.pods[second["metadata"]["name"]]
    world.pods_forbidden = QUOTA
    world.settle()
    assert world.condition("DecodeReady") == ("False", "ImageUnavailable")
    told = message(world, "DecodeReady")
    assert told.index("Back-off pulling") < told.index("exceeded quota")


def stuck_pods(world: World, role: str, status: dict[str, Any]) -> None:
    for pod in engine_pods(world, role):
        pod["stuck"] = True
        pod["status"] = status


def waiting(reason: str, said: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": said}}
    return {"containerStatuses": [{"name": "engine", "image": "engine:1", "state": state}]}


UNSCHEDULABLE = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available.",
        }
    ]
}
EXITS = {
    "containerStatuses": [{"name": "engine", "lastState": {"terminated": {"exitCode": 1}}}],
}
STARTS: dict[str, Any] = {"phase": "Pending"}


def started(**status: dict[str, Any]) -> World:
    """A cluster whose first pods are stuck as given, by role."""
    world = World()
    for _ in range(2):
        for action in world.plan().actions:
            world.do(action)
        world.move()
    for role, each in status.items():
        stuck_pods(world, role, each)
    world.settle()
    return world


@pytest.mark.parametrize(
    ("status", "reason", "is_stalled"),
    [
        (waiting("ImagePullBackOff"), "ImageUnavailable", True),
        (waiting("CreateContainerConfigError", 'secret "a"'), "ContainerConfigInvalid", True),
        (UNSCHEDULABLE, "Unschedulable", False),
        (EXITS, "ContainerExits", False),
    ],
    ids=["image", "secret", "nodes", "exit"],
)
def test_what_a_person_must_mend_is_stalled_and_no_longer_reconciling(
    status: dict[str, Any], reason: str, is_stalled: bool
) -> None:
    world = started(decode=status)
    assert world.condition("Ready") == ("False", reason)
    assert world.condition("Stalled") == (str(is_stalled), reason)
    assert world.condition("Reconciling")[0] == str(not is_stalled)
    assert "Nobody" not in message(world, "Stalled")
    before = world.num_writes
    world.settle()
    assert world.num_writes == before


def test_nobody_has_to_act_while_pods_start() -> None:
    world = started(decode=STARTS)
    assert world.condition("Ready") == ("False", "EnginesStarting")
    assert world.condition("Stalled") == ("False", "NothingDue")
    assert message(world, "Stalled") == "Nobody has to act."


def test_pods_that_may_come_once_others_have_left_stall_nothing() -> None:
    world = started()
    world.pods_forbidden = QUOTA
    world.edit(**EDITS["resources"])
    for _ in range(3):
        for action in world.plan().actions:
            world.do(action)
        world.move()
    leaving = engine_pods(world, "prefill")[0]["metadata"]
    leaving["deletionTimestamp"] = NOW
    for action in world.plan().actions:
        world.do(action)
    assert world.condition("Ready")[1] == "PodsRejected"
    assert world.condition("Stalled")[0] == "False"
    del leaving["deletionTimestamp"]
    for action in world.plan().actions:
        world.do(action)
    assert world.condition("Stalled") == ("True", "PodsRejected")


@pytest.mark.parametrize(
    ("prefill", "decode", "reason"),
    [
        (STARTS, waiting("ErrImagePull"), "ImageUnavailable"),
        (UNSCHEDULABLE, waiting("ErrImagePull"), "ImageUnavailable"),
        (STARTS, UNSCHEDULABLE, "Unschedulable"),
        (UNSCHEDULABLE, EXITS, "Unschedulable"),
    ],
    ids=["mend before wait", "mend before may pass", "may pass before wait", "in order"],
)
def test_ready_tells_the_real_trouble(
    prefill: dict[str, Any], decode: dict[str, Any], reason: str
) -> None:
    world = started(prefill=prefill, decode=decode)
    assert world.condition("Ready") == ("False", reason)
    kind = "PrefillReady" if world.condition("PrefillReady")[1] == reason else "DecodeReady"
    assert message(world, "Ready") == message(world, kind)


def test_engines_that_can_t_be_made_yet_say_what_they_wait_for() -> None:
    world = World()
    wanted = [each for each in world.plan().actions if isinstance(each, Apply)]
    (target,) = (
        found
        for each in wanted
        if each.manifest["kind"] == "ConfigMap" and (found := target_of(each)) is not None
    )
    no = Rejection(reason="ApplyForbidden", message="no", content=target.content, noted_at=NOW)
    made = plan(replace(world.observed(), rejections={target.key: no}), SETTINGS, now=NOW)
    for action in made.actions:
        world.do(action)
    assert world.condition("PrefillReady") == ("False", "EnginesStarting")
    assert message(world, "PrefillReady") == (
        "0 of 2 prefill engines are ready; they wait for ConfigMap qwen-proxy."
    )
    assert world.condition("ProxyReady") == ("False", "ProxiesStarting")
    assert message(world, "ProxyReady").endswith("; they wait for ConfigMap qwen-proxy.")
    assert world.condition("Ready") == ("False", "ApplyForbidden")


def test_timing_that_can_t_hold_is_told_in_whole_sentences() -> None:
    world = settled()
    world.edit(kvTransfer={"kvLeaseDurationSeconds": 8})
    world.settle()
    assert world.condition("ConfigValid") == ("False", "InvalidTiming")
    assert message(world, "Ready").endswith(".")
    assert ".." not in message(world, "Ready")


def test_pods_of_an_earlier_revision_are_told_after_those_that_may_not_be_made() -> None:
    world = settled()
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling"}
    for pod in engine_pods(world, "decode"):
        pod["stuck"] = True
        pod["status"] = {"containerStatuses": [{"name": "e", "state": {"waiting": waiting}}]}
    world.pods_forbidden = QUOTA
    world.edit(**LEASE)
    world.settle()
    assert world.condition("DecodeReady") == ("False", "PodsRejected")
    assert "Back-off" not in message(world, "DecodeReady")
    # Nothing keeps the new prefill engines but that they wait for decode engines.
    assert world.condition("PrefillReady")[1] != "PodsRejected"


def test_what_stops_an_update_of_pods_that_serve_is_told() -> None:
    world = settled()
    world.pods_forbidden = QUOTA
    world.edit(**EDITS["resources"])
    world.settle()
    assert world.condition("PrefillReady") == ("True", "EnginesReady")
    assert world.condition("Ready") == ("False", "PodsRejected")
    assert message(world, "Ready").startswith("Pods are being brought up to date. Pods can't be")
    assert [e.message for e in world.events if e.is_warning and e.message.startswith("Ready: ")]
    world.pods_forbidden = ""
    world.settle()
    assert content(world) == content(settled(**EDITS["resources"]))
    assert world.condition("Ready") == ("True", "Serving")


def test_a_rejection_is_told_the_same_whether_its_next_try_is_due_or_not() -> None:
    world = settled()
    world.edit(proxy={"replicas": 3})
    actions = [each for each in world.plan().actions if isinstance(each, Apply)]
    assert [key_of(each.manifest).name for each in actions] == ["qwen-proxy"]
    targets = [found for each in actions if (found := target_of(each)) is not None]
    seen = replace(
        world.observed(),
        rejections={
            each.key: Rejection(
                reason="ApplyRejected", message="no", content=each.content, noted_at=NOW
            )
            for each in targets
        },
    )
    early = plan(seen, SETTINGS, now=NOW)
    late = plan(seen, SETTINGS, now="2026-11-29T12:05:00Z")
    assert (early.again_in_s, late.again_in_s) == (300, None)
    assert list(late.actions[:1]) == actions
    (status,) = (each for each in early.actions if isinstance(each, SetStatus))
    world.do(status)
    seen = replace(seen, status=world.cluster["status"])
    assert plan(seen, SETTINGS, now=NOW).actions == ()
    assert list(plan(seen, SETTINGS, now="2026-11-29T12:05:00Z").actions) == actions


def test_events_tell_of_turns_once() -> None:
    world = settled()
    told = [(event.reason, event.message.split(":")[0]) for event in world.events]
    assert ("Serving", "Ready") in told
    assert len(told) == len(set(told))


def test_a_field_of_a_newer_version_is_ignored_told_and_restarts_nothing() -> None:
    # After a step back to an older operator, with the newer definitions in place.
    world = World(resource())
    world.settle()
    before = {name: pod["metadata"] for name, pod in world.pods.items()}
    world.edit(brandNew={"deep": True}, proxy={"brandNew": 1})
    world.settle()
    assert world.condition("ConfigValid") == ("True", "Valid")
    assert world.condition("Ready") == ("True", "Serving")
    (message,) = [
        each["message"]
        for each in world.cluster["status"]["conditions"]
        if each["type"] == "ConfigValid"
    ]
    assert "does not know spec.proxy.brandNew, spec.brandNew and ignores it" in message
    assert before == {name: pod["metadata"] for name, pod in world.pods.items()}
    assert world.cluster["spec"]["brandNew"] == {"deep": True}, "the resource is the user's"


def test_a_field_of_a_newer_version_in_a_list_is_ignored_alone() -> None:
    world = World(
        resource(
            engine={
                "image": "engine:1",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2", "brandNew": 2}],
            }
        )
    )
    world.settle()
    assert world.condition("ConfigValid") == ("True", "Valid")
    container = world.objects["Deployment", deployment_name(world, "decode")]["spec"]["template"][
        "spec"
    ]["containers"][0]
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert (values["A"], values["B"]) == ("1", "2")


def deployment_name(world: World, role: str) -> str:
    (name,) = [
        name
        for kind, name in world.objects
        if name.startswith(f"qwen-{role}-") and kind == "Deployment"
    ]
    return name
