from __future__ import annotations

import pytest
from tests.support.resources import ENGINE, MODEL, cluster, resource, validated

from pdcluster_api.problems import format_path
from pdcluster_api.proxy_config import KeeperMode
from pdcluster_api.support import KEEPER, KUBERNETES_ONLY, NOT_YET, kubernetes_only, not_yet


def test_only_the_image_needs_a_cluster_in_the_minimal_resource() -> None:
    assert kubernetes_only(cluster()) == ("spec.engine.image",)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prefill": {"resources": {"limits": {"cpu": 1}}}}, "spec.prefill.resources"),
        ({"decode": {"podTemplate": {"spec": {"nodeName": "x"}}}}, "spec.decode.podTemplate"),
        ({"decode": {"image": "y"}}, "spec.decode.image"),
        ({"proxy": {"replicas": 2}}, "spec.proxy.replicas"),
        ({"proxy": {"service": {"port": 81}}}, "spec.proxy.service"),
        ({"networkPolicy": {"enabled": True}}, "spec.networkPolicy"),
        ({"ratio": {}}, "spec.ratio"),
        ({"rollout": {"paused": False}}, "spec.rollout"),
        (
            {"drain": {"terminationGracePeriodSeconds": 90}},
            "spec.drain.terminationGracePeriodSeconds",
        ),
    ],
)
def test_a_field_that_needs_a_cluster_is_named_where_it_was_written(
    fields: dict[str, object], expected: str
) -> None:
    found = kubernetes_only(validated(resource(**fields)))
    assert found == ("spec.engine.image", expected)


def test_the_models_secret_and_cache_need_a_cluster() -> None:
    model = MODEL | {
        "tokenSecretRef": {"name": "hf", "key": "token"},
        "cache": {"persistentVolumeClaim": "m"},
    }
    found = kubernetes_only(validated(resource({"model": model, "engine": ENGINE})))
    assert set(found) == {"spec.model.tokenSecretRef", "spec.model.cache", "spec.engine.image"}


def test_a_variable_from_a_secret_needs_a_cluster_and_a_literal_does_not() -> None:
    found = kubernetes_only(
        cluster(
            decode={
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ]
            }
        )
    )
    assert "spec.decode.env[1].valueFrom" in found
    assert len(found) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"prefill": {"replicas": 3, "args": ["--x"], "startupTimeoutSeconds": 60}},
        {"kvTransfer": {"kvLeaseDurationSeconds": 60, "ucx": {"tls": "tcp"}}},
        {"proxy": {"requestTimeoutSeconds": 5, "admission": {"maxQueue": 3}}},
        {"drain": {"settleSeconds": 1}},
    ],
    ids=str,
)
def test_what_a_single_machine_honours_is_not_named(fields: dict[str, object]) -> None:
    assert kubernetes_only(validated(resource(**fields))) == ("spec.engine.image",)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"proxy": {"apiKeysSecretRef": {"name": "k"}}}, "spec.proxy.apiKeysSecretRef"),
        ({"proxy": {"tlsSecretRef": {"name": "t"}}}, "spec.proxy.tlsSecretRef"),
        ({"monitoring": {"podMonitor": True}}, "spec.monitoring.podMonitor"),
        ({"monitoring": {"rules": True}}, "spec.monitoring.rules"),
    ],
)
def test_what_nobody_would_honour_is_not_silently_taken(
    fields: dict[str, object], path: str
) -> None:
    asked = validated(resource(**fields))
    for has_defaults in (False, True):
        (problem,) = not_yet(asked, has_defaults=has_defaults)
        assert format_path(problem.path) == path
        assert problem.message.startswith("not yet supported; ")
    assert not_yet(validated(resource(monitoring={"podMonitor": False, "rules": False}))) == ()


def test_the_two_tables_do_not_overlap() -> None:
    for row in NOT_YET:
        assert not any(row.path[: len(path)] == path for path in KUBERNETES_ONLY)


def test_there_is_no_keeper_yet() -> None:
    assert KEEPER is KeeperMode.ABSENT
