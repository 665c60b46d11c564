"""What the chart's test makes, and how it judges."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from pdcluster_api.loading import load_cluster
from pdcluster_cli.smoke.story import (
    AnswerError,
    is_ours,
    read_answer,
    simulated_cluster,
    standing_of,
)


def made() -> dict[str, Any]:
    return simulated_cluster(
        "pdcluster-test", image="sim:1", pull_policy="Never", pull_secrets=("a", "b")
    )


def with_status(generation: int = 1, observed: int = 1, **conditions: str) -> dict[str, Any]:
    listed = [
        {"type": kind, "status": status, "reason": "Because", "message": "of this"}
        for kind, status in conditions.items()
    ]
    return {
        "metadata": {"name": "x", "generation": generation},
        "status": {"observedGeneration": observed, "conditions": listed, "url": "http://x.y.svc"},
    }


def stream(*texts: str, end: bytes = b"data: [DONE]\n") -> Iterable[bytes]:
    for text in texts:
        event = {"choices": [{"delta": {"content": text}}]}
        yield b"data: " + json.dumps(event).encode() + b"\n"
        yield b"\n"
    yield end


def test_the_cluster_is_one_that_the_operator_takes() -> None:
    cluster = load_cluster(json.dumps(made()), source="test").cluster
    assert cluster.spec.prefill.replicas == cluster.spec.decode.replicas == 1
    assert cluster.spec.engine.image == "sim:1"
    assert cluster.spec.engine.image_pull_policy.value == "Never"
    assert [each.name for each in cluster.spec.engine.image_pull_secrets] == ["a", "b"]


def test_only_what_a_test_made_may_be_deleted() -> None:
    assert is_ours(made())
    assert not is_ours({"metadata": {"name": "pdcluster-test"}})
    assert not is_ours({"metadata": {"labels": {"app.kubernetes.io/component": "test"}}})


def test_ready_counts_for_the_present_generation_alone() -> None:
    assert standing_of(with_status(Ready="True")).is_ready
    assert standing_of(with_status(Ready="True")).url == "http://x.y.svc"
    assert not standing_of(with_status(generation=2, Ready="True")).is_ready
    assert not standing_of(with_status(Ready="Unknown")).is_ready
    assert not standing_of({"metadata": {"generation": 1}}).is_ready


def test_a_rejected_cluster_is_known_by_its_condition() -> None:
    told = standing_of(with_status(Ready="False", ConfigValid="False"))
    assert told.rejection == "ConfigValid=False (Because): of this"
    assert "Ready=False (Because): of this" in told.words
    assert not standing_of(with_status(generation=2, ConfigValid="False")).rejection
    assert not standing_of(with_status(ConfigValid="True")).rejection


def test_a_silent_status_asks_whether_there_is_an_operator() -> None:
    assert "does the operator run" in standing_of({"metadata": {"generation": 1}}).words


def test_a_whole_answer_is_read() -> None:
    answer = read_answer(stream("a", "", "b"))
    assert (answer.num_events, answer.text) == (3, "ab")


def test_comments_and_events_without_choices_are_passed_over() -> None:
    lines = [b": hello\n", b'data: {"choices": []}\n', *stream("a")]
    assert read_answer(lines).text == "a"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "0 events and without [DONE]"),
        (list(stream("a", end=b"")), "1 events and without [DONE]"),
        (list(stream()), "no text"),
        ([b'data: {"error": {"message": "gone"}}\n'], "gone"),
        ([b"data: {\n"], "no JSON"),
        ([b'data: {"choices": [{}]}\n'], "no chat completion"),
        ([b"data: []\n"], "told of an error"),
    ],
)
def test_anything_else_is_no_answer(lines: list[bytes], words: str) -> None:
    with pytest.raises(AnswerError) as told:
        read_answer(lines)
    assert words in str(told.value)
