"""Two replicas of one operator, many resources, and scalers that are not ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tools.kubernetes.cluster.layout import Layout

from tests.support.kubernetes import Kubectl, eventually
from tests.support.kubernetes_world import resource
from tests.support.operator_rig import OperatorRig

pytestmark = pytest.mark.cluster

MAX_RSS_BYTES = 256 * 1024 * 1024
NUM_RESOURCES = 50


@pytest.fixture
def second(
    rig: OperatorRig, kubectl: Kubectl, control_plane: Layout, tmp_path: Path
) -> Iterator[OperatorRig]:
    """Another replica; both agree on a leader."""
    rig.kill()
    folder = tmp_path / "second"
    folder.mkdir()
    made = OperatorRig(kubectl, rig.namespace, control_plane, folder)
    rig.start("--instance=first", leads=True)
    eventually("a leader", lambda: holder(rig) == "first", within_s=30)
    made.start("--instance=second", leads=True)
    yield made
    if made.process is not None:
        made.kill()


def holder(rig: OperatorRig) -> str:
    lease = rig.get("lease", "pdcluster")
    return str(lease["spec"]["holderIdentity"])


def test_a_follower_takes_over_from_a_dead_leader(rig: OperatorRig, second: OperatorRig) -> None:
    rig.apply()
    rig.wait_ready()
    rig.kill()
    rig.apply(decode={"replicas": 3})
    second.wait("another leader", lambda: holder(second) == "second", within_s=60)
    second.wait(
        "3 decode engines", lambda: second.get("pdc", "qwen")["status"]["summary"] == "2P3D"
    )
    # The dead one comes back as a follower.
    starts = rig.log.count("operator.started")
    rig.start("--instance=first", leads=True)
    eventually("a follower", lambda: rig.log.count("operator.started") > starts)
    time.sleep(4.0)
    assert holder(rig) == "second"
    assert rig.process is not None
    assert rig.process.poll() is None


def test_a_stopped_leader_hands_over_and_a_follower_stops_at_once(
    rig: OperatorRig, second: OperatorRig
) -> None:
    assert rig.stop() == 0
    second.wait("another leader", lambda: holder(second) == "second", within_s=60)
    starts = rig.log.count("operator.started")
    rig.start("--instance=first", leads=True)
    eventually("a follower", lambda: rig.log.count("operator.started") > starts)
    assert rig.stop() == 0


def test_a_leader_that_stops_lets_go_of_the_lease(rig: OperatorRig, second: OperatorRig) -> None:
    """Else every upgrade would wait until the Lease of the old leader is over."""
    eventually("a follower", lambda: "operator.started" in second.log)
    assert second.stop() == 0
    assert holder(rig) == "first"
    assert rig.stop() == 0
    assert "holderIdentity" not in rig.get("lease", "pdcluster")["spec"]


def test_an_autoscaler_that_is_not_ours_scales_a_pool(rig: OperatorRig) -> None:
    rig.apply()
    rig.wait_ready()
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "decode"},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "pdcluster.io/v1alpha1",
                "kind": "PDPool",
                "name": "qwen-decode",
            },
            # Without metrics an autoscaler still keeps its target within its bounds.
            "minReplicas": 4,
            "maxReplicas": 6,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {
                        "name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": 50},
                    },
                }
            ],
        },
    }
    rig.kubectl.apply(scaler, namespace=rig.namespace)
    rig.wait("4 decode engines", lambda: rig.get("pdc", "qwen")["status"]["summary"] == "2P4D")
    rig.wait_ready()
    rig.wait("4 seen", lambda: rig.get("hpa", "decode")["status"]["currentReplicas"] == 4)


@pytest.mark.timeout(600)
def test_fifty_resources_fit_into_a_small_process(rig: OperatorRig) -> None:
    one = {"replicas": 1}
    documents = [resource(prefill=one, decode=one, proxy=one) for _ in range(NUM_RESOURCES)]
    for number, document in enumerate(documents):
        document["metadata"] = {"name": f"c{number:02d}"}
    rig.kubectl.apply(*documents, namespace=rig.namespace)

    def told() -> bool:
        found = rig.get("pdc")["items"]
        return len(found) == NUM_RESOURCES and all(
            each["status"].get("observedGeneration") == each["metadata"]["generation"]
            for each in found
        )

    eventually("a status each", told, within_s=180)
    eventually(
        "three Deployments each",
        lambda: len(rig.get("deploy")["items"]) == 3 * NUM_RESOURCES,
        within_s=180,
    )
    assert rig.process is not None
    assert psutil.Process(rig.process.pid).memory_info().rss < MAX_RSS_BYTES
