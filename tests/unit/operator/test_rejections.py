"""What the API server will not have: what people read, and when it is tried again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.kubernetes_world import NOW

from pdcluster_api.proxy_config import Role
from pdcluster_operator.manifests.objects import ObjectKey
from pdcluster_operator.model.actions import (
    Action,
    Apply,
    Delete,
    EmitEvent,
    Patch,
    SetStatus,
    is_new_deployment,
    target_of,
)
from pdcluster_operator.model.observed import Child, Observed, Rejection
from pdcluster_operator.model.rejections import pods_rejected, told, wording
from pdcluster_operator.model.sentences import cut, joined
from pdcluster_operator.plan.retries import (
    FORBIDDEN_MAX_S,
    REJECTED_S,
    sift,
    wait_s,
)
from pdcluster_operator.plan.troubles import trouble_of_any, trouble_of_proxies, trouble_of_role

# --- words -------------------------------------------------------------------------------------

POD = 'pods "qwen-decode-6f9c1d2e-5d9f-x7k2p" is forbidden: '
FOR_PODS = {
    "exceeded quota: small, requested: pods=1, used: pods=0, limited: pods=0": "Raise that quota",
    "failed quota: small: must specify cpu for: engine": "LimitRange",
    'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false': (
        "pod-security.kubernetes.io/enforce"
    ),
    'error looking up service account serving/mine: serviceaccount "mine" not found': (
        "serviceAccountName in podTemplate"
    ),
    "no PriorityClass with name urgent was found": "priorityClassName",
    'pod rejected: RuntimeClass "kata" not found': "runtimeClassName",
    "maximum memory usage per Container is 1Gi, but limit is 2Gi": "spec.decode.resources",
    "exceeded quota: q, requested: limits.memory=2Gi, used: limits.memory=0": (
        "ask for less: spec.decode.replicas, spec.decode.resources"
    ),
    "exceeded quota: q, requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=0": (
        "spec.decode.resources"
    ),
    "exceeded quota: q, requested: count/pods=1, used: count/pods=0": (
        "want fewer of them: spec.decode.replicas"
    ),
    "unable to validate against any security context constraint: []": "runAsUser to any",
    'admission webhook "policy.example" denied the request: no': "what that policy objects to",
    "something that nobody has seen yet": "kubectl describe replicaset",
}


def deployment(*conditions: object, role: str = "decode") -> Child:
    key = ObjectKey("Deployment", "qwen-decode-6f9c1d2e")
    live = {"status": {"conditions": conditions}}
    labels = {"pdcluster.io/role": role} if role else {}
    return Child(key=key, uid="u", owner_uid="o", labels=labels, live=live)


def failure(message: str, **other: str) -> dict[str, str]:
    said = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    return said | {"message": message} | other


@pytest.mark.parametrize(("said", "remedy"), FOR_PODS.items(), ids=FOR_PODS)
def test_pods_that_can_t_be_made_say_why_and_what_to_do(said: str, remedy: str) -> None:
    found = pods_rejected(deployment({"type": "Available"}, failure(POD + said)))
    assert found is not None
    assert found.reason == "PodsRejected"
    assert found.message.startswith(f"Pods can't be made: {said}. ")
    assert remedy in found.message.removeprefix(f"Pods can't be made: {said}. ")
    assert "x7k2p" not in found.message, "the next try has another name"


def test_what_proxies_ask_for_is_theirs() -> None:
    said = f"{POD}exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=0"
    found = pods_rejected(deployment(failure(said), role=""))
    assert found is not None
    assert found.message.endswith("ask for less: spec.proxy.replicas, spec.proxy.resources.")


@pytest.mark.parametrize("what", ["count/configmaps", "configmaps", "services.nodeports"])
def test_an_object_can_t_be_asked_to_take_less(what: str) -> None:
    said = f'configmaps "x" is forbidden: exceeded quota: q, requested: {what}=1, used: {what}=9'
    text = told("ConfigMap qwen-proxy can't be applied", "ApplyForbidden", said)
    assert text.endswith(f"used: {what}=9. Raise that quota.")


@pytest.mark.parametrize(
    "child",
    [
        deployment(),
        deployment(failure("x", status="False")),
        deployment(failure("x", type="Progressing")),
        deployment(failure("x", reason="FailedDelete")),
        deployment("x", None, 7),
        replace(deployment(), live={"status": {"conditions": "x"}}),
        replace(deployment(), live={"status": None}),
        replace(deployment(), live={}),
    ],
)
def test_a_deployment_that_says_nothing_of_the_kind_has_no_such_trouble(child: Child) -> None:
    assert pods_rejected(child) is None


def test_only_the_present_revision_s_deployment_counts() -> None:
    labels = {"pdcluster.io/role": "decode", "pdcluster.io/revision": "old"}
    child = replace(deployment(failure(f"{POD}exceeded quota: q")), labels=labels)
    seen = replace(observed(), children={child.key: replace(child, owner_uid="u")})
    assert trouble_of_role(seen, Role.DECODE, "new") is None
    assert trouble_of_role(seen, Role.PREFILL, "old") is None
    assert trouble_of_proxies(seen) is None
    found = trouble_of_role(seen, Role.DECODE, "old")
    assert found is not None
    assert found == trouble_of_any(seen, "old")
    # A stranger's Deployment says nothing of us.
    seen = replace(seen, children={child.key: replace(child, owner_uid="theirs")})
    assert trouble_of_role(seen, Role.DECODE, "old") is None


USER = 'User "system:serviceaccount:a:b" '
FOR_OBJECTS = {
    "ApplyForbidden": {
        'services "qwen" is forbidden: exceeded quota: none, requested: services=1': "that quota",
        f'services "qwen" is forbidden: {USER}cannot patch resource "services"': "its rights",
        'roles "q" is forbidden: user "b" is attempting to grant RBAC permissions not currently '
        "held:\n{APIGroups:[]}": "its rights",
        'Internal error occurred: failed calling webhook "w": no route': "webhook back",
        "deployments.apps \"q\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' "
        "denied request: no": "that policy objects to",
        "nobody knows": "Let the operator do it",
    },
    "ApplyRejected": {
        'Service "qwen" is invalid: spec.type: Unsupported value': "Change the field"
    },
    "PodTemplateInvalid": {"failed to create typed patch object": "Correct podTemplate"},
}


@pytest.mark.parametrize(
    ("reason", "said", "remedy"),
    [
        (reason, said, remedy)
        for reason, rows in FOR_OBJECTS.items()
        for said, remedy in rows.items()
    ],
)
def test_an_object_that_is_not_taken_says_why_and_what_to_do(
    reason: str, said: str, remedy: str
) -> None:
    text = told("Service qwen can't be applied", reason, said)
    assert text.startswith("Service qwen can't be applied: ")
    assert remedy in text.removeprefix(f"Service qwen can't be applied: {wording(said)}. ")
    assert "\n" not in text


def test_a_long_word_of_the_server_s_is_cut() -> None:
    assert len(wording("x" * 5000)) < 1000
    assert wording('Service "a" is invalid: spec.x:\n  no.') == "spec.x: no"
    text = told("Service qwen can't be applied", "ApplyRejected", "word " * 1000)
    assert "word... Change the field" in text


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("a", "b."), "a. b."),
        (("a..", "b"), "a. b."),
        (("", "a...", " Who? "), "a... Who?"),
        ((), ""),
    ],
)
def test_each_sentence_has_one_end(parts: tuple[str, ...], expected: str) -> None:
    assert joined(*parts) == expected


def test_what_is_cut_says_so() -> None:
    assert cut("a b.\nc", 5) == "a b...", "no word and no fourth full stop"
    assert cut("a \n b", 3) == "a b"


# --- when --------------------------------------------------------------------------------------


def made(kind: str, name: str = "qwen", **content: Any) -> Apply:
    return Apply(manifest={"kind": kind, "metadata": {"name": name}, **content})


def observed(*rejections: tuple[Action, Rejection]) -> Observed:
    noted = {}
    for action, rejection in rejections:
        target = target_of(action)
        assert target is not None
        content = rejection.content or target.content
        noted[target.key] = replace(rejection, content=content)
    return Observed(name="qwen", namespace="serving", uid="u", generation=1, rejections=noted)


def forbidden(num: int = 1, *, at: str = NOW, reason: str = "ApplyForbidden") -> Rejection:
    return Rejection(reason=reason, message="no", content="", noted_at=at, num=num)


def test_what_is_forbidden_is_tried_again_ever_more_seldom_and_at_least_every_minute() -> None:
    waits = [wait_s(forbidden(num)) for num in range(1, 50)]
    assert waits[:4] == [1, 2, 4, 8]
    assert waits == sorted(waits)
    assert waits[-1] == FORBIDDEN_MAX_S == 60


@pytest.mark.parametrize("reason", ["ApplyRejected", "PodTemplateInvalid"])
def test_content_that_was_rejected_is_tried_again_every_five_minutes(reason: str) -> None:
    assert {wait_s(forbidden(num, reason=reason)) for num in (1, 2, 90)} == {REJECTED_S} == {300}


SERVICE = made("Service")


@pytest.mark.parametrize(
    ("now", "is_due", "again_in_s"),
    [
        ("2026-11-29T12:00:00Z", False, 300),
        ("2026-11-29T12:04:59Z", False, 1),
        ("2026-11-29T12:05:00Z", True, None),
        ("2026-11-30T00:00:00Z", True, None),
        # The clock was set back: better too soon than much too late.
        ("2026-11-29T11:59:59Z", True, None),
    ],
)
def test_a_try_is_due_when_its_wait_is_over(now: str, is_due: bool, again_in_s: float) -> None:
    seen = observed((SERVICE, forbidden(reason="ApplyRejected")))
    found = sift(seen, [SERVICE], now=now)
    assert found.due == ((SERVICE,) if is_due else ())
    assert found.again_in_s == again_in_s
    assert [each.message for each in found.rejections.values()] == ["no"], "told whether due or not"
    assert found.untried == ()


def test_the_next_look_is_when_the_first_of_them_is_due() -> None:
    policy, service = made("PodDisruptionBudget"), SERVICE
    seen = observed((policy, forbidden(4)), (service, forbidden(2)))
    assert sift(seen, [policy, service], now=NOW).again_in_s == 2


OTHER = [
    made("Service", type="NodePort"),
    made("Service", "other"),
    made("ConfigMap"),
    Patch(key=ObjectKey("Service", "qwen"), uid="u", content={"a": 1}),
    Delete(key=ObjectKey("Service", "qwen"), uid="u"),
]


@pytest.mark.parametrize("action", OTHER, ids=[type(each).__name__ for each in OTHER])
def test_another_content_is_another_matter(action: Action) -> None:
    found = sift(observed((SERVICE, forbidden())), [action], now=NOW)
    assert (found.due, found.untried, found.rejections) == ((action,), (action,), {})


def test_what_is_wanted_no_longer_is_told_no_longer() -> None:
    found = sift(observed((SERVICE, forbidden())), [], now=NOW)
    assert (found.rejections, found.again_in_s) == ({}, None)


@pytest.mark.parametrize("action", OTHER[3:], ids=["Patch", "Delete"])
def test_changes_and_deletions_wait_alike(action: Action) -> None:
    found = sift(observed((action, forbidden())), [action], now=NOW)
    assert found.due == ()
    assert found.again_in_s == 1


DECODE = {"pdcluster.io/role": "decode"}
ENGINES = Apply(
    manifest={"kind": "Deployment", "metadata": {"name": "qwen-decode", "labels": DECODE}}
)


@pytest.mark.parametrize(
    "kind",
    ["ConfigMap", "ControllerRevision", "NetworkPolicy", "Role", "RoleBinding", "ServiceAccount"],
)
def test_pods_are_not_made_without_what_they_need_or_what_guards_them(kind: str) -> None:
    need, service = made(kind), made("Service")
    found = sift(observed((need, forbidden())), [need, service, ENGINES], now=NOW)
    assert found.due == (service,)
    assert found.untried == (service,)
    assert list(found.rejections) == [ObjectKey(kind, "qwen")]
    assert found.awaited == {"decode": (ObjectKey(kind, "qwen"),)}
    # Those that run are changed all the same, and so is what is only in need of a change.
    running = replace(ENGINES, uid="u")
    changed = replace(need, uid="u")
    assert running in sift(observed((need, forbidden())), [need, running], now=NOW).due
    assert ENGINES in sift(observed((changed, forbidden())), [changed, ENGINES], now=NOW).due


@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget", "PDPool"])
def test_they_are_made_without_all_else(kind: str) -> None:
    other = made(kind)
    found = sift(observed((other, forbidden())), [other, ENGINES], now=NOW)
    assert ENGINES in found.due
    assert found.awaited == {}


def test_pods_wait_for_a_deployment_that_is_rejected() -> None:
    found = sift(observed((ENGINES, forbidden())), [ENGINES], now=NOW)
    assert found.awaited == {"decode": (ObjectKey("Deployment", "qwen-decode"),)}
    changed = replace(ENGINES, uid="u")
    assert sift(observed((changed, forbidden())), [changed], now=NOW).awaited == {}


def test_only_what_is_about_a_child_can_be_rejected_for_it() -> None:
    key = ObjectKey("PDCluster", "qwen")
    event = EmitEvent(is_warning=True, reason="R", message="m")
    assert target_of(SetStatus(key=key, status={})) is None
    assert target_of(event) is None
    one, other = (Delete(key=key, uid=uid) for uid in "ab")
    assert target_of(one) != target_of(other), "the next object of that name is another matter"
    assert is_new_deployment(ENGINES)
    assert not is_new_deployment(replace(ENGINES, uid="u"))
    assert not is_new_deployment(SERVICE)


ACTIONS = [made(kind) for kind in ("PDPool", "NetworkPolicy", "Service", "Role", "Deployment")]


@given(
    nums=st.lists(st.integers(0, 9), min_size=len(ACTIONS), max_size=len(ACTIONS)),
    at=st.integers(0, 59),
    later=st.integers(0, 59),
)
def test_what_is_told_does_not_depend_on_what_is_due(nums: list[int], at: int, later: int) -> None:
    pairs = zip(ACTIONS, nums, strict=True)
    seen = observed(*((action, forbidden(num)) for action, num in pairs if num))
    one, two = (
        sift(seen, ACTIONS, now=f"2026-11-29T12:00:{second:02d}Z") for second in (at, later)
    )
    assert (one.rejections, one.untried) == (two.rejections, two.untried)
    assert set(map(str, one.untried)) <= set(map(str, one.due))
