from __future__ import annotations

import re

import pytest
from tests.support.resources import ENGINE, MODEL, cluster, resource, validated

from pdcluster_api.revision import NEUTRAL, revision_of

BASE = revision_of(cluster().spec)


def test_the_revision_of_the_minimal_resource_never_changes() -> None:
    """It is in the names and labels of running pods: if this fails, an upgrade would roll them.

    A field that was added belongs into ``NEUTRAL``, with the value that means "as before".
    """
    assert BASE == "bd20c376"


def test_a_revision_is_eight_hex_digits() -> None:
    assert re.fullmatch("[0-9a-f]{8}", BASE)


ENTERS = {
    "model name": {"model": {"name": "other"}},
    "served name": {"model": MODEL | {"servedName": "x"}},
    "model revision": {"model": MODEL | {"revision": "main"}},
    "model cache": {"model": MODEL | {"cache": {"persistentVolumeClaim": "m"}}},
    "image": {"engine": {"image": "sim:2"}},
    "command": {"engine": ENGINE | {"command": ["x"]}},
    "port": {"engine": ENGINE | {"port": 8001}},
    "words": {"engine": ENGINE | {"args": ["--x"]}},
    "variables": {"engine": ENGINE | {"env": [{"name": "A", "value": "1"}]}},
    "image of one role": {"decode": {"image": "sim:3"}},
    "words of one role": {"prefill": {"args": ["--x"]}},
    "variables of one role": {"prefill": {"env": [{"name": "A", "value": "1"}]}},
    "tensor parallel size": {"prefill": {"tensorParallelSize": 2}},
    "pipeline parallel size": {"prefill": {"pipelineParallelSize": 2}},
    "data parallel size": {"decode": {"dataParallelSize": 2}},
    "lease": {"kvTransfer": {"kvLeaseDurationSeconds": 60}},
    "policy": {"kvTransfer": {"loadFailurePolicy": "Recompute"}},
    "buffer device": {"kvTransfer": {"bufferDevice": "cpu"}},
    "side channel port": {"kvTransfer": {"sideChannelPort": 5700}},
    "bidirectional": {"kvTransfer": {"bidirectional": True}},
    "ucx": {"kvTransfer": {"ucx": {"tls": "tcp"}}},
}
STAYS_OUT = {
    "replicas": {"prefill": {"replicas": 7}},
    "resources": {"decode": {"resources": {"limits": {"cpu": 1}}}},
    "startup timeout": {"prefill": {"startupTimeoutSeconds": 60}},
    "pod template": {"prefill": {"podTemplate": {"metadata": {"labels": {"a": "b"}}}}},
    "nodes": {"decode": {"nodes": 2}},
    "autoscaling": {"decode": {"autoscaling": {"maxReplicas": 3}}},
    "proxy": {"proxy": {"replicas": 5, "requestTimeoutSeconds": 30}},
    "drain": {"drain": {"settleSeconds": 1}},
    "rollout": {"rollout": {"paused": True}},
    "ratio": {"ratio": {"minPrefillPerDecode": "1:8"}},
    "network policy": {"networkPolicy": {"enabled": False}},
    "monitoring": {"monitoring": {"podMonitor": True}},
}


@pytest.mark.parametrize("fields", ENTERS.values(), ids=ENTERS)
def test_what_a_pair_must_agree_on_enters(fields: dict[str, object]) -> None:
    assert revision_of(validated(resource(**fields)).spec) != BASE


@pytest.mark.parametrize("fields", STAYS_OUT.values(), ids=STAYS_OUT)
def test_what_a_pair_need_not_agree_on_stays_out(fields: dict[str, object]) -> None:
    assert revision_of(validated(resource(**fields)).spec) == BASE


def test_writing_a_default_changes_nothing() -> None:
    written = cluster(
        kvTransfer={"kvLeaseDurationSeconds": 30, "sideChannelPort": 5600},
        prefill={"tensorParallelSize": 1},
    )
    assert revision_of(written.spec) == BASE


def test_the_name_of_the_cluster_stays_out() -> None:
    assert revision_of(validated(resource(name="other")).spec) == BASE


def test_a_later_field_stays_out_while_it_is_neutral_and_enters_when_it_is_not() -> None:
    neutral = {("engine", "port"): 8000, ("prefill", "nowhere", "deep"): 1}
    later = cluster()
    moved = validated(resource({"model": MODEL, "engine": ENGINE | {"port": 8001}}))
    without = revision_of(later.spec, neutral=neutral)
    assert without != BASE
    assert without != revision_of(moved.spec, neutral=neutral)
    assert revision_of(moved.spec, neutral=neutral) == revision_of(moved.spec)


def test_nothing_is_neutral_so_far() -> None:
    assert dict(NEUTRAL) == {}
