"""Every command that a page shows exists: verbs, options, values, files, fields, labels."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from tests.support.kubernetes_world import World, resource
from tests.support.pages import PAGES, ROOT, blocks, commands

from pdcluster_api.conditions import (
    ConditionType,
    ConfigInvalidReason,
    InitialReason,
    Reason,
    TroubleReason,
)
from pdcluster_api.crd import pdcluster_crd, pdpool_crd
from pdcluster_api.loading import load_cluster
from pdcluster_cli.kubectl.verbs import app as kubectl_app
from pdcluster_cli.verbs import app as pdcluster_app
from pdcluster_operator.manifests.labels import PAUSED_ANNOTATION

CHART = ROOT / "charts" / "pdcluster"
HELM_VERBS = {
    *("get", "history", "install", "list", "lint", "rollback", "status", "template", "test"),
    *("uninstall", "upgrade"),
}
KUBECTL_VERBS = {
    *("annotate", "api-resources", "apply", "auth", "config", "create", "delete", "describe"),
    *("drain", "exec", "explain", "get", "label", "logs", "patch", "plugin", "port-forward"),
    *("rollout", "run", "scale", "set", "wait"),
}


def named(*programs: str) -> list[Any]:
    """Commands as parameters of a test."""
    return [
        pytest.param(page, words, id=f"{page.relative_to(ROOT)}: {' '.join(words)}"[:120])
        for page, words in commands(*programs)
    ]


@cache
def options_of(app: Any, verb: str) -> frozenset[str] | None:
    """Options of a verb; None where there is no such verb."""
    group = typer.main.get_command(app)
    verbs: dict[str, Any] = getattr(group, "commands", {})
    if verb not in verbs:
        return None
    named_options = {option for each in verbs[verb].params for option in each.opts}
    return frozenset({*named_options, "--help", "-h"})


def check_verb(app: Any, words: list[str]) -> None:
    if not words or words[0].startswith("-"):
        assert set(words) <= {"--help", "-h", "--version"}
        return
    options = options_of(app, words[0])
    assert options is not None, f"no verb {words[0]}"
    for word in words[1:]:
        # A negative number is a value.
        if word.startswith("-") and not re.fullmatch(r"-\d+", word):
            assert word.split("=")[0] in options, f"no option {word}"


@pytest.mark.parametrize(("page", "words"), named("pdcluster"))
def test_each_pdcluster_command_exists(page: Path, words: list[str]) -> None:
    check_verb(pdcluster_app, words[1:])


@pytest.mark.parametrize(("page", "words"), named("kubectl"))
def test_each_kubectl_command_exists(page: Path, words: list[str]) -> None:
    rest = words[1:]
    while rest and rest[0] in {"-n", "--namespace"}:
        rest = rest[2:]
    assert rest, words
    if rest[0] == "pdcluster":
        check_verb(kubectl_app, rest[1:])
        return
    assert rest[0] in KUBECTL_VERBS
    if rest[0] == "explain" and rest[1].partition(".")[0] in {"pdcluster", "pdpool"}:
        assert field_exists(rest[1])
    for word in rest[1:]:
        if word.startswith(("--patch=", "{")):
            kind = rest[1].partition("/")[0]
            if kind in {"pdcluster", "pdc"}:
                for path in paths_of(json.loads(word.removeprefix("--patch="))):
                    assert field_exists(f"pdcluster.{path}"), path


def field_exists(path: str) -> bool:
    kind, *steps = path.split(".")
    crd: Any = pdcluster_crd() if kind == "pdcluster" else pdpool_crd()
    node = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for step in steps:
        node = node.get("items", node).get("properties", {}).get(step)
        if node is None:
            return False
    return True


def paths_of(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths_of(inner, f"{path}.{key}" if path else key)
    else:
        yield path


def value_exists(key: str) -> bool:
    """Whether the chart's schema has a value of that dotted name."""
    node = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    for step in key.split("."):
        fields = node.get("properties", {})
        if step not in fields:
            # A map of the user's own keys, such as nodeSelector.
            return node.get("type") == "object" and not fields
        node = fields[step]
    return True


@pytest.mark.parametrize(("page", "words"), named("helm", "helm3", "helm4"))
def test_each_helm_command_names_what_the_chart_has(page: Path, words: list[str]) -> None:
    if len(words) == 1:
        return
    assert words[1] in HELM_VERBS
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert isinstance(values, dict)
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word in {"--set", "--set-string"}:
            assert value_exists(after.partition("=")[0]), after
        if word == "--values":
            folder = ROOT if after.startswith("charts/") else page.parent
            assert (folder / after).is_file(), after
        if word.startswith("charts/"):
            assert (ROOT / word / "Chart.yaml").is_file() or (ROOT / word).is_file(), word


