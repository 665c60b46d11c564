from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, Field

from pdcluster_api import rules
from pdcluster_api.conditions import ConditionType
from pdcluster_api.crd import CRD_FILES, pdcluster_crd, pdpool_crd, render_files, structural_schema
from pdcluster_api.rules import Rule
from pdcluster_api.v1alpha1 import PDCluster

Node = dict[str, object]
CRDS = {"PDCluster": pdcluster_crd(), "PDPool": pdpool_crd()}


def version_of(crd: Node) -> Node:
    spec = crd["spec"]
    assert isinstance(spec, dict)
    [version] = spec["versions"]
    assert isinstance(version, dict)
    return version


def schema_of(crd: Node) -> Node:
    schema = version_of(crd)["schema"]
    assert isinstance(schema, dict)
    root = schema["openAPIV3Schema"]
    assert isinstance(root, dict)
    return root


def nodes(node: object, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yield every schema node, with its path."""
    assert isinstance(node, dict)
    yield path, node
    properties = node.get("properties")
    if isinstance(properties, Mapping):
        for name, child in properties.items():
            yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from nodes(node[key], f"{path}[]")


ALL_NODES = [
    (f"{kind}{path}", path, node)
    for kind, crd in CRDS.items()
    for path, node in nodes(schema_of(crd))
]


def offenders(is_well: Callable[[str, Node], bool]) -> list[str]:
    """Return the nodes that are not well; hundreds of test cases would only be slow."""
    return [title for title, path, node in ALL_NODES if not is_well(path, node)]


def test_there_are_nodes_to_look_at() -> None:
    assert len(ALL_NODES) > 200


def test_every_node_is_structural() -> None:
    forbidden = {"$ref", "$defs", "oneOf", "allOf", "not", "const", "title", "nullable"}

    def is_structural(_path: str, node: Node) -> bool:
        typed = (
            node.get("x-kubernetes-int-or-string") is True
            if "anyOf" in node
            else isinstance(node["type"], str)
        )
        closed = not isinstance(node.get("additionalProperties"), bool)
        return typed and closed and not forbidden & node.keys()

    assert offenders(is_structural) == []


def test_no_node_holds_a_null_or_defaults_to_nothing() -> None:
    def is_something(_path: str, node: Node) -> bool:
        default = node.get("default", "something")
        return default not in (None, [], {}) and "null" not in yaml.safe_dump(default)

    assert offenders(is_something) == []


def test_every_field_is_described_and_has_a_default_or_an_example() -> None:
    owned_by_kubernetes = {"", ".apiVersion", ".kind", ".metadata"}

    def is_described(path: str, node: Node) -> bool:
        if path in owned_by_kubernetes or path.endswith("[]"):
            return True
        description = node["description"]
        assert isinstance(description, str)
        is_leaf = node.get("type") not in {"object", "array"}
        shown = "default" in node or "Example" in description or "Default" in description
        well_written = "\n" not in description and description.endswith(".")
        return well_written and (shown or not is_leaf)

    assert offenders(is_described) == []


def test_whatever_a_rule_walks_is_bounded() -> None:
    def is_bounded(path: str, node: Node) -> bool:
        if not path.startswith(".spec"):
            return True
        bounds = {"array": "maxItems", "string": "maxLength"}
        bound = bounds.get(str(node.get("type")))
        if isinstance(node.get("additionalProperties"), dict):
            bound = "maxProperties"
        return bound is None or bound in node or "enum" in node

    assert offenders(is_bounded) == []


def test_every_integer_has_a_format_and_in_the_spec_bounds() -> None:
    def is_sized(path: str, node: Node) -> bool:
        if node.get("type") != "integer":
            return True
        bounded = {"minimum", "maximum"} <= node.keys() or not path.startswith(".spec")
        return bounded and node["format"] in {"int32", "int64"}

    assert offenders(is_sized) == []


def test_a_default_spells_out_its_childrens() -> None:
    """Rules see a parent's default before its children's are filled in."""

    def is_spelt_out(_path: str, node: Node) -> bool:
        properties, default = node.get("properties"), node.get("default")
        if not isinstance(properties, dict) or not isinstance(default, dict):
            return True
        return default == {
            name: child["default"] for name, child in properties.items() if "default" in child
        }

    # The status' conditions are the one list that is a default.
    assert offenders(is_spelt_out) == []


def test_a_node_with_defaulted_children_has_a_default_itself_or_is_required() -> None:
    for path, node in nodes(schema_of(CRDS["PDCluster"])):
        properties = node.get("properties")
        if not isinstance(properties, dict):
            continue
        required = node.get("required", [])
        assert isinstance(required, list)
        for name, child in properties.items():
            children = child.get("properties", {})
            defaulted = any("default" in grandchild for grandchild in children.values())
            optional_object = f"{path}.{name}".endswith((".cache", ".autoscaling"))
            if defaulted and name not in required and not optional_object:
                assert "default" in child, f"{path}.{name}"


def rendered_rules(crd: Node) -> Iterator[Mapping[str, str]]:
    for _, node in nodes(schema_of(crd)):
        validations = node.get("x-kubernetes-validations", [])
        assert isinstance(validations, list)
        yield from validations


def test_the_crd_states_exactly_the_rules_of_the_table() -> None:
    table: set[str] = {rules.IMMUTABLE.cel}
    for name, rows in vars(rules).items():
        if name.endswith("_RULES"):
            table |= {row.cel for row in rows if isinstance(row, Rule)}
    assert table == {rule["rule"] for rule in rendered_rules(CRDS["PDCluster"])}


def test_every_field_path_of_a_rule_exists() -> None:
    for path, node in nodes(schema_of(CRDS["PDCluster"])):
        validations = node.get("x-kubernetes-validations", [])
        assert isinstance(validations, list)
        for validation in validations:
            below: object = node
            for step in validation.get("fieldPath", "").split(".")[1:]:
                assert isinstance(below, dict)
                assert step in below["properties"], f"{path}: {validation}"
                below = below["properties"][step]


def test_fields_that_rules_ask_for_have_no_default() -> None:
    found = dict(nodes(schema_of(CRDS["PDCluster"])))
    for path in (
        ".spec.prefill.replicas",
        ".spec.decode.replicas",
        ".spec.kvTransfer.decoderKVBlocksTTLSeconds",
        ".spec.kvTransfer.kvRecomputeThreshold",
    ):
        assert "default" not in found[path]


def test_the_names_are_as_decided() -> None:
    spec = CRDS["PDCluster"]["spec"]
    assert isinstance(spec, dict)
    assert spec["group"] == "pdcluster.io"
    assert spec["scope"] == "Namespaced"
    assert spec["names"]["plural"] == "pdclusters"
    assert spec["names"]["shortNames"] == ["pdc"]
    assert "categories" not in spec["names"]
    assert version_of(CRDS["PDCluster"])["name"] == "v1alpha1"


def test_only_model_and_engine_are_required() -> None:
    found = dict(nodes(schema_of(CRDS["PDCluster"])))
    assert found[".spec"]["required"] == ["model", "engine"]
    assert found[".spec.model"]["required"] == ["name"]
    assert found[".spec.engine"]["required"] == ["image"]


def test_an_untouched_resource_waits_for_an_operator() -> None:
    found = dict(nodes(schema_of(CRDS["PDCluster"])))
    default = found[".status"]["default"]
    assert isinstance(default, dict)
    [condition] = default["conditions"]
    assert condition["type"] == ConditionType.READY
    assert (condition["status"], condition["reason"]) == ("Unknown", "WaitingForOperator")


def test_unknown_fields_are_kept_in_pod_templates_and_nowhere_else() -> None:
    keeping = {
        path
        for path, node in nodes(schema_of(CRDS["PDCluster"]))
        if node.get("x-kubernetes-preserve-unknown-fields")
    }
    template = ".spec.{role}.podTemplate"
    expected = {
        path.format(role=role)
        for role in ("prefill", "decode")
        for path in (
            template,
            template + ".spec",
            template + ".spec.containers[]",
            template + ".spec.containers[].env[]",
        )
    }
    assert keeping == expected | {
        ".spec.kvTransfer.extraConnectors[]",
        ".spec.networkPolicy.clientsFrom[]",
        ".spec.networkPolicy.metricsFrom[]",
    }


def test_lists_that_are_merged_have_their_key() -> None:
    merged = {
        path: node["x-kubernetes-list-map-keys"]
        for path, node in nodes(schema_of(CRDS["PDCluster"]))
        if node.get("x-kubernetes-list-type") == "map"
    }
    assert merged[".spec.engine.env"] == ["name"]
    assert merged[".status.conditions"] == ["type"]
    for path, keys in merged.items():
        items = dict(nodes(schema_of(CRDS["PDCluster"])))[f"{path}[]"]
        required = items["required"]
        assert isinstance(required, list)
        assert set(keys) <= set(required), path


def test_printer_columns_read_paths_that_exist() -> None:
    found = dict(nodes(schema_of(CRDS["PDCluster"])))
    columns = version_of(CRDS["PDCluster"])["additionalPrinterColumns"]
    assert isinstance(columns, list)
    assert [column["name"] for column in columns if "priority" not in column] == [
        "Model",
        "Prefill",
        "Decode",
        "Ready",
        "Reason",
        "Age",
    ]
    for column in columns:
        path = column["jsonPath"]
        if "[?(" not in path and not path.startswith(".metadata"):
            assert path in found


def test_a_pool_can_be_scaled() -> None:
    subresources = version_of(CRDS["PDPool"])["subresources"]
    assert isinstance(subresources, dict)
    scale = subresources["scale"]
    found = dict(nodes(schema_of(CRDS["PDPool"])))
    assert set(scale.values()) <= found.keys()
    assert found[".spec"]["required"] == ["clusterName", "role", "replicas"]


def test_what_names_a_pool_cannot_be_changed() -> None:
    found = dict(nodes(schema_of(CRDS["PDPool"])))
    for path in (".spec.clusterName", ".spec.role"):
        assert found[path]["x-kubernetes-validations"]
    assert "x-kubernetes-validations" not in found[".spec.replicas"]


def test_the_files_in_the_tree_are_what_the_models_say() -> None:
    folder = Path(__file__).parents[3] / "crds"
    for name, text in render_files().items():
        assert (folder / name).read_text(encoding="utf-8") == text, "run `make generate`"
    assert {path.name for path in folder.glob("*.yaml")} == set(CRD_FILES)


def test_the_files_hold_no_aliases_and_begin_with_a_warning() -> None:
    for text in render_files().values():
        assert text.startswith("# Rendered from the models")
        assert not any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text))
        assert yaml.safe_load(text)["kind"] == "CustomResourceDefinition"


class Inner(BaseModel):
    """The inner."""

    size: int = 3
    unset: int | None = None


class Outer(BaseModel):
    """The outer."""

    apiVersion: str  # noqa: N815
    kind: Literal["Outer"]
    metadata: dict[str, str]
    inner: Inner = Inner()
    maybe: Inner | None = None
    word: Annotated[str, Field(max_length=3)] | None = None
    empty: tuple[str, ...] = ()
    only: Literal["x"] = "x"


def test_references_are_filled_in_and_nulls_taken_out() -> None:
    properties = structural_schema(Outer)["properties"]
    inner = {
        "type": "object",
        "description": "The inner.",
        "properties": {
            "size": {"type": "integer", "format": "int32", "default": 3},
            "unset": {"type": "integer", "format": "int32"},
        },
    }
    assert properties == {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "inner": inner | {"default": {"size": 3}},
        "maybe": inner,
        "word": {"type": "string", "maxLength": 3},
        "empty": {"type": "array", "items": {"type": "string"}},
        "only": {"type": "string", "default": "x", "enum": ["x"]},
    }


def test_rendering_twice_gives_the_same() -> None:
    assert structural_schema(PDCluster) == structural_schema(PDCluster)
    assert render_files() == render_files()
