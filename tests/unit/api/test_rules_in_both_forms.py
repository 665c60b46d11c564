"""Each rule's CEL and its predicate say the same of the table's resources and of many more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cel import broken_messages, holds, with_defaults
from tests.support.resource_table import BAD, GOOD
from tests.support.resources import broken_by, resource

from pdcluster_api.crd import structural_schema
from pdcluster_api.v1alpha1 import PDCluster

SCHEMA: dict[str, Any] = structural_schema(PDCluster)
# The API server checks the root's rules with metadata, which the schema leaves open.


def broken_in_cel(document: Any) -> set[str]:
    return set(broken_messages(SCHEMA, with_defaults(SCHEMA, document)))


@pytest.mark.parametrize(
    ("expression", "node", "result"),
    [
        ("self.a == 1 && !(self.b > 2)", {"a": 1, "b": 2}, True),
        ("has(self.a.b) || self.c", {"a": {}, "c": False}, False),
        ("has(self.x.y)", {}, False),
        ("self.all(e, e.n in ['x', 'y'])", [{"n": "x"}, {"n": "z"}], False),
        ("self.exists(e, e.matches('^a([=.].*)?$'))", ["b", "a=1"], True),
        ("[self.a, 3].all(n, n + 1 <= 4)", {"a": 2}, True),
        ("int(self.r.split(':')[1]) * 2 - 7 / 2 == 5", {"r": "1:4"}, True),
        ("self.size() <= 3 && self.startsWith('ab')", "abc", True),
        ("(has(self.a) && self.a == 0) == false_", {}, None),
    ],
)
def test_the_evaluator_reads_cel(expression: str, node: object, *, result: bool | None) -> None:
    if result is None:
        with pytest.raises(KeyError):
            holds(expression, node)
    else:
        assert holds(expression, node) is result


@pytest.mark.parametrize("document", GOOD.values(), ids=GOOD)
def test_a_good_resource_breaks_no_rule_in_cel(document: Any) -> None:
    assert broken_in_cel(document) == set()


def _only_rules() -> dict[str, Any]:
    found = {}
    for title, (document, _) in BAD.items():
        rules, otherwise = broken_by(document)
        if rules and not otherwise:
            found[title] = document
    return found


@pytest.mark.parametrize("document", _only_rules().values(), ids=_only_rules())
def test_a_resource_that_breaks_rules_breaks_them_in_cel_too(document: Any) -> None:
    in_models, _ = broken_by(document)
    in_cel = broken_in_cel(document)
    # A model's rules are not asked while a part of it is rejected; the API server asks all.
    assert in_models <= in_cel
    assert in_cel


SMALL = st.integers(0, 12)
ROLES = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 3),
        "autoscaling": st.fixed_dictionaries(
            {"maxReplicas": st.integers(1, 4)}, optional={"minReplicas": st.integers(1, 4)}
        ),
        "nodes": st.integers(1, 2),
        "dataParallelSize": st.integers(1, 3),
        "startupTimeoutSeconds": st.sampled_from([10, 59, 60, 61]),
        "args": st.lists(
            st.sampled_from(["--model", "--x", "-tp", "--port=1", "--portx", "--config"]),
            max_size=2,
        ),
    },
)
RATIOS = st.sampled_from(["1:4", "2:1", "1:1", "3:1", "2:8"])
SPECS = st.fixed_dictionaries(
    {
        "model": st.just({"name": "m"}),
        "engine": st.fixed_dictionaries(
            {"image": st.just("i")}, optional={"port": st.sampled_from([5599, 5600, 5602, 8000])}
        ),
    },
    optional={
        "prefill": ROLES,
        "decode": ROLES,
        "kvTransfer": st.fixed_dictionaries(
            {},
            optional={
                "kvLeaseDurationSeconds": SMALL,
                "bidirectional": st.booleans(),
                "decoderKVBlocksTTLSeconds": SMALL,
                "kvRecomputeThreshold": SMALL,
                "sideChannelPort": st.sampled_from([5600, 65534, 65535]),
            },
        ),
        "proxy": st.fixed_dictionaries(
            {},
            optional={
                "leaseKeeper": st.booleans(),
                "handOffDeadlineSeconds": st.integers(1, 12),
                "maxHoldSeconds": st.integers(6, 40),
            },
        ),
        "rollout": st.fixed_dictionaries(
            {},
            optional={
                "maxSurge": st.integers(0, 1),
                "maxUnavailable": st.integers(0, 1),
                "progressDeadlineSeconds": st.sampled_from([60, 61, 1801]),
            },
        ),
        "ratio": st.fixed_dictionaries(
            {}, optional={"minPrefillPerDecode": RATIOS, "maxPrefillPerDecode": RATIOS}
        ),
    },
)
NAMES = st.sampled_from(["a", "a" * 30, "a" * 31, "a" * 40, "a" * 41, "1a", "a-", "a.b"])


@given(spec=SPECS, name=NAMES)
def test_models_and_cel_agree_on_any_resource(spec: dict[str, Any], name: str) -> None:
    document = resource(spec, name=name)
    in_models, otherwise = broken_by(document)
    in_cel = broken_in_cel(document)
    assert not otherwise
    assert in_models <= in_cel
    assert bool(in_models) == bool(in_cel)
