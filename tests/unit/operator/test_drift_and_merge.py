"""Laying a user's template over ours, and telling whether an object is still as applied."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_operator.manifests.merge import merge
from pdcluster_operator.model.drift import has_drifted

VALUES = st.recursive(
    st.integers(1, 9) | st.text("abc", min_size=1, max_size=3) | st.booleans(),
    lambda inner: (
        st.dictionaries(st.text("xyz", min_size=1, max_size=2), inner, max_size=3)
        | st.lists(inner, max_size=3)
    ),
    max_leaves=10,
)


@given(VALUES)
def test_what_is_as_applied_has_not_drifted(value: object) -> None:
    assert not has_drifted(value, value)


@given(VALUES, VALUES)
def test_what_was_merged_holds_all_that_was_laid_over(base: object, patch: object) -> None:
    assert not has_drifted(patch, merge(base, patch))


@given(VALUES)
def test_laying_nothing_over_changes_nothing(base: object) -> None:
    if isinstance(base, dict):
        assert merge(base, {}) == base


@pytest.mark.parametrize(
    ("base", "patch", "expected"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
            {
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "value": "3"},
                    {"name": "C", "value": "4"},
                ]
            },
        ),
        (
            {"ports": [{"containerPort": 1, "protocol": "TCP"}]},
            {"ports": [{"containerPort": 1, "name": "x"}]},
            {"ports": [{"containerPort": 1, "protocol": "TCP", "name": "x"}]},
        ),
        (
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "b"}]},
        ),
    ],
)
def test_lists_are_merged_by_their_keys(base: Any, patch: Any, expected: Any) -> None:
    assert merge(base, patch) == expected


@pytest.mark.parametrize(
    ("applied", "live", "expected"),
    [
        ({"cpu": "1000m"}, {"cpu": "1"}, False),
        ({"cpu": "0.5"}, {"cpu": "500m"}, False),
        ({"memory": "1Gi"}, {"memory": "1024Mi"}, False),
        ({"memory": "1Gi"}, {"memory": "1G"}, True),
        ({"a": {}}, {}, False),
        ({"a": []}, {}, False),
        ({"a": ""}, {}, False),
        ({"a": False}, {}, False),
        ({"a": 0}, {"a": 1}, True),
        ({"a": 1}, {}, True),
        ({"a": []}, {"a": [1]}, True),
        ({"replicas": 2}, {"replicas": 2, "paused": True}, False),
        ({"selector": {"a": "b"}}, {"selector": {"a": "b", "c": "d"}}, True),
        ({"labels": {"a": "b"}}, {"labels": {"a": "b", "c": "d"}}, False),
        ({"containers": [{"name": "a"}]}, {"containers": [{"name": "m"}, {"name": "a"}]}, False),
        ({"containers": [{"name": "a"}]}, {"containers": [{"name": "m"}]}, True),
        ({"rules": [{"verbs": ["get"]}]}, {"rules": [{"verbs": ["get"]}, {}]}, True),
        ({"finalizers": ["a"]}, {"finalizers": "a"}, True),
        ({"a": {"b": 1}}, {"a": 1}, True),
    ],
)
def test_drift(applied: object, live: object, expected: object) -> None:
    assert has_drifted(applied, live) is expected


def test_two_ports_of_a_service_are_two() -> None:
    ports = [{"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP"}]
    assert not has_drifted({"ports": ports}, {"ports": ports})
    assert has_drifted({"ports": ports}, {"ports": ports[:1]})
