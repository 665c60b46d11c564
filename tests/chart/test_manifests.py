"""What the chart and the operator make, as kubernetes-validate and checkov judge it.

kubernetes-validate holds each object against the schemas of every supported Kubernetes, which
refuse what they don't know. checkov looks for what is unsafe: what it finds and we want all the
same stands in a table here, with the reason. Both run without a network.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.chart import PRESETS, preset, render
from tests.support.kubernetes_world import World
from tests.support.node import CHART, Helm
from tests.support.real_kubernetes import give_up
from tools.kubernetes.build import default_cache
from tools.manifest_tools import ManifestToolsError, build

from pdcluster_api import defaults
from pdcluster_operator.manifests.labels import COMPONENT_LABEL
from pdcluster_operator.manifests.objects import KINDS

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
VERSIONS = ("1.33", "1.34", "1.35", "1.36", "1.37")
NEWEST = VERSIONS[-1]
OWN_KINDS = {"PDCluster", "PDPool"}
"""No linter knows these; a real API server judges them in tests/cluster."""
CONTROL = "control"
PRIVILEGED = "CKV_K8S_16"

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Document:
    """One object.

    Attributes:
        content: The object.
        sources: Presets and examples that have it, word for word.
    """

    content: Raw
    sources: frozenset[str]

    @property
    def of(self) -> str:
        """Kind and component."""
        labels = self.content["metadata"].get("labels", {})
        return f"{self.content['kind']} {labels.get(COMPONENT_LABEL, '-')}"


@dataclass(frozen=True, slots=True)
class Deliberate:
    """What checkov finds and is meant to be so.

    Attributes:
        check: Its id.
        of: Kinds and components that have it: each of them does.
        why: The reason.
        only: The presets and examples that have it; empty: whichever.
    """

    check: str
    of: tuple[str, ...]
    why: str
    only: frozenset[str] = frozenset()


OPERATOR, TEST = "Deployment operator", "Pod test"
ENGINE, PROXY = "Deployment engine", "Deployment proxy"
DELIBERATE = (
    Deliberate(
        "CKV_K8S_43",
        (OPERATOR, TEST, ENGINE, PROXY),
        "presets and examples name tags, which people can read; a digest is a value of the chart "
        "and may be a part of any image's name",
    ),
    Deliberate(
        "CKV_K8S_15",
        (OPERATOR, TEST, ENGINE, PROXY),
        "IfNotPresent: a pod starts again while the registry is away; both are a choice of values "
        "and fields",
    ),
    Deliberate(
        "CKV_K8S_11",
        (OPERATOR, TEST, ENGINE, PROXY),
        "a limit of CPU throttles in the middle of streams; requests share it out instead",
    ),
    Deliberate(
        "CKV_K8S_13",
        (ENGINE, PROXY),
        "what an engine and its proxy need depends on the model and the traffic: the PDCluster's "
        "resources say it, and these examples are to start on any machine",
        frozenset({"01-minimal", "02-simulated", "03-cpu-vllm"}),
    ),
    Deliberate(
        "CKV_K8S_38",
        (OPERATOR, TEST, PROXY),
        "these three ask the API server; engines, which don't, get no token",
    ),
    Deliberate(
        "CKV_K8S_22",
        (ENGINE,),
        "the image is the user's: vLLM and its libraries write caches beside the volumes",
    ),
    Deliberate(
        "CKV_K8S_25",
        (ENGINE,),
        "RDMA pins memory: IPC_LOCK, where an example asks for RDMA",
        frozenset({"04-gpu-rdma"}),
    ),
    Deliberate(
        "CKV_K8S_35",
        (ENGINE,),
        "the hub's token: the library that downloads models reads it from the environment",
        frozenset({"04-gpu-rdma"}),
    ),
    Deliberate(
        "CKV_K8S_40",
        (OPERATOR, TEST),
        "the platform chooses the user, from a range of its own",
        frozenset({"restricted"}),
    ),
    Deliberate(
        "CKV2_K8S_6",
        (OPERATOR, TEST),
        "the operator serves probes and counts alone, the test serves nothing; what holds prompts "
        "and KV blocks has policies",
    ),
    Deliberate("CKV_K8S_8", (TEST,), "it runs once and ends"),
    Deliberate("CKV_K8S_9", (TEST,), "it runs once and serves nothing"),
)


# --- the objects -------------------------------------------------------------------------------


def made_of_examples() -> Iterator[tuple[str, Raw]]:
    """The objects of each example, and what the operator makes of its PDCluster."""
    for path in sorted(EXAMPLES.glob("*/*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            document["metadata"]["namespace"] = "serving"
            yield path.parent.name, document
            if document["kind"] == "PDCluster":
                stored = copy.deepcopy(document)
                stored["metadata"] |= {"uid": "cluster-uid", "generation": 1}
                world = World(stored)
                world.settle()
                for each in world.objects.values():
                    yield path.parent.name, json.loads(json.dumps(each))


def gathered(objects: Iterable[tuple[str, Raw]]) -> list[Document]:
    """The objects, each once, but those of our own kinds."""
    sources: dict[str, set[str]] = defaultdict(set)
    for source, content in objects:
        if content["kind"] not in OWN_KINDS:
            sources[json.dumps(content, sort_keys=True)].add(source)
    return [Document(json.loads(text), frozenset(them)) for text, them in sources.items()]


def written(documents: Iterable[Document], folder: Path) -> dict[str, Document]:
    """Write each into a file of its own, named after where it comes from; give them by name."""
    folder.mkdir()
    found = {}
    for number, each in enumerate(documents):
        name = f"{'+'.join(sorted(each.sources))}.{number}.yaml"
        (folder / name).write_text(yaml.safe_dump(each.content))
        found[name] = each
    return found


@pytest.fixture(scope="module")
def objects(
    programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, list[tuple[str, Raw]]]:
    """All objects for each version of Kubernetes."""
    folder = tmp_path_factory.mktemp("helm")
    helm = Helm(programs / "helm4", folder / "none", folder)
    of_examples = list(made_of_examples())
    return {
        version: [
            *(
                (name, each)
                for name in PRESETS
                for each in render(helm, *preset(name), "--kube-version", version)
            ),
            *of_examples,
        ]
        for version in VERSIONS
    }


# --- the linters -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of the environment that has both."""
    try:
        return build(default_cache()) / "bin" / "python"
    except ManifestToolsError as error:
        give_up(str(error))


