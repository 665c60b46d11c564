from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.resources import resource, text_of

from pdcluster_api.findings import FORMS
from pdcluster_api.loading import load_cluster
from pdcluster_api.problems import Problem, ResourceError, format_path
from pdcluster_api.v1alpha1 import PDClusterSpec

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "serving"}}


def rejection(text: str) -> ResourceError:
    with pytest.raises(ResourceError) as caught:
        load_cluster(text, source="my.yaml")
    return caught.value


def test_one_cluster_is_loaded() -> None:
    loaded = load_cluster(text_of(resource(name="qwen")), source="my.yaml")
    assert loaded.cluster.metadata.name == "qwen"
    assert loaded.skipped == ()


def test_documents_of_other_kinds_are_skipped_and_named() -> None:
    pool = {"apiVersion": "pdcluster.io/v1alpha1", "kind": "PDPool", "metadata": {"name": "x"}}
    loaded = load_cluster(text_of(NAMESPACE, resource(), pool), source="my.yaml")
    assert loaded.skipped == ("Namespace", "PDPool")


def test_empty_documents_do_not_count() -> None:
    text = "---\n---\n" + text_of(resource()) + "---\n# only a comment\n"
    assert load_cluster(text, source="my.yaml").cluster.metadata.name == "qwen"


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n---\n", "~\n"])
def test_an_empty_file_is_rejected_with_where_to_begin(text: str) -> None:
    error = rejection(text)
    assert "my.yaml: is empty; write a PDCluster into it" in str(error)
    assert "examples/01-minimal" in str(error)


def test_a_file_without_cluster_says_what_it_holds_instead() -> None:
    assert "holds no PDCluster, only Namespace" in str(rejection(text_of(NAMESPACE)))


def test_a_second_cluster_is_rejected_by_name_and_line() -> None:
    error = rejection(text_of(resource(name="one"), resource(name="two")))
    assert "holds 2 resources of kind PDCluster (one, two)" in str(error)
    assert error.problems[0].line is not None


@pytest.mark.parametrize("kind", ["PdCluster", "pdcluster", "PDClusters", "PDCLuster", "DPCluster"])
def test_a_misspelt_kind_is_rejected_with_a_suggestion(kind: str) -> None:
    error = rejection(text_of(resource() | {"kind": kind}))
    assert f"my.yaml:2: kind: {kind}: " in str(error)
    assert "did you mean PDCluster?" in str(error)


def test_an_unknown_kind_of_our_group_is_rejected() -> None:
    document = {"apiVersion": "pdcluster.io/v1alpha1", "kind": "Widget", "metadata": {"name": "x"}}
    assert "is not a kind of pdcluster.io" in str(rejection(text_of(resource(), document)))


def test_another_version_of_the_kind_is_rejected() -> None:
    error = rejection(text_of(resource() | {"apiVersion": "pdcluster.io/v1"}))
    assert "my.yaml:1: apiVersion: pdcluster.io/v1: must be pdcluster.io/v1alpha1" == str(error)


