"""The chart's values: each described, each of use, each guarded by the schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from tests.support.chart import render
from tests.support.kubernetes import KubectlError
from tests.support.node import CHART, Helm
from tools.chart import schema, value_leaves

LEAVES = dict(value_leaves())
DIGEST = f"sha256:{'a' * 64}"

# Another value for each, and what must hold for it to be of use.
OTHERS: Mapping[str, tuple[object, Mapping[str, object]]] = {
    "image.repository": ("other/image", {}),
    "image.tag": ("v9", {}),
    "image.digest": (DIGEST, {}),
    "image.pullPolicy": ("Always", {}),
    "simulatorImage.repository": ("other/image", {}),
    "simulatorImage.tag": ("v9", {}),
    "simulatorImage.digest": (DIGEST, {}),
    "imagePullSecrets": (["pull"], {}),
    "watchNamespaces": (["serving"], {}),
    "crds.install": (False, {}),
    "crds.keep": (False, {}),
    "replicas": (3, {}),
    "logLevel": ("debug", {}),
    "logFormat": ("console", {}),
    "runAsUser": ("any", {}),
    "resources": ({"requests": {"cpu": "1"}}, {}),
    "serviceAccount.create": (False, {"serviceAccount": {"name": "theirs"}}),
    "serviceAccount.name": ("theirs", {}),
    "serviceAccount.annotations": ({"a": "b"}, {}),
    "rbac.create": (False, {}),
    "rbac.aggregate": (True, {"watchNamespaces": ["serving"]}),
    "metrics.service.enabled": (False, {}),
    "metrics.service.port": (9999, {}),
    "metrics.podMonitor.enabled": (True, {}),
    "metrics.podMonitor.interval": ("5s", {"metrics": {"podMonitor": {"enabled": True}}}),
    "metrics.podMonitor.labels": ({"a": "b"}, {"metrics": {"podMonitor": {"enabled": True}}}),
    "priorityClassName": ("high", {}),
    "nodeSelector": ({"a": "b"}, {}),
    "tolerations": ([{"operator": "Exists"}], {}),
    "affinity": ({"nodeAffinity": {}}, {}),
    "topologySpreadConstraints": (
        [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
        {},
    ),
    "podAnnotations": ({"a": "b"}, {}),
    "podLabels": ({"a": "b"}, {}),
    "commonLabels": ({"a": "b"}, {}),
    "commonAnnotations": ({"a": "b"}, {}),
    "nameOverride": ("other", {}),
    "fullnameOverride": ("other", {}),
    "test.enabled": (False, {}),
    "test.timeoutSeconds": (99, {}),
}

# Values that can't be meant, and words of what Helm says of them.
BAD: tuple[tuple[str, object, str], ...] = (
    ("imgae", {}, "additional properties 'imgae' not allowed"),
    ("image.repo", "x", "additional properties 'repo' not allowed"),
    ("image.repository", "registry/image:tag@x", "does not match pattern"),
    ("image.repository", "", "does not match pattern"),
    ("image.tag", "no tag", "does not match pattern"),
    ("image.digest", "0123", "does not match pattern"),
    ("image.pullPolicy", "Sometimes", "'IfNotPresent', 'Always', 'Never'"),
    ("simulatorImage.repository", "UPPER", "does not match pattern"),
    ("simulatorImage.tag", "a:b", "does not match pattern"),
    ("simulatorImage.digest", "sha256:abc", "does not match pattern"),
    ("simulatorImage.pullPolicy", "Always", "additional properties 'pullPolicy' not allowed"),
    ("imagePullSecrets", [{"name": "pull"}], "got object, want string"),
    ("imagePullSecrets", ["Not A Name"], "does not match pattern"),
    ("watchNamespaces", "serving", "got string, want array"),
    ("watchNamespaces", ["Serving"], "does not match pattern"),
    ("watchNamespaces", ["a", "a"], "are equal"),
    ("crds.install", "yes", "want boolean"),
    ("crds.keep", 1, "want boolean"),
    ("replicas", -1, "minimum: got -1, want 0"),
    ("replicas", 6, "maximum: got 6, want 5"),
    ("replicas", "two", "want integer"),
    ("logLevel", "trace", "'debug', 'info', 'warning', 'error'"),
    ("logFormat", "xml", "'json', 'console'"),
    ("runAsUser", 0, "minimum: got 0, want 1"),
    ("runAsUser", "root", "does not match pattern"),
    ("resources", {"request": {}}, "additional properties 'request' not allowed"),
    ("resources", {"requests": "1"}, "want object"),
    ("serviceAccount.create", "no", "want boolean"),
    ("serviceAccount.name", "Mine", "does not match pattern"),
    ("serviceAccount.annotations", {"a": 1}, "want string"),
    ("rbac.create", "no", "want boolean"),
    ("rbac.aggregate", "no", "want boolean"),
    ("metrics.service.enabled", "no", "want boolean"),
    ("metrics.service.port", 0, "minimum: got 0, want 1"),
    ("metrics.service.port", 65536, "maximum: got 65,536, want 65,535"),
    ("metrics.podMonitor.enabled", "no", "want boolean"),
    ("metrics.podMonitor.interval", "5x", "does not match pattern"),
    ("metrics.podMonitor.labels", {"a": 1}, "want string"),
    ("priorityClassName", 1, "want string"),
    ("nodeSelector", {"a": True}, "want string"),
    ("tolerations", {"key": "a"}, "want array"),
    ("tolerations", ["a"], "want object"),
    ("affinity", [], "want object"),
    ("topologySpreadConstraints", [{"topologyKey": "a"}], "missing properties"),
    ("topologySpreadConstraints", {}, "want array"),
    ("podAnnotations", {"a": 1}, "want string"),
    ("podLabels", {"a": 1}, "want string"),
    ("podLabels", {"app.kubernetes.io/name": "x"}, "(the chart sets this key itself)"),
    ("commonLabels", {"a": None}, "want string"),
    ("commonLabels", {"app.kubernetes.io/version": "x"}, "(the chart sets this key itself)"),
    ("commonAnnotations", {"a": True}, "want string"),
    ("commonAnnotations", {"helm.sh/hook": "test"}, "(the chart sets this key itself)"),
    ("nameOverride", "9lives", "does not match pattern"),
    ("fullnameOverride", "a" * 41, "does not match pattern"),
    ("test.enabled", "no", "want boolean"),
    ("test.timeoutSeconds", 5, "minimum: got 5, want 10"),
    ("test.timeoutSeconds", 4000, "maximum: got 4,000, want 3,600"),
)


def nested(path: str, value: object) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def laid_over(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for key, value in more.items():
        below = both.get(key)
        is_merged = isinstance(below, dict) and isinstance(value, dict)
        both[key] = laid_over(below, value) if isinstance(below, dict) and is_merged else value
    return both


def test_every_value_has_a_description_and_a_default() -> None:
    assert len(LEAVES) > 35

    def check(node: Mapping[str, Any], path: str) -> None:
        if path:
            assert re.fullmatch(r"[A-Z`\"].*\.", node["description"]), path
        if path in LEAVES:
            assert "default" in node, path
        elif "properties" in node:
            assert node["additionalProperties"] is False, path
            for name, child in node["properties"].items():
                check(child, f"{path}.{name}" if path else name)

    check(schema(), "")


def test_the_values_file_has_the_schemas_defaults_and_words() -> None:
    text = (CHART / "values.yaml").read_text()
    written = yaml.safe_load(text)
    for path, leaf in LEAVES.items():
        found: Any = written
        for name in path.split("."):
            found = found[name]
        assert found == leaf["default"], path
    comments = " ".join(re.findall(r"(?m)^ *# (.*)$", text))
    for path, leaf in LEAVES.items():
        assert " ".join(leaf["description"].split()) in comments, path


def test_every_value_is_tried() -> None:
    # Helm hands it to every chart; ours does nothing with it.
    assert OTHERS.keys() == LEAVES.keys() - {"global"}
    guarded = {path for path, _, _ in BAD}
    assert LEAVES.keys() - {"global"} <= guarded


@pytest.fixture(scope="module")
def as_given() -> dict[str, list[dict[str, Any]]]:
    """What is rendered without the value in question, by the words that it needs."""
    return {}


@pytest.mark.parametrize("path", OTHERS)
def test_every_value_changes_something(
    helm4: Helm, path: str, as_given: dict[str, list[dict[str, Any]]]
) -> None:
    value, base = OTHERS[path]
    key = repr(base)
    if key not in as_given:
        as_given[key] = render(helm4, values=base)
    assert value != LEAVES[path]["default"]
    assert render(helm4, values=laid_over(base, nested(path, value))) != as_given[key]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    BAD,
    ids=[f"{path}-{number}" for number, (path, *_) in enumerate(BAD)],
)
def test_a_bad_value_is_refused_with_its_path(
    helm4: Helm, path: str, value: object, words: str
) -> None:
    with pytest.raises(KubectlError) as told:
        render(helm4, values=nested(path, value))
    message = str(told.value)
    assert words in message
    # Where an unknown name stands the message names its parent, and the name itself above.
    where = path if path in LEAVES else path.rpartition(".")[0]
    assert f"at '/{where.replace('.', '/')}" in message or not where


def test_both_helms_refuse_bad_values(helm: Helm) -> None:
    with pytest.raises(KubectlError, match="replicas"):
        render(helm, "--set", "replicas=-1")
    with pytest.raises(KubectlError, match="imgae"):
        render(helm, "--set", "imgae.tag=v1")


def test_a_namespace_from_a_template_is_checked_too(helm4: Helm) -> None:
    with pytest.raises(KubectlError, match=r'watchNamespaces: "A B" is no name of a namespace'):
        render(helm4, values={"watchNamespaces": ['{{ "A B" }}']})
