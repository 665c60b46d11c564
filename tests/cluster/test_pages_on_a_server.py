"""What the pages show, tried on a real API server: their objects, and the commands that look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.kubernetes.foreign_crds import Project, crd_files

from tests.support.kubernetes import Kubectl, KubectlError
from tests.support.operator_rig import OperatorRig
from tests.support.pages import PAGES, ROOT, blocks, commands

pytestmark = pytest.mark.cluster

LOOKS = {"get", "describe", "explain", "api-resources"}
CHANGES = {"scale", "annotate", "patch"}
OF_THE_CHART = {"pdcluster-system", "first"}
"""Words of commands about what the chart installs, or about another page's own example."""


def objects() -> list[Any]:
    return [
        pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}")
        for page in PAGES
        for number, (language, text) in enumerate(blocks(page))
        if language == "yaml"
    ]


@pytest.fixture(scope="module")
def routes(kubectl: Kubectl) -> Iterator[None]:
    """The Gateway API's own word on what an HTTPRoute is."""
    (path,) = (each for each in crd_files(Project.GATEWAY_API) if "_httproutes" in each.name)
    kubectl("apply", "--server-side", "-f", str(path))
    kubectl.wait_established("httproutes.gateway.networking.k8s.io")
    yield
    kubectl("delete", "-f", str(path))


@pytest.mark.parametrize("text", objects())
def test_each_object_of_a_page_is_accepted(
    kubectl: Kubectl, namespace: str, routes: None, text: str
) -> None:
    kubectl.apply(yaml.safe_load(text), namespace=namespace, dry_run=True)


def filled(words: list[str], namespace: str) -> list[str]:
    """The words with what stands for a name replaced."""
    names = {
        "NAMESPACE": namespace,
        "NAME": "qwen",
        "ROLE": "prefill",
        "NUMBER": "3",
    }
    done = []
    for word in words[1:]:
        # Columns of kubectl's own have headings.
        if not word.startswith("custom-columns"):
            for name, value in names.items():
                word = word.replace(name, value)  # noqa: PLW2901 - one after the other
        done.append(word)
    return done


@pytest.fixture
def served(rig: OperatorRig) -> OperatorRig:
    rig.apply()
    rig.wait_ready()
    return rig


def is_tried(page: Path, words: list[str]) -> bool:
    if len(words) < 3 or words[1] not in LOOKS | CHANGES:
        return False
    if words[1] == "scale" and not any(word.startswith("--replicas") for word in words):
        return False  # The name of a right, in a table.
    is_of_an_example = page.parent.parent.name == "examples" or "FILE" in words
    return not is_of_an_example and not any(mark in " ".join(words) for mark in OF_THE_CHART)


def test_each_command_that_looks_or_changes_runs(served: OperatorRig) -> None:
    tried, failed = 0, []
    for page, words in commands("kubectl"):
        if not is_tried(page, words):
            continue
        shown = f"{page.name}: {' '.join(words)}"
        try:
            said = served.kubectl(*filled(words, served.namespace), "--namespace", served.namespace)
        except KubectlError as error:
            failed.append(f"{shown}: {error}")
        else:
            if words[1] == "get" and "pdcluster.io/cluster=" in shown and not said.strip():
                failed.append(f"{shown}: selects nothing")
        tried += 1
    assert failed == []
    assert tried > 30


def test_waiting_as_the_page_says_ends(served: OperatorRig) -> None:
    words = ("wait", "--for=condition=Ready", "pdcluster/qwen", "--timeout=30m")
    assert "condition met" in served.kubectl(*words, "-n", served.namespace)
