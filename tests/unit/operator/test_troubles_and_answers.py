"""What kubelet, scheduler and API server say, and what it means for a person or for the queue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdcluster_operator.errors import (
    ApplyRejectedError,
    ClusterApiError,
    ConflictError,
    ForbiddenError,
    MissingError,
    RejectedError,
    TerminatingError,
)
from pdcluster_operator.kube.answers import error_of
from pdcluster_operator.kube.resources import RESOURCES
from pdcluster_operator.model.pod_trouble import trouble_of
from pdcluster_operator.model.reading import read_pod
from pdcluster_operator.model.rejections import told, wording
from pdcluster_operator.work_queue import BACKOFF_MAX_S, backoff_s


def pod(*, waiting: dict[str, str] | None = None, **status: Any) -> dict[str, object]:
    containers = [
        {
            "name": "engine",
            "image": "engine:1",
            "state": {"waiting": waiting} if waiting else {"running": {}},
        }
    ]
    return {"metadata": {"name": "p"}, "status": {"containerStatuses": containers} | status}


FORBIDDEN = "ApplyForbidden"
MISSING_SECRET = 'secret "hf" not found'
AS_ROOT = "container has runAsNonRoot and image will run as root"
FULL = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


@pytest.mark.parametrize(
    ("raw", "reason", "remedy"),
    [
        (
            pod(waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling"}),
            "ImageUnavailable",
            "imagePullSecrets",
        ),
        (pod(waiting={"reason": "ErrImageNeverPull"}), "ImageUnavailable", "image's name"),
        (
            pod(waiting={"reason": "CreateContainerConfigError", "message": MISSING_SECRET}),
            "ContainerConfigInvalid",
            "missing Secret",
        ),
        (
            pod(waiting={"reason": "CreateContainerConfigError", "message": AS_ROOT}),
            "ContainerConfigInvalid",
            "does not need root",
        ),
        (
            pod(
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": FULL,
                    }
                ]
            ),
            "Unschedulable",
            "spec.<role>.resources",
        ),
        (
            pod(
                containerStatuses=[
                    {
                        "name": "engine",
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                    }
                ]
            ),
            "ContainerExits",
            "kubectl logs --previous",
        ),
    ],
)
def test_a_pod_that_does_not_get_on_says_why_and_what_to_do(
    raw: dict[str, object], reason: str, remedy: str
) -> None:
    found = trouble_of(raw, ())
    assert found is not None
    assert found.reason == reason
    assert remedy in found.message


def pod_of(part: str, *, container: str = "", **content: Any) -> dict[str, object]:
    """A pod of a role's or of the proxies', with one container."""
    own = "proxy" if part == "proxy" else "engine"
    labels = {"app.kubernetes.io/component": own}
    if own == "engine":
        labels["pdcluster.io/role"] = part
    waiting = {"waiting": {"reason": content.pop("reason"), "message": content.pop("said", "")}}
    name = container or own
    return {
        "metadata": {"name": "p", "labels": labels},
        "spec": {"containers": [{"name": name, **content}]},
        "status": {"containerStatuses": [{"name": name, "image": "i:1", "state": waiting}]},
    }


def remedy_of(raw: dict[str, object]) -> str:
    found = trouble_of(raw, ())
    assert found is not None
    return found.message


def variable(name: str, **source: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {kind: {"name": each} for kind, each in source.items()}}


@pytest.mark.parametrize(
    ("part", "container", "field"),
    [
        ("decode", "", "(spec.decode.image, or else spec.engine.image), and spec.engine.imageP"),
        ("prefill", "", "(spec.prefill.image, or else spec.engine.image)"),
        ("proxy", "", "(spec.proxy.image, or else the chart's image), and the chart's imageP"),
        ("decode", "mesh", "(spec.decode.podTemplate)"),
        ("proxy", "mesh", "(a container that the operator has not made)"),
    ],
)
def test_an_image_is_named_with_the_field_it_comes_from(
    part: str, container: str, field: str
) -> None:
    assert field in remedy_of(pod_of(part, container=container, reason="ErrImagePull"))


CONFIG = "CreateContainerConfigError"
TOKEN = variable("HF_TOKEN", secretKeyRef="hf")
MINE = variable("MINE", configMapKeyRef="mine")


@pytest.mark.parametrize(
    ("part", "said", "where"),
    [
        ("decode", MISSING_SECRET, "(spec.model.tokenSecretRef.name)."),
        ("prefill", "couldn't find key x in Secret serving/hf", "(spec.model.tokenSecretRef.key)."),
        (
            "decode",
            'configmap "mine" not found',
            "spec.engine.env, spec.decode.env, spec.decode.podTemplate: variable MINE).",
        ),
        ("decode", 'secret "hf-other" not found', "(spec.model.tokenSecretRef, spec.engine.env, "),
        ("proxy", 'configmap "mine" not found', "makes the proxies' ConfigMap: see ConfigValid."),
    ],
)
def test_what_is_missing_is_told_with_the_field_that_names_it(
    part: str, said: str, where: str
) -> None:
    raw = pod_of(part, reason=CONFIG, said=said, env=[TOKEN, MINE, {"name": "X", "value": "hf"}])
    assert where in remedy_of(raw)


def test_where_we_cut_three_full_stops_tell_it_and_nowhere_are_two() -> None:
    said = remedy_of(pod(waiting={"reason": "ErrImagePull", "message": "x." + "y" * 900}))
    assert "yyy... Check" in said
    said = remedy_of(pod(waiting={"reason": "ErrImagePull", "message": "no such host."}))
    assert "no such host. Check" in said


def test_a_volume_that_is_missing_shows_in_events_alone() -> None:
    raw = pod(waiting={"reason": "ContainerCreating"})
    assert trouble_of(raw, ()) is None
    said = 'MountVolume.SetUp failed: persistentvolumeclaim "models" not found'
    found = trouble_of(raw, [{"reason": "FailedMount", "message": said}])
    assert found is not None
    assert found.reason == "VolumeUnavailable"
    assert '"models"' in found.message
    assert found.is_lasting
    said = "Multi-Attach error: the volume is used by another pod"
    found = trouble_of(raw, [{"reason": "FailedAttachVolume", "message": said}])
    assert found is not None
    assert not found.is_lasting, "the other pod may leave"


@pytest.mark.parametrize(
    "raw",
    [
        pod(),
        pod(waiting={"reason": "PodInitializing"}),
        {},
        {"status": None},
        {"status": {"conditions": "x", "containerStatuses": [1, None, {"state": 7}]}},
    ],
)
def test_one_that_only_needs_time_is_no_trouble(raw: dict[str, object]) -> None:
    assert trouble_of(raw, ()) is None


def test_a_pod_on_its_way_out_is_not_ready_and_in_no_trouble() -> None:
    raw = pod(conditions=[{"type": "Ready", "status": "True"}])
    assert read_pod(raw).is_ready
    raw["metadata"] = {"name": "p", "deletionTimestamp": "2026-11-29T12:00:00Z"}
    assert (read_pod(raw).is_ready, read_pod(raw).is_terminating) == (False, True)


def status(message: str) -> str:
    return json.dumps({"kind": "Status", "message": message})


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (404, status("not found"), MissingError),
        (409, status("the uid is another"), ConflictError),
        (410, status("too old"), ConflictError),
        (422, status("spec.replicas: must be at least 0"), ApplyRejectedError),
        (400, status("bad"), ApplyRejectedError),
        (500, status("failed to create typed patch object: .spec.x"), ApplyRejectedError),
        (500, status("etcd is away"), ClusterApiError),
        (500, status("failed calling webhook: connection denied"), ForbiddenError),
        (403, status("exceeded quota"), ForbiddenError),
        (403, "", ForbiddenError),
        (403, status('cannot find RESTMapping: no matches for kind "PDCluster"'), ClusterApiError),
        (403, status("unable to create: because it is being terminated"), TerminatingError),
        (409, status("because it is being terminated"), ConflictError),
        (429, status("slow down"), ClusterApiError),
        (503, "<html>", ClusterApiError),
    ],
)
def test_a_refusal_says_whether_trying_again_can_help(
    code: int, body: str, expected: type[Exception]
) -> None:
    error = error_of("PATCH /x", code, body, None)
    assert type(error) is expected
    assert str(error).startswith("PATCH /x: ")


@pytest.mark.parametrize("code", [400, 403, 422])
def test_a_rejection_keeps_the_server_s_own_words(code: int) -> None:
    error = error_of("PATCH /x", code, status("no such thing"), None)
    assert isinstance(error, RejectedError)
    assert error.said == "no such thing"


@pytest.mark.parametrize("body", [status("word " * 1000), "word " * 1000])
def test_long_words_are_cut_and_say_so_to_the_end(body: str) -> None:
    error = error_of("PATCH /x", 403, body, None)
    assert isinstance(error, ForbiddenError)
    assert len(error.said) < 810
    assert "word... Let the operator" in told("Service a can't be applied", FORBIDDEN, error.said)
    long = 'services "qwen" is forbidden: ' + error.said
    assert wording(long).endswith("word...")


def test_a_template_that_cannot_be_typed_is_told_apart() -> None:
    error = error_of("PATCH /x", 500, status("failed to create typed patch object"), None)
    assert isinstance(error, ApplyRejectedError)
    assert error.is_template


@pytest.mark.parametrize(("header", "expected"), [("7", 7.0), (None, None), ("soon", None)])
def test_the_patience_that_a_server_asks_for_is_kept(
    header: str | None, expected: float | None
) -> None:
    error = error_of("GET /x", 429, status("slow down"), header)
    assert isinstance(error, ClusterApiError)
    assert error.retry_after_s == expected


def test_back_off_grows_to_a_bound() -> None:
    waits = [backoff_s(number) for number in range(1, 40)]
    assert waits[0] < 1.0
    assert waits == sorted(waits)
    assert waits[-1] == BACKOFF_MAX_S


def test_paths_are_those_of_the_api() -> None:
    assert RESOURCES["Pod"].path("ns") == "/api/v1/namespaces/ns/pods"
    assert RESOURCES["Deployment"].path("ns", "a") == "/apis/apps/v1/namespaces/ns/deployments/a"
    path = "/apis/pdcluster.io/v1alpha1/namespaces/ns/pdclusters/a/status"
    assert RESOURCES["PDCluster"].path("ns", "a", "status") == path
