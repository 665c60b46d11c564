"""The operator where the API server is busy, forgets or breaks off: it waits, loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.kubernetes.cluster.layout import Layout

from tests.support.faulty_api import Answer, FaultyApi, Seen
from tests.support.kubernetes import Kubectl, eventually
from tests.support.operator_rig import OperatorRig

pytestmark = pytest.mark.cluster


@pytest.fixture
def door(control_plane: Layout, tmp_path: Path) -> Iterator[FaultyApi]:
    with FaultyApi(control_plane, tmp_path) as made:
        yield made


@pytest.fixture
def behind(rig: OperatorRig, door: FaultyApi) -> OperatorRig:
    """The rig, its operator behind the door; kubectl goes past it."""
    rig.kill()
    rig.start(kubeconfig=str(door.kubeconfig))
    eventually("a watch", lambda: any("watch=true" in seen.path for seen in door.seen))
    return rig


def test_a_busy_server_s_wish_to_wait_is_respected(behind: OperatorRig, door: FaultyApi) -> None:
    told: list[Seen] = []

    def busy(seen: Seen) -> Answer | None:
        if seen.is_write and "/deployments/" in seen.path and len(told) < 3:
            told.append(seen)
            return Answer(429, retry_after_s=2)
        return None

    door.fault = busy
    behind.apply()
    behind.wait_ready()
    assert len(told) == 3
    for seen in told:
        again = [o for o in door.writes() if o.path == seen.path and o.at > seen.at]
        assert again[0].at - seen.at >= 2.0


def test_a_watch_that_ends_in_410_is_begun_anew_and_nothing_is_missed(
    behind: OperatorRig, door: FaultyApi
) -> None:
    behind.apply()
    behind.wait_ready()
    num_watches = sum("watch=true" in seen.path for seen in door.seen)
    door.expire_watches()
    eventually(
        "new watches",
        lambda: sum("watch=true" in seen.path for seen in door.seen) > num_watches,
        within_s=30,
    )
    behind.apply(decode={"replicas": 3})
    behind.wait(
        "3 decode engines", lambda: behind.get("pdc", "qwen")["status"]["summary"] == "2P3D"
    )
    behind.kubectl("delete", "svc", "qwen", "-n", behind.namespace)
    found = ("svc", "qwen", "-n", behind.namespace)
    eventually("the Service is back", lambda: behind.kubectl.find(*found), within_s=90)


def test_conflicts_and_broken_connections_delay_and_harm_nothing(
    behind: OperatorRig, door: FaultyApi
) -> None:
    num = 0

    def flaky(seen: Seen) -> Answer | None:
        nonlocal num
        if not seen.is_write or num >= 16:
            return None
        num += 1
        return (None, Answer(409), None, Answer(0), None, Answer(500), None, Answer(503))[num % 8]

    door.fault = flaky
    behind.apply()
    behind.wait_ready()
    assert num == 16
    events = [each["reason"] for each in behind.get("events")["items"]]
    assert "PodTemplateInvalid" not in events
    assert behind.condition("ConfigValid")[0] == "True"
    assert "Traceback" not in behind.log


def test_an_operator_starts_while_the_server_is_away(
    rig: OperatorRig, kubectl: Kubectl, door: FaultyApi
) -> None:
    rig.kill()
    door.fault = lambda _seen: Answer(0)
    rig.start(kubeconfig=str(door.kubeconfig))
    rig.apply()
    eventually("its tries", lambda: len(door.seen) >= 3, within_s=60)
    door.fault = lambda _seen: None
    rig.wait_ready()
    assert kubectl.find("svc", "qwen", "-n", rig.namespace) is not None


def test_a_new_leader_undoes_nothing_that_it_has_not_seen_yet(
    rig: OperatorRig, kubectl: Kubectl, door: FaultyApi
) -> None:
    """Every kind has a watch of its own, and any of them may come late."""
    rig.apply()
    rig.wait_ready()
    kubectl("scale", "pdpool/qwen-decode", "--replicas=3", "-n", rig.namespace)
    rig.wait("3 decode engines", lambda: rig.get("pdc", "qwen")["status"]["summary"] == "2P3D")
    selector = ("-l", "pdcluster.io/role=decode")
    (before,) = rig.get("deployments", *selector)["items"]
    rig.kill()
    tried: list[Seen] = []

    def late(seen: Seen) -> Answer | None:
        if seen.is_write or not seen.path.partition("?")[0].endswith("/pdpools"):
            return None
        tried.append(seen)
        return Answer(503)

    door.fault = late
    rig.start(kubeconfig=str(door.kubeconfig))
    eventually("more tries", lambda: len(tried) >= 6, within_s=60)
    assert "/pdclusters" in " ".join(seen.path for seen in door.seen if seen.status == 200)
    assert not door.writes()
    door.fault = lambda _seen: None
    kubectl("delete", "svc", "qwen", "-n", rig.namespace)
    found = ("svc", "qwen", "-n", rig.namespace)
    eventually("the Service is back", lambda: kubectl.find(*found), within_s=60)
    (after,) = rig.get("deployments", *selector)["items"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
