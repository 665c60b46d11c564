"""What the chart renders: valid everywhere, restricted, with the flags that the operator reads."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.chart import PRESETS, pod_specs, preset, render
from tests.support.kubernetes import KubectlError
from tests.support.node import CHART, Helm

from pdcluster_api.crd import render_files
from pdcluster_api.loading import load_cluster
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_cli.smoke.__main__ import parse
from pdcluster_operator import rights
from pdcluster_operator.kube.resources import RESOURCES
from pdcluster_operator.manifests.objects import KINDS, Owner
from pdcluster_operator.manifests.rendering import shared_objects
from pdcluster_operator.manifests.settings import RenderSettings
from pdcluster_operator.settings import PROBE_PORT, Settings, parse_settings

ROOT = Path(__file__).resolve().parents[2]
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
Raw = dict[str, Any]


def of_kind(objects: Iterable[Raw], kind: str) -> list[Raw]:
    return [each for each in objects if each["kind"] == kind]


def one(objects: Iterable[Raw], kind: str, name: str = "pdcluster") -> Raw:
    (found,) = (each for each in of_kind(objects, kind) if each["metadata"]["name"] == name)
    return found


def operator(objects: Iterable[Raw]) -> Raw:
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


def settings(objects: Iterable[Raw]) -> Settings:
    """What the operator reads from its command line."""
    container = operator(objects)
    assert [*container["command"]] == ["python", "-m", "pdcluster_operator"]
    environ = {each["name"]: f"${each['name']}" for each in container["env"]}
    return parse_settings(container["args"], environ)


def rendered_grants(rules: Iterable[Mapping[str, Any]]) -> Iterator[tuple[object, ...]]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield group, resource, verb, tuple(rule.get("resourceNames", ()))


def stated_grants(rules: Iterable[rights.Rule], installation: str) -> set[tuple[object, ...]]:
    def named(name: str) -> str:
        return installation if name == rights.INSTALLATION else name

    return {
        (group, resource, verb, tuple(named(name) for name in rule.names))
        for rule in rules
        for group, resource, verb in rights.grants(rule)
    }


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_passes_the_strict_linter(helm: Helm, name: str) -> None:
    text = helm("lint", "--strict", str(CHART), "--namespace", "sys", *preset(name))
    assert "0 chart(s) failed" in text
    assert "WARNING" not in text


@pytest.mark.parametrize("version", ["1.33.0", "1.33.4-gke.100", "1.34.4", "1.35.1", "1.37.2"])
def test_every_supported_kubernetes_gets_the_same(helm: Helm, version: str) -> None:
    assert render(helm) == render(helm, "--kube-version", version)


def test_an_older_kubernetes_is_refused(helm: Helm) -> None:
    with pytest.raises(KubectlError, match=r"requires kubeVersion: >=1\.33\.0-0"):
        render(helm, "--kube-version", "1.32.9")


def test_both_helms_render_the_same(programs: Path, tmp_path: Path) -> None:
    made = [Helm(programs / name, tmp_path / "none", tmp_path) for name in ("helm3", "helm4")]

    def whole(helm: Helm) -> list[Raw]:
        found = render(helm, "--set", "metrics.podMonitor.enabled=true")
        return sorted(found, key=lambda each: (each["kind"], each["metadata"]["name"]))

    assert whole(made[0]) == whole(made[1])


@pytest.mark.parametrize("name", PRESETS)
def test_every_object_has_its_place_and_the_common_words(helm4: Helm, name: str) -> None:
    common = {
        "commonLabels": {"team": "serving"},
        "commonAnnotations": {"contact": "serving@example.com"},
        "metrics": {"podMonitor": {"enabled": True}},
    }
    objects = render(helm4, *preset(name), values=common)
    templates = [each["spec"]["template"] for each in of_kind(objects, "Deployment")]
    for each in [*objects, *templates]:
        metadata = each["metadata"]
        if "kind" in each:
            assert ("namespace" in metadata) is (each["kind"] not in CLUSTER_WIDE), each["kind"]
        assert metadata["labels"]["team"] == "serving"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        assert metadata["annotations"]["contact"] == "serving@example.com"
    (deployment,) = of_kind(objects, "Deployment")
    selector = deployment["spec"]["selector"]["matchLabels"]
    # It can't be changed later: nothing that a value decides may be in it.
    assert set(selector) == {
        f"app.kubernetes.io/{word}" for word in ("name", "instance", "component")
    }
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    names = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in objects
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", PRESETS)
def test_every_pod_is_restricted(helm4: Helm, name: str) -> None:
    specs = list(pod_specs(render(helm4, *preset(name))))
    assert len(specs) == 2
    for spec in specs:
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(spec)
        assert all("emptyDir" in volume for volume in spec["volumes"])
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_the_operator_reads_what_the_values_say(helm4: Helm) -> None:
    values = {
        "image": {"repository": "registry:5000/a/b", "tag": "v1", "pullPolicy": "Always"},
        "imagePullSecrets": ["one", "two"],
        "watchNamespaces": ["first", "{{ .Release.Namespace }}", "here"],
        "logLevel": "debug",
        "logFormat": "console",
        "runAsUser": 1000680000,
    }
    objects = render(helm4, values=values, release="mine", namespace="here")
    read = settings(objects)
    # Named twice, by its name and by the template, and still one namespace.
    bindings = [each["metadata"] for each in of_kind(objects, "RoleBinding")]
    assert len(bindings) == len({(each["namespace"], each["name"]) for each in bindings})
    assert read == Settings(
        namespaces=("first", "here"),
        own_namespace="$POD_NAMESPACE",
        name="mine-pdcluster",
        instance="$POD_NAME",
        probe_host="0.0.0.0",
        probe_port=PROBE_PORT,
        leads=True,
        log_level="DEBUG",
        is_json=False,
        render=RenderSettings(
            operator="$POD_NAMESPACE/mine-pdcluster",
            image="registry:5000/a/b:v1",
            image_pull_policy="Always",
            image_pull_secrets=("one", "two"),
            run_as_user=1000680000,
        ),
    )


def test_without_values_the_operator_watches_everything(helm4: Helm) -> None:
    objects = render(helm4)
    read = settings(objects)
    assert read.namespaces == ()
    assert read.render.run_as_user == 65532
    assert one(objects, "Deployment")["spec"]["replicas"] == 2
    assert one(objects, "Lease")["metadata"]["name"] == read.name
    probed = {each["name"]: each["containerPort"] for each in operator(objects)["ports"]}
    assert probed == {"metrics": PROBE_PORT}
    (port,) = one(objects, "Service", "pdcluster-metrics")["spec"]["ports"]
    assert port["targetPort"] == "metrics"


def test_a_digest_wins_over_a_tag(helm4: Helm) -> None:
    digest = f"sha256:{'0123456789abcdef' * 4}"
    values = {"image": {"tag": "v1", "digest": digest}, "simulatorImage": {"digest": digest}}
    objects = render(helm4, values=values)
    assert operator(objects)["image"] == f"ghcr.io/pdcluster/pdcluster@{digest}"
    assert settings(objects).render.image == operator(objects)["image"]
    (test,) = of_kind(objects, "Pod")
    assert (
        f"--image=ghcr.io/pdcluster/pdcluster-sim@{digest}" in test["spec"]["containers"][0]["args"]
    )


@pytest.mark.parametrize("user", ["any", "1234", 1234, 1000680000])
def test_pods_have_the_user_of_the_values(helm4: Helm, user: object) -> None:
    objects = render(helm4, values={"runAsUser": user})
    expected = None if user == "any" else int(str(user))
    for spec in pod_specs(objects):
        for field in ("runAsUser", "runAsGroup", "fsGroup"):
            assert spec["securityContext"].get(field) == expected
    assert settings(objects).render.run_as_user == expected


def test_the_rights_are_those_of_the_source(helm4: Helm) -> None:
    objects = render(helm4, namespace="here", release="mine")
    for kind, name, rules in (
        ("ClusterRole", "here-mine-pdcluster", rights.OPERATOR),
        ("ClusterRole", "here-mine-pdcluster-view", rights.VIEW),
        ("ClusterRole", "here-mine-pdcluster-edit", rights.EDIT),
        ("Role", "mine-pdcluster-leader", rights.LEADER),
        ("Role", "mine-pdcluster-test", rights.TEST),
    ):
        found = list(rendered_grants(one(objects, kind, name)["rules"]))
        assert set(found) == stated_grants(rules, "mine-pdcluster"), name
        assert len(found) == len(set(found))
    assert {each["metadata"]["name"] for each in of_kind(objects, "ClusterRole")} == {
        f"here-mine-pdcluster{end}" for end in ("", "-view", "-edit")
    }


def test_whoever_watches_some_namespaces_has_rights_in_those_alone(helm4: Helm) -> None:
    values = {"watchNamespaces": ["a", "b"], "crds": {"install": False}}
    objects = render(helm4, values=values)
    assert not [each["kind"] for each in objects if each["kind"] in CLUSTER_WIDE]
    for namespace in ("a", "b"):
        (role,) = (
            each
            for each in of_kind(objects, "Role")
            if each["metadata"]["namespace"] == namespace
            and each["metadata"]["name"] == "sys-pdcluster"
        )
        assert set(rendered_grants(role["rules"])) == stated_grants(rights.OPERATOR, "pdcluster")
    bindings = of_kind(objects, "RoleBinding")
    assert {(b["metadata"]["namespace"], b["roleRef"]["name"]) for b in bindings} == {
        ("a", "sys-pdcluster"),
        ("b", "sys-pdcluster"),
        ("sys", "pdcluster-leader"),
        ("a", "pdcluster-test"),
    }
    assert {b["subjects"][0]["namespace"] for b in bindings} == {"sys"}
    # The release's namespace is not watched, so the test makes its cluster in the first that is.
    (test,) = of_kind(objects, "Pod")
    assert test["metadata"]["namespace"] == "sys"
    assert "--namespace=a" in test["spec"]["containers"][0]["args"]


def test_people_get_their_rights_beside_some_namespaces_if_they_are_asked_for(helm4: Helm) -> None:
    values = {"watchNamespaces": ["a"], "rbac": {"aggregate": True}}
    names = [
        each["metadata"]["name"] for each in of_kind(render(helm4, values=values), "ClusterRole")
    ]
    assert sorted(names) == ["sys-pdcluster-edit", "sys-pdcluster-view"]


def test_the_operator_may_do_what_its_tables_of_kinds_say() -> None:
    may = set(rights.grants(*rights.OPERATOR))
    for kind, resource in RESOURCES.items():
        needed = {"list", "watch"} if kind != "Event" else {"list", "create"}
        if kind in KINDS:
            needed |= {"get", "create", "patch"}
        missing = {v for v in needed if (resource.group, resource.plural, v) not in may}
        assert not missing, kind


def test_the_operator_may_do_what_it_hands_on_to_proxies() -> None:
    resource = {
        "metadata": {"name": "qwen"},
        "spec": {"model": {"name": "m"}, "engine": {"image": "e:1"}},
    }
    owner = Owner(name="qwen", namespace="serving", uid="u", operator="sys/pdcluster")
    made = list(
        shared_objects(
            PDCluster.model_validate(resource), owner, RenderSettings(operator="sys/p", image="i:1")
        )
    )
    roles = [each for each in made if each["kind"] == "Role"]
    assert roles
    may = set(rights.grants(*rights.OPERATOR))
    for role in roles:
        rules: Any = role["rules"]
        assert {grant[:3] for grant in rendered_grants(rules)} <= may


def test_engines_let_this_operator_in(helm4: Helm) -> None:
    (deployment,) = of_kind(render(helm4), "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    owner = Owner(name="qwen", namespace="serving", uid="u", operator="sys/pdcluster")
    resource = {
        "metadata": {"name": "qwen"},
        "spec": {"model": {"name": "m"}, "engine": {"image": "e:1"}},
    }
    made = shared_objects(
        PDCluster.model_validate(resource), owner, RenderSettings(operator="sys/p", image="i:1")
    )
    peers = [
        peer
        for each in made
        if each["kind"] == "NetworkPolicy"
        for rule in dict[str, Any](each)["spec"]["ingress"]
        for peer in rule.get("from", ())
        if "namespaceSelector" in peer
    ]
    assert peers
    for peer in peers:
        assert peer["podSelector"]["matchLabels"].items() <= labels.items()
        assert list(peer["namespaceSelector"]["matchLabels"].values()) == ["sys"]


@pytest.mark.parametrize(
    "release", ["pdcluster", "a", "my-pdcluster-2", "r" * 53, "pdcluster-" + "x" * 40]
)
def test_names_fit_whatever_the_release_is_called(helm4: Helm, release: str) -> None:
    objects = render(helm4, release=release)
    for each in objects:
        assert len(each["metadata"]["name"]) <= 63
    (test,) = of_kind(objects, "Pod")
    options = parse(test["spec"]["containers"][0]["args"])
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", options.name)
    assert options.name == test["metadata"]["name"]


def test_the_test_is_told_what_it_needs(helm4: Helm) -> None:
    values = {
        "image": {"pullPolicy": "Never"},
        "imagePullSecrets": ["x"],
        "test": {"timeoutSeconds": 9 * 9},
    }
    (test,) = of_kind(render(helm4, values=values), "Pod")
    (container,) = test["spec"]["containers"]
    assert container["command"] == ["python", "-m", "pdcluster_cli.smoke"]
    options = parse(container["args"])
    assert options.namespace == "sys"
    assert options.image == "ghcr.io/pdcluster/pdcluster-sim:0.1.0"
    assert (options.image_pull_policy, options.image_pull_secret) == ("Never", ["x"])
    assert options.timeout_seconds == 81
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert not of_kind(render(helm4, "--set", "test.enabled=false"), "Pod")


def test_the_crds_are_those_of_the_models_and_stay(helm4: Helm) -> None:
    objects = render(helm4)
    whole = list(yaml.safe_load_all((ROOT / "charts" / "crds.yaml").read_text()))
    models = [yaml.safe_load(text) for text in render_files().values()]
    assert whole == models
    crds = of_kind(objects, "CustomResourceDefinition")
    assert {each["metadata"]["name"]: each["spec"] for each in crds} == {
        each["metadata"]["name"]: each["spec"] for each in models
    }
    for each in crds:
        assert each["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    for each in of_kind(render(helm4, "--set", "crds.keep=false"), "CustomResourceDefinition"):
        assert "helm.sh/resource-policy" not in each["metadata"].get("annotations", {})
    assert not of_kind(render(helm4, "--set", "crds.install=false"), "CustomResourceDefinition")


def test_one_replica_has_no_budget_that_would_block_a_node(helm4: Helm) -> None:
    assert of_kind(render(helm4), "PodDisruptionBudget")
    assert not of_kind(render(helm4, "--set", "replicas=1"), "PodDisruptionBudget")


def test_a_spread_without_selector_gets_the_operators(helm4: Helm) -> None:
    objects = render(helm4, *preset("production"))
    spec = one(objects, "Deployment")["spec"]
    for constraint in spec["template"]["spec"]["topologySpreadConstraints"]:
        assert constraint["labelSelector"] == {"matchLabels": spec["selector"]["matchLabels"]}
    own = {
        "maxSkew": 2,
        "topologyKey": "rack",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"a": "b"}},
    }
    objects = render(helm4, values={"topologySpreadConstraints": [own]})
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["topologySpreadConstraints"] == [own]


def test_an_account_of_ones_own_is_used_and_must_be_named(helm4: Helm) -> None:
    values: Raw = {"serviceAccount": {"create": False, "name": "theirs"}}
    objects = render(helm4, values=values)
    assert [each["metadata"]["name"] for each in of_kind(objects, "ServiceAccount")] == [
        "pdcluster-test"
    ]
    assert one(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "theirs"
    assert one(objects, "ClusterRoleBinding", "sys-pdcluster")["subjects"][0]["name"] == "theirs"
    with pytest.raises(KubectlError, match=r"serviceAccount\.name is needed"):
        render(helm4, "--set", "serviceAccount.create=false")


def test_without_rights_of_the_chart_none_are_made(helm4: Helm) -> None:
    kinds = {
        each["kind"] for each in render(helm4, "--set", "rbac.create=false,test.enabled=false")
    }
    assert not kinds & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


def test_the_notes_are_the_next_three_steps(helm4: Helm) -> None:
    words = ("install", "mine", str(CHART), "--dry-run=client", "--namespace", "sys")
    sets = ("--set", "imagePullSecrets={pull},crds.install=false,watchNamespaces={serving}")
    text = helm4(*words, *sets).partition("NOTES:\n")[2]
    assert re.findall(r"(?m)^# (\d)\.", text) == ["1", "2", "3"]
    assert "watches serving." in text
    assert "did not install the CRDs" in text
    assert "ManagedByAnother" in text
    (document,) = re.findall(r"(?s)<<'EOF'\n(.*?\n)EOF\n", text)
    spec = load_cluster(document, source="notes").cluster.spec
    assert spec.engine.image == "ghcr.io/pdcluster/pdcluster-sim:0.1.0"
    assert [each.name for each in spec.engine.image_pull_secrets] == ["pull"]


def test_the_chart_has_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
