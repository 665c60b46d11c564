"""What `kubectl pdcluster` reads, and what it says of what is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pdcluster_cli.errors import CliError
from pdcluster_cli.kubectl.answers import error_of
from pdcluster_cli.kubectl.errors import (
    ClusterMissingError,
    ForbiddenError,
    UnreachableError,
)
from pdcluster_cli.kubectl.fetching import fetch_cluster, fetch_status
from pdcluster_cli.kubectl.raw import Raw

ROOT = "/apis/pdcluster.io/v1alpha1"
MINE = f"{ROOT}/namespaces/serving/pdclusters/qwen"
HERE = f"{ROOT}/namespaces/serving/pdclusters"
EVERYWHERE = f"{ROOT}/pdclusters"
NAMESPACE = "/api/v1/namespaces/serving"
PODS = f"{NAMESPACE}/pods"
EVENTS = f"{NAMESPACE}/events"

NOT_FOUND = error_of(MINE, 404, '{"kind": "Status", "message": "not found"}')
FORBIDDEN = error_of(MINE, 403, '{"kind": "Status", "message": "you may not"}')
NO_CRD = error_of(MINE, 404, "404 page not found")


def items(*names: str, namespace: str = "serving") -> Raw:
    return {
        "items": [
            {"metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}/{name}"}}
            for name in names
        ]
    }


class Answers:
    """Answers by path; whatever has no answer is not there."""

    def __init__(self, answers: Mapping[str, Raw | CliError]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, dict[str, str]]] = []

    async def get(self, path: str, query: Sequence[tuple[str, str]] = ()) -> Raw:
        self.asked.append((path, dict(query)))
        answer = self.answers.get(path, NOT_FOUND)
        if isinstance(answer, CliError):
            raise answer
        return answer


CLUSTER: Raw = {"metadata": {"name": "qwen", "namespace": "serving"}}


async def test_a_status_reads_the_cluster_its_pods_and_events() -> None:
    api = Answers({MINE: CLUSTER, PODS: items("a"), EVENTS: items("e1", "e2")})
    found = await fetch_status(api, "serving", "qwen")
    assert found.cluster == CLUSTER
    assert found.pods is not None
    assert len(found.pods) == 1
    assert found.events is not None
    assert len(found.events) == 2, "an event that both lists have counts once"
    assert found.unread == ()
    assert (PODS, {"labelSelector": "pdcluster.io/cluster=qwen"}) in api.asked


async def test_what_may_not_be_read_is_noted_and_the_rest_shown() -> None:
    api = Answers({MINE: CLUSTER, PODS: FORBIDDEN, EVENTS: FORBIDDEN})
    found = await fetch_status(api, "serving", "qwen")
    assert found.pods is None
    assert found.events is None
    assert [note.split(":")[0] for note in found.unread] == [
        "Pods could not be read",
        "Events could not be read",
    ]


async def missing(answers: Mapping[str, Any]) -> str:
    with pytest.raises(ClusterMissingError) as caught:
        await fetch_cluster(Answers(answers), "serving", "qwen")
    return str(caught.value)


@pytest.mark.parametrize(
    ("answers", "word"),
    [
        ({}, "there is no such namespace: check -n"),
        (
            {NAMESPACE: {}, EVERYWHERE: items("qwen", namespace="other")},
            "there is one in other: choose it with -n",
        ),
        (
            {NAMESPACE: {}, EVERYWHERE: items(), HERE: items("qwen3", "llama")},
            "it has llama, qwen3",
        ),
        ({NAMESPACE: {}, EVERYWHERE: items(), HERE: items()}, "it has none at all: check -n"),
        (
            {NAMESPACE: FORBIDDEN, EVERYWHERE: FORBIDDEN, HERE: items("llama")},
            "it has llama",
        ),
        (
            {NAMESPACE: FORBIDDEN, EVERYWHERE: FORBIDDEN, HERE: FORBIDDEN},
            "check its name and -n",
        ),
        (
            {NAMESPACE: {}, EVERYWHERE: items(), HERE: items(*"abcdefgh")},
            "it has a, b, c, d, e and 3 more",
        ),
    ],
)
async def test_a_cluster_that_is_not_there_says_where_one_is(
    answers: Mapping[str, Any], word: str
) -> None:
    said = await missing(answers)
    assert said.startswith("namespace serving has no PDCluster qwen; ")
    assert word in said


async def test_the_other_namespaces_are_asked_for_that_name_alone() -> None:
    api = Answers({NAMESPACE: {}, EVERYWHERE: items("qwen", namespace="other")})
    with pytest.raises(ClusterMissingError):
        await fetch_cluster(api, "serving", "qwen")
    assert (EVERYWHERE, {"fieldSelector": "metadata.name=qwen"}) in api.asked


@pytest.mark.parametrize("error", [FORBIDDEN, NO_CRD, UnreachableError("nobody answers")])
async def test_other_failures_are_told_as_they_are(error: CliError) -> None:
    with pytest.raises(type(error)):
        await fetch_status(Answers({MINE: error}), "serving", "qwen")


async def test_a_server_that_goes_away_meanwhile_is_not_taken_for_an_empty_one() -> None:
    away = UnreachableError("nobody answers")
    with pytest.raises(UnreachableError):
        await fetch_status(Answers({MINE: CLUSTER, PODS: away}), "serving", "qwen")


def test_a_right_that_is_missing_is_no_missing_object() -> None:
    assert isinstance(FORBIDDEN, ForbiddenError)