def run(python: Path, *words: str | Path, home: Path) -> str:
    """Run a Python without a network; give what it prints."""
    own_users = () if not os.geteuid() else ("--map-root-user",)
    ended = subprocess.run(
        ["unshare", *own_users, "--net", str(python), "-W", "ignore", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=home,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "CKV_SKIP_PACKAGE_UPDATE_CHECK": "true",
        },
    )
    assert not ended.stderr, ended.stderr
    return ended.stdout


def refused(python: Path, version: str, documents: Iterable[Document], home: Path) -> list[str]:
    """What kubernetes-validate has to say: nothing where all is well."""
    folder = home / "manifests"
    names = [folder / name for name in written(documents, folder)]
    words = ("--strict", "--quiet", "--kubernetes-version", version)
    return run(python, "-m", "kubernetes_validate", *words, *names, home=home).splitlines()


@dataclass(frozen=True, slots=True)
class Judged:
    """What checkov says.

    Attributes:
        found: Id of the check and the object, of each that failed.
        looked_at: The objects that it tried a check on.
    """

    found: list[tuple[str, Document]]
    looked_at: list[Document]


@pytest.fixture(scope="module")
def judged(
    python: Path,
    objects: Mapping[str, list[tuple[str, Raw]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Judged:
    """checkov's word on everything, and on a control that it must find unsafe."""
    home = tmp_path_factory.mktemp("checkov")
    everything = [each for of_version in objects.values() for each in of_version]
    unsafe = unsafe_deployment(everything)
    files = written(gathered([*everything, (CONTROL, unsafe)]), home / "manifests")
    words = ("--framework", "kubernetes", "--output", "json", "--compact", "--soft-fail")
    offline = ("--skip-download", "--skip-results-upload")
    text = run(
        python, "-m", "checkov.main", "--directory", "manifests", *words, *offline, home=home
    )
    said = json.loads(text)
    assert not said["results"]["parsing_errors"]
    assert not said["results"]["skipped_checks"]

    def of(check: Raw) -> Document:
        return files[Path(check["file_path"]).name]

    failed, passed = said["results"]["failed_checks"], said["results"]["passed_checks"]
    return Judged(
        [(each["check_id"], of(each)) for each in failed],
        [of(each) for each in (*failed, *passed)],
    )


def unsafe_deployment(everything: Iterable[tuple[str, Raw]]) -> Raw:
    """The operator's Deployment, privileged."""
    changed = copy.deepcopy(operator(everything))
    changed["metadata"]["name"] = CONTROL
    (container,) = changed["spec"]["template"]["spec"]["containers"]
    container["securityContext"]["privileged"] = True
    return changed


def operator(everything: Iterable[tuple[str, Raw]]) -> Raw:
    return next(
        each for source, each in everything if (source, each["kind"]) == ("minimal", "Deployment")
    )


# --- kubernetes-validate -----------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_each_kubernetes_knows_every_kind_and_field(
    python: Path, objects: Mapping[str, list[tuple[str, Raw]]], version: str, tmp_path: Path
) -> None:
    documents = gathered(objects[version])
    assert {source for each in documents for source in each.sources} == {
        *PRESETS,
        *(path.name for path in EXAMPLES.iterdir()),
    }
    assert {each.content["kind"] for each in documents} >= KINDS.keys() - OWN_KINDS
    assert refused(python, version, documents, tmp_path) == []


def test_a_misspelt_field_and_an_unknown_kind_are_refused(
    python: Path, objects: Mapping[str, list[tuple[str, Raw]]], tmp_path: Path
) -> None:
    misspelt = copy.deepcopy(operator(objects[NEWEST]))
    (container,) = misspelt["spec"]["template"]["spec"]["containers"]
    container["imagePulPolicy"] = container.pop("imagePullPolicy")
    unknown = next(each for _, each in objects[NEWEST] if each["kind"] == "PDCluster")
    controls = (Document(each, frozenset({CONTROL})) for each in (misspelt, unknown))
    of_the_field, of_the_kind = refused(python, NEWEST, controls, tmp_path)
    assert "('imagePulPolicy' was unexpected)" in of_the_field
    assert f"schema for kind PDCluster with api version {defaults.API_VERSION}" in of_the_kind


def test_versions_are_those_from_the_charts_floor_to_the_newest_known(
    python: Path, tmp_path: Path
) -> None:
    floor = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    program = "from kubernetes_validate.utils import all_versions; print(*all_versions())"
    known = run(python, "-c", program, home=tmp_path).split()
    minors = list(dict.fromkeys(each.removesuffix(".0") for each in known))
    first = minors.index(re.findall(r">=(1\.\d+)\.0", floor)[0])
    assert tuple(minors[first:]) == VERSIONS


# --- checkov -----------------------------------------------------------------------------------


def test_nothing_is_unsafe_but_what_is_meant_to_be(judged: Judged) -> None:
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for check, document in judged.found:
        if CONTROL not in document.sources:
            found[check, document.of] |= document.sources
    deliberate = {(row.check, of): row for row in DELIBERATE for of in row.of}
    assert {key: them for key, them in found.items() if key not in deliberate} == {}
    assert deliberate.keys() - found.keys() == set(), "no longer found: take it out"
    for key, row in deliberate.items():
        if row.only:
            assert frozenset(found[key]) == row.only, key


def test_a_privileged_container_is_found(judged: Judged) -> None:
    found = {check for check, document in judged.found if document.sources == {CONTROL}}
    assert PRIVILEGED in found


def test_every_workload_was_looked_at(
    judged: Judged, objects: Mapping[str, list[tuple[str, Raw]]]
) -> None:
    def workloads(contents: Iterable[Raw]) -> set[str]:
        return {json.dumps(each) for each in contents if each["kind"] in {"Deployment", "Pod"}}

    documents = (document.content for document in judged.looked_at)
    everything = (each.content for of_one in objects.values() for each in gathered(of_one))
    assert workloads(everything) <= workloads(documents)
    assert all(row.why for row in DELIBERATE)
