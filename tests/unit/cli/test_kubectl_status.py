"""What `kubectl pdcluster status` shows of objects as the API server gives them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.kubernetes_world import NOW, World, resource

from pdcluster_cli.kubectl.text import age, status_json, status_text
from pdcluster_cli.kubectl.view import MAX_EVENTS, Fetched, StatusView, status_view

AT = datetime(2026, 11, 29, 12, 5, tzinfo=UTC)


def world(**spec: object) -> World:
    made = World(resource(**spec))
    made.settle()
    # The operator's own plan has written the status: what is shown is what it really says.
    made.cluster["status"]["observedGeneration"] = made.cluster["metadata"]["generation"]
    return made


def view(made: World, **fetched: Any) -> StatusView:
    pods = tuple(made.pods.values())
    return status_view(Fetched(cluster=made.cluster, **{"pods": pods, "events": (), **fetched}))


def shown(made: World, **fetched: Any) -> str:
    return status_text(view(made, **fetched), now=AT)


def cells(text: str, first: str, *, which: int = 0) -> list[str]:
    lines = [line for line in text.splitlines() if line.startswith(f"{first} ")]
    return lines[which].split()


def event(
    kind: str, name: str, reason: str, *, at: str = NOW, warning: bool = True, **more: object
) -> Mapping[str, object]:
    return {
        "metadata": {"uid": f"{kind}{name}{reason}{at}"},
        "involvedObject": {"kind": kind, "name": name},
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": f"{reason} it is",
        "lastTimestamp": at,
        **more,
    }


def test_a_cluster_that_serves_is_told_in_full() -> None:
    text = shown(world(prefill={"replicas": 1}, decode={"replicas": 3}, proxy={"replicas": 2}))
    assert cells(text, "PDCluster") == ["PDCluster", "serving/qwen"]
    assert cells(text, "Ready") == ["Ready", "True", "(Serving)"]
    assert cells(text, "URL") == ["URL", "http://qwen.serving.svc"]
    assert cells(text, "prefill")[1:4] == ["1/1", "1", "0"]
    assert cells(text, "decode")[1:4] == ["3/3", "3", "0"]
    assert cells(text, "proxy") == ["proxy", "2/2", "-", "0", "-"]
    assert "Note:" not in text


def test_the_lease_s_timing_is_that_of_the_status() -> None:
    text = shown(world(kvTransfer={"kvLeaseDurationSeconds": 60}))
    assert " ".join(cells(text, "Lease")[1:]) == (
        "60 s: heartbeat 10 s, extension 40 s, hand-off within 34 s (new pair), prefill grace 175 s"
    )


def test_a_lease_without_a_bound_on_the_hand_off_says_so() -> None:
    made = world()
    del made.cluster["status"]["lease"]["handOffDeadlineSeconds"]
    assert "hand-off not bounded" in shown(made)


def test_every_condition_is_there_with_reason_age_and_message() -> None:
    made = world()
    text = shown(made)
    for each in made.cluster["status"]["conditions"]:
        row = cells(text, each["type"], which=-1)
        assert row[1:4] == [each["status"], each["reason"], "5m"]
        assert " ".join(row[4:]) == each["message"]


def test_both_revisions_of_a_rollout_are_counted_by_their_pods() -> None:
    made = world()
    before = made.cluster["status"]["revision"]["current"]
    made.edit(kvTransfer={"kvLeaseDurationSeconds": 60})
    for _ in range(2):
        for action in made.plan().actions:
            made.do(action)
        made.move()
    pools = {pool.name: pool for pool in view(made).pools}
    revisions = dict(pools["decode"].revisions)
    assert len(revisions) == 2
    assert revisions[before] == 2
    assert f"{before} (x2)" in shown(made)


def test_the_revision_of_the_most_pods_comes_first() -> None:
    made = world(decode={"replicas": 1})
    for number, revision in enumerate(("ffffffff", "ffffffff", "00000000")):
        pod = next(p for name, p in made.pods.items() if name.startswith("qwen-decode"))
        labels = {**pod["metadata"]["labels"], "pdcluster.io/revision": revision}
        made.pods[f"x{number}"] = {**pod, "metadata": {"name": f"x{number}", "labels": labels}}
    made.pods = {name: pod for name, pod in made.pods.items() if not name.startswith("qwen-decode")}
    pools = {pool.name: pool for pool in view(made).pools}
    assert pools["decode"].revisions == (("ffffffff", 2), ("00000000", 1))


@pytest.mark.parametrize("ready", [True, False])
def test_ready_needs_the_condition(ready: bool) -> None:
    made = world()
    if not ready:
        for each in made.cluster["status"]["conditions"]:
            if each["type"] == "Ready":
                each["status"] = "False"
    assert view(made).is_ready is ready


def test_a_status_of_an_older_generation_is_not_ready_and_says_so() -> None:
    made = world()
    made.cluster["metadata"]["generation"] += 1
    assert not view(made).is_ready
    assert "The status speaks of generation 1, the resource is at 2" in shown(made)


def test_a_resource_that_nobody_has_looked_at_says_so() -> None:
    raw = resource()
    raw["status"] = {
        "conditions": [
            {
                "type": "Ready",
                "status": "Unknown",
                "reason": "WaitingForOperator",
                "message": "No operator has looked at this resource yet.",
                "lastTransitionTime": "1970-01-01T00:00:00Z",
            }
        ]
    }
    found = status_view(Fetched(cluster=raw, pods=(), events=()))
    text = status_text(found, now=AT)
    assert not found.is_ready
    assert "No operator has looked at it yet" in text
    assert cells(text, "prefill")[1] == "-/-"
    assert cells(text, "Lease") == ["Lease", "-"]
    assert "No events" in text


def test_a_bare_object_is_shown_without_failing() -> None:
    assert "Unknown" in status_text(status_view(Fetched(cluster={})), now=AT)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"annotations": {"pdcluster.io/paused": "true"}}, "It is paused (annotation"),
        ({"deletionTimestamp": NOW}, "It is being deleted"),
    ],
)
def test_what_holds_it_up_is_noted(change: Mapping[str, object], word: str) -> None:
    made = world()
    made.cluster["metadata"] |= change
    assert f"Note: {word}" in shown(made)


def test_a_paused_rollout_is_noted() -> None:
    assert "Note: It is paused (spec.rollout.paused)" in shown(world(rollout={"paused": True}))


def test_what_could_not_be_read_is_left_open_not_counted_as_none() -> None:
    made = world()
    text = shown(made, pods=None, events=None, unread=("Pods could not be read: forbidden.",))
    assert cells(text, "proxy")[1] == "-/-"  # The CRD's default of 2 is the server's to write.
    assert cells(text, "prefill")[1] == "2/2"
    assert "Note: Pods could not be read: forbidden." in text
    assert "No events" not in text


def test_a_pod_that_leaves_drains_and_is_not_ready() -> None:
    made = world()
    proxy = next(name for name in made.pods if name.startswith("qwen-proxy"))
    made.pods[proxy]["metadata"]["deletionTimestamp"] = NOW
    assert cells(shown(made), "proxy")[1:4] == ["1/-", "-", "1"]


EVENTS = (
    event("PDCluster", "qwen", "Serving", warning=False, at="2026-11-29T12:00:01Z"),
    event("Pod", "qwen-decode-1a2b3c4d-x", "FailedMount", at="2026-11-29T12:00:03Z", count=7),
    event("ReplicaSet", "qwen-prefill-1a2b3c4d-7", "FailedCreate", at="2026-11-29T12:00:02Z"),
)
OTHERS = (
    event("Pod", "qwen-decode-1a2b3c4d-x", "Pulled", warning=False),
    event("PDCluster", "qwen-2", "Serving", warning=False),
    event("Pod", "qwen-2-decode-1a2b3c4d-x", "FailedMount"),
    event("Pod", "somebody-else", "FailedMount"),
)


def test_events_of_note_are_shown_in_order_and_others_are_not() -> None:
    found = view(world(), events=(*OTHERS, *EVENTS)).events
    assert found is not None
    assert [each.reason for each in found] == ["Serving", "FailedCreate", "FailedMount"]
    text = shown(world(), events=EVENTS)
    assert "FailedMount it is (x7)" in text
    assert cells(text, "4m")[1:4] == ["Normal", "PDCluster/qwen", "Serving"]


def test_an_event_that_came_again_is_shown_once_with_its_last_time() -> None:
    again = event("PDCluster", "qwen", "Serving", warning=False, at="2026-11-29T12:04:00Z")
    for events in ((again, *EVENTS), (*EVENTS, again)):
        found = view(world(), events=events).events
        assert found is not None
        assert [each.reason for each in found] == ["FailedCreate", "FailedMount", "Serving"]
        assert found[-1].at == "2026-11-29T12:04:00Z"


def test_probes_that_failed_before_a_pod_served_are_of_no_note() -> None:
    made = world()
    name = next(name for name in made.pods if name.startswith("qwen-decode"))
    events = (event("Pod", name, "Unhealthy"), event("Pod", name, "BackOff"))
    found = view(made, events=events).events
    assert found is not None
    assert [each.reason for each in found] == ["BackOff"]
    made.pods[name]["status"] = {}
    found = view(made, events=events).events
    assert found is not None
    assert [each.reason for each in found] == ["BackOff", "Unhealthy"]


def test_probes_of_pods_that_start_do_not_bury_a_cause() -> None:
    made = world()
    proxy = "qwen-proxy-6d9f7-x7k2p"
    made.pods = {proxy: {"metadata": {"name": proxy}, "status": {}}}
    failing = "Startup probe failed: connect: connection refused"
    startup = event("Pod", proxy, "Unhealthy", message=failing, at="2026-11-29T12:04:00Z")
    cause = event("PDCluster", "qwen", "PodsRejected")

    def reasons(*events: Mapping[str, object]) -> list[str]:
        found = view(made, events=events).events
        assert found is not None
        return [each.reason for each in found]

    assert reasons(startup, cause) == ["PodsRejected"]
    many = (
        event("Pod", proxy, "Unhealthy", message=f"{failing} {number}")
        for number in range(MAX_EVENTS)
    )
    assert reasons(cause, *many) == ["PodsRejected"], "not beyond the last that are shown"
    assert reasons(startup) == ["Unhealthy"], "alone it tells something"
    normal = event("PDCluster", "qwen", "EnginesStarting", warning=False)
    assert reasons(startup, normal) == ["EnginesStarting", "Unhealthy"]
    ready = event("Pod", proxy, "Unhealthy", message="Readiness probe failed: 503")
    assert reasons(ready, cause) == ["PodsRejected", "Unhealthy"]
    # Kubelet has given up on it once: that it never answers is the cause.
    made.pods[proxy]["status"] = {"containerStatuses": [{"name": "proxy", "restartCount": 1}]}
    assert reasons(startup, cause) == ["PodsRejected", "Unhealthy"]


def test_only_the_newest_events_are_shown() -> None:
    many = [
        event("PDCluster", "qwen", f"Reason{number:02}", at=f"2026-11-29T12:00:{number:02}Z")
        for number in range(40)
    ]
    found = view(world(), events=tuple(many)).events
    assert found is not None
    assert [each.reason for each in found] == [f"Reason{n}" for n in range(40 - MAX_EVENTS, 40)]


def test_no_text_of_others_reaches_the_terminal_as_a_command() -> None:
    bad = event("PDCluster", "qwen", "Odd", message="\x1b[31mred\x07\nnext line")
    text = shown(world(), events=(bad,))
    assert "\x1b" not in text
    assert "red next line" in text


def test_messages_are_broken_where_the_terminal_ends_and_only_there() -> None:
    made = world()
    for each in made.cluster["status"]["conditions"]:
        each["message"] = "word " * 40
    wide = status_text(view(made), now=AT)
    assert max(map(len, wide.splitlines())) > 150
    narrow = status_text(view(made), now=AT, width=110)
    assert max(map(len, narrow.splitlines())) <= 110
    assert narrow.count("word") == wide.count("word")


@pytest.mark.parametrize(
    ("since", "told"),
    [
        ("2026-11-29T12:04:59Z", "1s"),
        ("2026-11-29T12:04:00Z", "1m"),
        ("2026-11-29T09:00:00Z", "3h"),
        ("2026-11-20T12:00:00.123456Z", "9d"),
        ("2026-11-29T12:05:30Z", "0s"),
        ("1970-01-01T00:00:00Z", "-"),
        ("", "-"),
        ("yesterday", "-"),
        ("2026-11-29T12:00:00", "-"),
    ],
)
def test_ages_are_told_in_the_largest_unit(since: str, told: str) -> None:
    assert age(since, now=AT) == told


def test_the_json_says_the_same() -> None:
    made = world(decode={"replicas": 3})
    told = json.loads(status_json(view(made, events=EVENTS)))
    assert (told["namespace"], told["name"], told["ready"]) == ("serving", "qwen", "True")
    assert told["current"] is True
    pools = {pool["name"]: pool for pool in told["pools"]}
    assert (pools["decode"]["ready"], pools["decode"]["desired"]) == (3, 3)
    revision = made.cluster["status"]["revision"]["current"]
    assert pools["decode"]["revisions"] == [{"revision": revision, "pods": 3}]
    assert told["lease"] == {
        "durationSeconds": 30,
        "heartbeatSeconds": 5,
        "extensionSeconds": 20,
        "handOffDeadlineSeconds": 14,
        "terminationGraceSeconds": 155,
    }
    assert {each["type"] for each in told["conditions"]} >= {"Ready", "ConfigValid"}
    assert told["events"][0]["object"] == "PDCluster/qwen"


@pytest.mark.parametrize(
    ("kind", "name", "of_note"),
    [
        ("Pod", "qwen-prefill-0a1b2c3d-7d96c6f94-9f6fk", True),
        ("ReplicaSet", "qwen-decode-0a1b2c3d-7d96c6f94", True),
        ("Deployment", "qwen-prefill-0a1b2c3d", True),
        ("Pod", "qwen-proxy-7d96c6f94-9f6fk", True),
        # Those of clusters that are named like a part of this one.
        ("Pod", "qwen-prefill-prefill-0a1b2c3d-7d96c6f94-9f6fk", False),
        ("Pod", "qwen-prefill-proxy-7d96c6f94-9f6fk", False),
        ("Pod", "qwen-proxy-decode-0a1b2c3d-7d96c6f94-9f6fk", False),
    ],
)
def test_warnings_are_those_of_its_own_objects(kind: str, name: str, of_note: bool) -> None:
    text = shown(world(), events=(event(kind, name, "Failed"),))
    assert (f"{kind}/{name}" in text) == of_note