VALUES_IN_TEXT = re.compile(
    r"`((?:crds|image|rbac|metrics|serviceAccount|simulatorImage|test)\.(?!yaml)\w+)"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_values_that_a_text_names_are_in_the_chart(page: Path) -> None:
    for key in VALUES_IN_TEXT.findall(page.read_text(encoding="utf-8")):
        assert value_exists(key), key


@pytest.mark.parametrize(("page", "words"), [each for each in named() if "-m" in each.values[1]])
def test_each_module_that_is_run_exists(page: Path, words: list[str]) -> None:
    if Path(words[0]).name not in {"python", "python3"}:
        return
    module = words[words.index("-m") + 1]
    roots = (ROOT, *(ROOT / each for each in ("crds", "operator", "proxy", "simulator", "cli")))
    assert any(
        (root / module.replace(".", "/")).with_suffix(".py").is_file()
        or (root / module.replace(".", "/") / "__main__.py").is_file()
        for root in roots
    ), module


FILES = re.compile(r"(?<![\w/.-])((?:examples|charts|locks|tools)/[\w./-]+\.\w+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    for name in FILES.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists() or (page.parent / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_pdcluster_in_a_page_is_a_valid_one(page: Path) -> None:
    for language, text in blocks(page):
        if language != "yaml":
            continue
        document = yaml.safe_load(text)
        assert isinstance(document, dict), text
        if document.get("kind") == "PDCluster":
            load_cluster(text, source=page.name)


# --- conditions --------------------------------------------------------------------------------

REASONS = {
    each.value
    for kind in (InitialReason, ConfigInvalidReason, TroubleReason, Reason)
    for each in kind
}
NEEDS_A_PERSON = {
    *(each.value for each in (*ConfigInvalidReason, *TroubleReason)),
    *("EnginesStarting", "WaitingForEngines", "NoPair", "NoProxy", "GraceTooShort"),
    *("TooFewPrefill", "TooManyPrefill", "Paused"),
}


def test_troubleshooting_has_a_section_for_each_reason_that_needs_a_person() -> None:
    page = (ROOT / "docs" / "kubernetes" / "troubleshooting.md").read_text(encoding="utf-8")
    by_reason = page.partition("## By reason")[2]
    headings = re.findall(r"^### (.+)$", by_reason, re.MULTILINE)
    told = {name for heading in headings for name in re.findall(r"`(\w+)`", heading)}
    assert told == NEEDS_A_PERSON


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_conditions_and_reasons_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`([A-Z]\w+)=(?:True|False|Unknown)`", text):
        assert name in {each.value for each in ConditionType}, name
    for name in re.findall(r"reason `([A-Z]\w+)`", text):
        assert name in REASONS, name


# --- labels ------------------------------------------------------------------------------------


def test_the_page_of_labels_has_exactly_those_of_a_cluster_s_objects() -> None:
    world = World(resource())
    world.settle()
    metadata = [each["metadata"] for each in world.objects.values()]
    metadata += [
        each["spec"]["template"]["metadata"]
        for (kind, _), each in world.objects.items()
        if kind == "Deployment"
    ]
    labels = {key for each in metadata for key in each.get("labels", {})}
    annotations = {key for each in metadata for key in each.get("annotations", {})}
    page = (ROOT / "docs" / "kubernetes" / "labels.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w./-]+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted({*labels, *annotations, PAUSED_ANNOTATION})


def test_the_page_of_configuration_names_every_object_of_a_cluster() -> None:
    world = World(resource())
    world.settle()
    page = (ROOT / "docs" / "kubernetes" / "configuration.md").read_text(encoding="utf-8")
    told = set()
    for kinds, names in re.findall(
        r"^\| ([A-Z]\w+(?:, \w+)*) \| (`NAME[^|]*) \|", page, re.MULTILINE
    ):
        for kind in kinds.split(", "):
            for name in re.findall(r"`([^`]+)`", names):
                told.add((kind, name))
    revision = world.cluster["status"]["revision"]["current"]
    made = set()
    for kind, name in world.objects:
        plain = name.replace("qwen", "NAME").replace(revision, "REVISION")
        if kind == "ControllerRevision":
            plain = re.sub(
                r"^NAME-(prefill|decode)-REVISION-\w+$", "NAME-ROLE-REVISION-HASH", plain
            )
        made.add((kind, plain))
    assert told == made


# --- the checks themselves ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (test_each_pdcluster_command_exists, ["pdcluster", "fly"]),
        (test_each_pdcluster_command_exists, ["pdcluster", "render", "--no-such"]),
        (test_each_kubectl_command_exists, ["kubectl", "pdcluster", "logs", "NAME", "--roles"]),
        (test_each_kubectl_command_exists, ["kubectl", "explain", "pdcluster.spec.nothing"]),
        (
            test_each_kubectl_command_exists,
            ["kubectl", "patch", "pdcluster", "a", "-p", '{"spec":{"kvTransfer":{"lease":1}}}'],
        ),
        (test_each_helm_command_names_what_the_chart_has, ["helm", "up"]),
        (
            test_each_helm_command_names_what_the_chart_has,
            ["helm", "install", "x", "--set", "crds.installed=false"],
        ),
        (
            test_each_helm_command_names_what_the_chart_has,
            ["helm", "install", "x", "--values", "charts/pdcluster/presets/none.yaml"],
        ),
        (test_each_module_that_is_run_exists, ["python", "-m", "tools.nothing"]),
    ],
)
def test_a_command_that_does_not_exist_is_noticed(check: Any, words: list[str]) -> None:
    with pytest.raises(AssertionError):
        check(ROOT / "README.md", words)


def test_there_are_commands_to_check() -> None:
    assert len(named("kubectl")) > 60
    assert len(named("helm")) > 15
    assert len(named("pdcluster")) > 10


def test_the_operator_s_help_can_be_asked_for() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pdcluster_operator", "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert "--run-as-user" in ended.stdout
