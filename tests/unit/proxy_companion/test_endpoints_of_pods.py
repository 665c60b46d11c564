"""From a pod, as Kubernetes and the operator make it, to an endpoint."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from tests.support.kubernetes_world import SETTINGS, resource

from pdcluster_api.labels import LEASE_ANNOTATION
from pdcluster_api.proxy_config import Role
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_operator.manifests.engines import engine_deployment
from pdcluster_operator.manifests.objects import Owner
from pdcluster_proxy.companion.pods import endpoint_of_pod, endpoints_of_pods

READY = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}


def pod(role: Role = Role.PREFILL, ip: str = "10.1.2.3", **status: object) -> dict[str, Any]:
    """A pod of the Deployment that the operator renders: both sides must agree on every label."""
    cluster = PDCluster.model_validate_json(json.dumps(resource()))
    owner = Owner(name="qwen", namespace="serving", uid="u", operator=SETTINGS.operator)
    made = engine_deployment(cluster, role, owner, SETTINGS)["spec"]["template"]  # type: ignore[index]
    found: dict[str, Any] = copy.deepcopy(made)
    found["metadata"]["name"] = f"{role.value}-x"
    found["status"] = {"podIP": ip} | READY | status
    return found


def test_what_the_operator_renders_is_what_the_proxy_reads() -> None:
    found = endpoint_of_pod(pod())
    assert found is not None
    assert (found.name, found.role, found.draining) == ("prefill-x", Role.PREFILL, False)
    assert (found.url, found.side_channel) == ("http://10.1.2.3:8000", "10.1.2.3:5600")
    assert found.lease_duration_seconds == 30
    assert len(found.revision) == 8


def test_an_ipv6_address_stands_in_brackets() -> None:
    found = endpoint_of_pod(pod(ip="fd00::7"))
    assert found is not None
    assert (found.url, found.side_channel) == ("http://[fd00::7]:8000", "[fd00::7]:5600")


def test_one_on_its_way_out_drains_whether_ready_or_not() -> None:
    raw = pod(conditions=[])
    raw["metadata"]["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    found = endpoint_of_pod(raw)
    assert found is not None
    assert found.draining


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": []},
        {"conditions": [{"type": "Ready", "status": "False"}]},
        {"podIP": ""},
        {"podIP": None},
        {"phase": "Failed"},
        {"phase": "Succeeded"},
    ],
)
def test_one_that_does_not_serve_is_no_endpoint(status: dict[str, object]) -> None:
    assert endpoint_of_pod(pod(**status)) is None


@pytest.mark.parametrize("raw", [{}, {"metadata": None, "status": []}, {"metadata": {"labels": 1}}])
def test_what_is_no_engine_of_ours_is_no_endpoint(raw: dict[str, object]) -> None:
    assert endpoint_of_pod(raw) is None


def test_an_engine_without_its_annotations_is_no_endpoint() -> None:
    raw = pod()
    raw["metadata"]["annotations"] = {}
    assert endpoint_of_pod(raw) is None


STARTED = [{"name": "engine", "started": True, "ready": False}]
UNREADY = [{"type": "Ready", "status": "False"}]


def test_one_that_has_come_up_stays_an_endpoint_while_kubernetes_calls_it_unready() -> None:
    assert endpoint_of_pod(pod(conditions=UNREADY, containerStatuses=STARTED)) is not None


@pytest.mark.parametrize(
    "containers",
    [
        [],
        [{"name": "engine", "started": False}],
        [{"name": "sidecar", "started": True}],
        [{"name": "engine"}, None],
    ],
)
def test_one_whose_engine_has_yet_to_come_up_is_no_endpoint(containers: list[object]) -> None:
    assert endpoint_of_pod(pod(conditions=UNREADY, containerStatuses=containers)) is None


def test_endpoints_are_sorted_by_name() -> None:
    found, faults = endpoints_of_pods([pod(Role.PREFILL), pod(Role.DECODE), {}])
    assert [each.name for each in found.endpoints] == ["decode-x", "prefill-x"]
    assert faults == ()


def test_a_pod_that_can_be_no_endpoint_hides_no_other() -> None:
    odd = pod(Role.DECODE)
    odd["metadata"]["annotations"][LEASE_ANNOTATION] = "1"  # Shorter than any lease may be.
    found, (fault,) = endpoints_of_pods([odd, pod(Role.PREFILL)])
    assert [each.name for each in found.endpoints] == ["prefill-x"]
    assert fault.startswith("decode-x: lease_duration_seconds: ")