@pytest.mark.parametrize("missing", ["apiVersion", "kind"])
def test_a_document_without_kind_or_version_is_rejected(missing: str) -> None:
    document = resource()
    del document[missing]
    assert "begin it with apiVersion: pdcluster.io/v1alpha1" in str(rejection(text_of(document)))


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "17\n"])
def test_a_document_that_is_no_mapping_is_rejected(text: str) -> None:
    assert "my.yaml:1: is not a resource" in str(rejection(text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [1\n", "is not YAML"),
        ("a: b: c\n", "is not YAML"),
        ("\tkind: x\n", "is not YAML"),
        ("a: *nobody\n", "is not YAML"),
        ("a: !!python/object:os.system x\n", "is not YAML"),
        ("a: \x07\n", "is not YAML"),
    ],
)
def test_broken_yaml_is_rejected_with_its_line(text: str, told: str) -> None:
    assert told in str(rejection(text))


def test_every_problem_is_told_at_once_with_its_line() -> None:
    text = (
        "apiVersion: pdcluster.io/v1alpha1\n"  # 1
        "kind: PDCluster\n"  # 2
        "metadata: {name: qwen}\n"  # 3
        "spec:\n"  # 4
        "  model: {name: m}\n"  # 5
        "  engine: {imag: x}\n"  # 6
        "  prefill:\n"  # 7
        "    replicas: two\n"  # 8
        "  kvTransfer:\n"  # 9
        "    kvLeaseDurationSeconds: 4\n"  # 10
    )
    found = [(format_path(problem.path), problem.line) for problem in rejection(text).problems]
    assert found == [
        ("spec.engine.image", 6),
        ("spec.engine.imag", 6),
        ("spec.prefill.replicas", 8),
        ("spec.kvTransfer.kvLeaseDurationSeconds", 10),
    ]


def test_problems_stand_in_the_order_of_the_file_not_of_the_schema() -> None:
    text = text_of(
        {
            "apiVersion": "pdcluster.io/v1alpha1",
            "kind": "PDCluster",
            "metadata": {"name": "qwen"},
            "spec": {
                "ratio": {"minPrefillPerDecode": "1/4"},
                "decode": {"replicas": "two"},
                "prefill": {"replicas": "two"},
                "engine": {"image": 3},
                "model": {"name": "m"},
            },
        }
    )
    error = rejection(text)
    assert [format_path(problem.path) for problem in error.problems] == [
        "spec.ratio.minPrefillPerDecode",
        "spec.decode.replicas",
        "spec.prefill.replicas",
        "spec.engine.image",
    ]
    lines = [int(line.split(":")[1]) for line in str(error).splitlines()]
    assert lines == sorted(lines)


def test_a_wrong_item_is_not_told_as_a_missing_one_too() -> None:
    [problem] = rejection(text_of(resource(kvTransfer={"backends": ["ucx"]}))).problems
    assert format_path(problem.path) == "spec.kvTransfer.backends[0]"


def test_every_pattern_of_the_spec_is_told_in_words_with_an_example() -> None:
    def patterns(node: object) -> Iterator[str]:
        if isinstance(node, dict):
            # A quantity has a message of its own.
            if isinstance(node.get("pattern"), str) and "anyOf" not in node:
                yield node["pattern"]
            node = list(node.values())
        if isinstance(node, list):
            for inner in node:
                yield from patterns(inner)

    assert set(FORMS) == set(patterns(PDClusterSpec.model_json_schema()))
    assert all("like " in words for words in FORMS.values())


def test_a_rule_between_fields_points_to_the_field_even_where_it_is_not_in_the_file() -> None:
    error = rejection(text_of(resource(prefill={"replicas": 0})))
    problem = error.problems[0]
    assert problem.path == ("spec", "decode", "replicas")
    assert problem.value is None
    assert problem.line is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"prefill": {"autoscaling": {"maxReplicas": 3}}},
        {"decode": {"autoscaling": {"maxReplicas": 3}}},
        {"prefill": {"tensorParallelSize": 2}},
        {"decode": {"tensorParallelSize": 2}},
        {"prefill": {"pipelineParallelSize": 2}},
        {"decode": {"pipelineParallelSize": 2}},
        {"prefill": {"dataParallelSize": 2}},
        {"decode": {"dataParallelSize": 2}},
        {"prefill": {"nodes": 2}},
        {"decode": {"nodes": 2}},
        {"kvTransfer": {"bidirectional": True}},
        {"kvTransfer": {"extraConnectors": [{"kv_connector": "OffloadingConnector"}]}},
        {"proxy": {"policy": {"prefill": "PrefixAffinity"}}},
    ],
    ids=str,
)
def test_what_no_program_honours_yet_is_rejected_by_path(fields: dict[str, object]) -> None:
    error = rejection(text_of(resource(**fields)))
    [problem] = error.problems
    assert problem.message.startswith("not yet supported; ")
    assert problem.line is not None
    node: object = fields
    for step in problem.path[1:]:
        assert isinstance(node, dict)
        assert step in node
        node = node[step]


def test_writing_a_default_of_an_unsupported_field_is_accepted() -> None:
    load_cluster(
        text_of(
            resource(
                kvTransfer={"bidirectional": False, "extraConnectors": []},
                prefill={"tensorParallelSize": 1, "nodes": 1},
            )
        ),
        source="my.yaml",
    )


def test_what_an_api_server_has_filled_in_is_not_held_against_its_owner() -> None:
    stored = resource(proxy={"policy": {"prefill": "PrefixAffinity"}}, prefill={"nodes": 2})
    stored["metadata"] |= {"uid": "3e3b1a0c", "resourceVersion": "7"}
    [problem] = rejection(text_of(stored)).problems
    assert problem.path == ("spec", "prefill", "nodes"), "what nobody fills in was written"


def test_a_long_value_is_cut_in_the_message() -> None:
    problem = Problem(path=("spec", "x"), value="y" * 500, message="is long")
    assert len(str(problem)) < 120
    assert str(problem).endswith("...: is long")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("spec",), "spec"),
        (("spec", "prefill", "args", 0), "spec.prefill.args[0]"),
        (("a", 1, "b"), "a[1].b"),
    ],
)
def test_paths_are_written_as_people_do(path: tuple[str | int, ...], text: str) -> None:
    assert text == format_path(path)


def told_of(text: str) -> list[str] | None:
    """Return what is told of a rejected text; None where it is accepted."""
    try:
        load_cluster(text, source="my.yaml")
    except ResourceError as error:
        return [problem.message for problem in error.problems]
    return None


@given(st.text())
def test_no_text_whatever_ends_in_anything_but_a_rejection(text: str) -> None:
    told = told_of(text)
    assert told is None or told


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
NODES = st.sampled_from(
    ["model", "engine", "prefill", "decode", "kvTransfer", "proxy", "drain", "rollout", "ratio"]
)


@given(node=NODES, value=JSON_VALUES)
def test_no_value_whatever_at_a_node_ends_in_anything_but_a_rejection(
    node: str, value: object
) -> None:
    told = told_of(text_of(resource(**{node: value})))
    assert told is None or all(told)
