"""The chart in a real Kubernetes, by Helm 3 and Helm 4: its whole life, and its CRDs' life."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.kubernetes.cluster.layout import Layout
from tools.kubernetes.foreign_crds import Project, crd_files

from tests.support.chart import PRESETS, kubeconfig_of, preset, render
from tests.support.kubernetes import Kubectl, KubectlError, eventually
from tests.support.next_version import next_chart
from tests.support.node import CHART, Helm
from tests.support.real_kubernetes import started_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
CRDS = ("pdclusters.pdcluster.io", "pdpools.pdcluster.io")
KEPT_BY_KUBERNETES = {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}


@pytest.fixture(scope="module")
def plane(programs: Path) -> Iterator[Layout]:
    """A control plane without CRDs of ours."""
    with started_cluster(programs, "pdcluster-tests-chart", is_full=False) as cluster:
        layout = cluster.layout
        yield layout


@pytest.fixture
def admin(plane: Layout) -> Iterator[Kubectl]:
    """kubectl as the administrator; neither CRDs nor releases are left by a test before."""
    made = Kubectl(plane.bin / "kubectl", plane.kubeconfig)
    yield made
    made.delete_crds(*CRDS)
    leftover = ("-l", "app.kubernetes.io/managed-by=Helm", "--ignore-not-found")
    made("delete", "clusterrole,clusterrolebinding", *leftover)


@pytest.fixture(params=["helm3", "helm4"])
def helm(request: pytest.FixtureRequest, plane: Layout, tmp_path: Path) -> Helm:
    """Each of both."""
    return Helm(plane.bin / request.param, plane.kubeconfig, tmp_path)


@pytest.fixture
def helm4(plane: Layout, tmp_path: Path) -> Helm:
    """Helm 4, where both would do the same."""
    return Helm(plane.bin / "helm4", plane.kubeconfig, tmp_path)


def new_name() -> str:
    return f"t-{secrets.token_hex(4)}"


def install(helm: Helm, namespace: str, *words: str, chart: Path = CHART) -> str:
    into = ("--namespace", namespace, "--create-namespace")
    return helm("install", "pdcluster", str(chart), *into, *words)


def objects_of(kubectl: Kubectl, namespace: str) -> set[str]:
    """Everything in a namespace but Events and what Kubernetes puts there itself."""
    listed = kubectl("api-resources", "--namespaced", "--verbs=list", "-o", "name").split()
    kinds = ",".join(sorted({each for each in listed if not each.startswith("events")}))
    found = kubectl.get(kinds, "-n", namespace)["items"]
    names = {f"{each['kind']}/{each['metadata']['name']}" for each in found}
    return names - KEPT_BY_KUBERNETES


def cluster_wide(kubectl: Kubectl) -> set[str]:
    kinds = "clusterrole,clusterrolebinding,crd,mutatingwebhookconfiguration,apiservice"
    return {f"{e['kind']}/{e['metadata']['name']}" for e in kubectl.get(kinds)["items"]}


def made_by_chart() -> set[str]:
    names = ("Deployment", "ServiceAccount", "Lease", "PodDisruptionBudget")
    roles = {f"{kind}/pdcluster-leader" for kind in ("Role", "RoleBinding")}
    return {f"{kind}/pdcluster" for kind in names} | roles | {"Service/pdcluster-metrics"}


def cluster(**spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "pdcluster.io/v1alpha1",
        "kind": "PDCluster",
        "metadata": {"name": "first"},
        "spec": {"model": {"name": "m"}, "engine": {"image": "e:1"}, **spec},
    }


def deployment(kubectl: Kubectl, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = kubectl.get("deployment", "pdcluster", "-n", namespace)
    return found


def test_install_upgrade_rollback_uninstall_reinstall_elsewhere(admin: Kubectl, helm: Helm) -> None:
    before = cluster_wide(admin)
    here, there = new_name(), new_name()
    install(helm, here)
    rights = {f"ClusterRole/{here}-pdcluster{end}" for end in ("", "-view", "-edit")} | {
        f"ClusterRoleBinding/{here}-pdcluster"
    }
    crds = {f"CustomResourceDefinition/{name}" for name in CRDS}
    groups = {"APIService/v1alpha1.pdcluster.io"}
    eventually("the API group", lambda: groups <= cluster_wide(admin))
    assert cluster_wide(admin) - before == rights | crds | groups

    release = {name for name in objects_of(admin, here) if name.startswith("Secret/sh.helm.")}
    assert len(release) == 1
    running = {
        name
        for name in objects_of(admin, here)
        if name.startswith(("Pod/", "ReplicaSet/", "EndpointSlice/", "Endpoints/"))
    }
    assert objects_of(admin, here) - release - running == made_by_chart()
    admin.wait_established(*CRDS)
    admin.apply(cluster(), namespace=here)

    # Who leads is the operator's to write: an upgrade must not unseat it.
    held = json.dumps({"spec": {"holderIdentity": "pdcluster-1", "leaseDurationSeconds": 15}})
    admin("patch", "lease", "pdcluster", "-n", here, "--type=merge", "-p", held)
    helm("upgrade", "pdcluster", str(CHART), "-n", here, "--set", "replicas=3,logLevel=debug")
    assert deployment(admin, here)["spec"]["replicas"] == 3
    words = deployment(admin, here)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--log-level=debug" in words
    helm("rollback", "pdcluster", "1", "-n", here)
    assert deployment(admin, here)["spec"]["replicas"] == 2
    assert [
        each["revision"]
        for each in json.loads(helm("history", "pdcluster", "-n", here, "-o", "json"))
    ] == [1, 2, 3]
    lease = admin.get("lease", "pdcluster", "-n", here)
    assert lease["spec"]["holderIdentity"] == "pdcluster-1"

    helm("uninstall", "pdcluster", "-n", here)
    eventually(
        "nothing is left but the cluster",
        lambda: {"PDCluster/first"} == objects_of(admin, here),
    )
    assert cluster_wide(admin) - before == crds | groups

    # The CRDs still say whose they are; whoever wants them elsewhere says so.
    with pytest.raises(KubectlError, match="invalid ownership metadata"):
        install(helm, there)
    install(helm, there, "--take-ownership")
    assert made_by_chart() <= objects_of(admin, there)
    assert admin.get("pdc", "first", "-n", here)["spec"]["model"]["name"] == "m"
    owner = admin.get("crd", CRDS[0])["metadata"]["annotations"]
    assert owner["meta.helm.sh/release-namespace"] == there
    helm("uninstall", "pdcluster", "-n", there)
    assert crds <= cluster_wide(admin)


def test_twenty_installs_leave_nothing_but_the_crds(admin: Kubectl, helm4: Helm) -> None:
    before = cluster_wide(admin)
    namespace = new_name()
    for _ in range(20):
        install(helm4, namespace)
        helm4("uninstall", "pdcluster", "-n", namespace)
    eventually("nothing is left", lambda: not objects_of(admin, namespace))
    left = cluster_wide(admin) - before - {"APIService/v1alpha1.pdcluster.io"}
    assert left == {f"CustomResourceDefinition/{name}" for name in CRDS}


def test_without_keep_the_crds_leave_with_the_release(admin: Kubectl, helm: Helm) -> None:
    namespace = new_name()
    install(helm, namespace, "--set", "crds.keep=false")
    assert admin.find("crd", CRDS[0])
    helm("uninstall", "pdcluster", "-n", namespace)
    eventually("the CRDs go", lambda: not admin.find("crd", CRDS[0]))


# CRDs of a newer version: one more field, with a default.


def newer_field(kubectl: Kubectl, namespace: str) -> object:
    """Write to the resource, as anybody does in time, and tell what is left of its newer field."""
    stamp = secrets.token_hex(4)
    kubectl("label", "pdc", "first", "-n", namespace, "--overwrite", f"touched={stamp}")
    return kubectl.get("pdc", "first", "-n", namespace)["spec"].get("newer")


def knows_newer_field(kubectl: Kubectl) -> bool:
    versions = kubectl.get("crd", CRDS[0])["spec"]["versions"]
    spec = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return "newer" in spec["properties"]


def with_newer_field(admin: Kubectl, helm: Helm, folder: Path) -> tuple[str, Path]:
    """Install, upgrade to the newer chart, use its field; give the namespace and that chart."""
    namespace, newer = new_name(), next_chart(folder)
    install(helm, namespace)
    helm("upgrade", "pdcluster", str(newer), "-n", namespace)
    eventually("the field is known", lambda: knows_newer_field(admin))
    eventually(
        "the field is taken",
        lambda: admin.apply(cluster(newer="kept"), namespace=namespace),
    )
    assert newer_field(admin, namespace) == "kept"
    return namespace, newer


def test_a_newer_field_survives_a_rollback_of_the_image_alone(
    admin: Kubectl, helm: Helm, tmp_path: Path
) -> None:
    namespace, newer = with_newer_field(admin, helm, tmp_path)

    # The newer chart with the older image.
    words = ("upgrade", "pdcluster", str(newer), "-n", namespace, "--reuse-values")
    helm(*words, "--set", "image.tag=0.1.0")
    (container,) = deployment(admin, namespace)["spec"]["template"]["spec"]["containers"]
    assert container["image"].endswith(":0.1.0")
    assert newer_field(admin, namespace) == "kept"

    # The older chart without its CRDs.
    words = ("upgrade", "pdcluster", str(CHART), "-n", namespace, "--reset-values")
    helm(*words, "--set", "crds.install=false")
    assert knows_newer_field(admin)
    assert newer_field(admin, namespace) == "kept"
    helm("uninstall", "pdcluster", "-n", namespace)


def test_a_rollback_of_the_release_loses_a_newer_field(
    admin: Kubectl, helm: Helm, tmp_path: Path
) -> None:
    """What the documentation warns of; without it the test above would prove nothing."""
    namespace, _ = with_newer_field(admin, helm, tmp_path)
    helm("rollback", "pdcluster", "1", "-n", namespace)
    eventually("the field is unknown", lambda: not knows_newer_field(admin))
    eventually("the field is lost", lambda: newer_field(admin, namespace) is None)
    helm("uninstall", "pdcluster", "-n", namespace)


def test_a_second_release_leaves_the_crds_to_the_first_or_takes_them(
    admin: Kubectl, helm: Helm
) -> None:
    first, second = new_name(), new_name()
    install(helm, first, "--set", f"watchNamespaces={{{first}}}")
    mine = ("--set", f"watchNamespaces={{{second}}}")
    with pytest.raises(KubectlError) as told:
        install(helm, second, *mine)
    for words in (
        'CustomResourceDefinition "pdclusters.pdcluster.io"',
        "cannot be imported into the current release",
        f'must equal "{second}": current value is "{first}"',
    ):
        assert words in str(told.value)
    # Helm keeps the failed release; the next attempt replaces it.
    install(helm, second, *mine, "--set", "crds.install=false", "--replace")
    assert made_by_chart() <= objects_of(admin, second)
    helm(
        "upgrade",
        "pdcluster",
        str(CHART),
        "-n",
        second,
        "--reuse-values",
        "--take-ownership",
        "--set",
        "crds.install=true",
    )
    owner = admin.get("crd", CRDS[0])["metadata"]["annotations"]
    assert owner["meta.helm.sh/release-namespace"] == second
    # The first one goes on; whose the CRDs are is a matter of installing alone.
    helm("upgrade", "pdcluster", str(CHART), "-n", first, "--reuse-values")
    for namespace in (first, second):
        helm("uninstall", "pdcluster", "-n", namespace)


def test_crds_that_kubectl_brought_are_used_or_taken(
    admin: Kubectl, helm: Helm, tmp_path: Path
) -> None:
    namespace = new_name()
    path = tmp_path / "older.yaml"
    # What GitOps applied some versions ago differs from what the chart brings.
    text = (ROOT / "charts" / "crds.yaml").read_text()
    path.write_text(text.replace("shortNames:\n    - pdc\n", "shortNames:\n    - pdold\n"))
    admin("apply", "--server-side", "-f", str(path))
    install(helm, namespace, "--set", "crds.install=false")
    helm("uninstall", "pdcluster", "-n", namespace)
    with pytest.raises(KubectlError, match="invalid ownership metadata"):
        install(helm, namespace)
    words = ["--take-ownership", "--replace"]
    if helm.program.name == "helm4":
        with pytest.raises(KubectlError, match="conflict"):
            install(helm, namespace, *words)
        words.append("--force-conflicts")
    install(helm, namespace, *words)
    assert admin.get("crd", CRDS[0])["spec"]["names"]["shortNames"] == ["pdc"]
    helm("uninstall", "pdcluster", "-n", namespace)


def test_a_namespaced_install_makes_roles_alone(admin: Kubectl, helm: Helm) -> None:
    admin("apply", "--server-side", "-f", str(ROOT / "charts" / "crds.yaml"))
    groups = {"APIService/v1alpha1.pdcluster.io"}
    eventually("the API group", lambda: groups <= cluster_wide(admin))
    before, namespace = cluster_wide(admin), new_name()
    install(helm, namespace, *preset("namespaced"))
    assert cluster_wide(admin) == before
    found = objects_of(admin, namespace)
    assert f"Role/{namespace}-pdcluster" in found
    assert f"RoleBinding/{namespace}-pdcluster" in found
    account = f"--as=system:serviceaccount:{namespace}:pdcluster"
    assert "yes" in admin("auth", "can-i", "list", "pdclusters", "-n", namespace, account)
    with pytest.raises(KubectlError):
        admin("auth", "can-i", "list", "pdclusters", "-n", "default", account)
    with pytest.raises(KubectlError):
        admin("auth", "can-i", "get", "secrets", "-n", namespace, account)
    helm("uninstall", "pdcluster", "-n", namespace)


def test_who_may_not_hand_on_the_rights_can_install_the_rest(
    admin: Kubectl, helm: Helm, plane: Layout, tmp_path: Path
) -> None:
    """The administrator of one namespace, where somebody else has made the roles."""
    admin("apply", "--server-side", "-f", str(ROOT / "charts" / "crds.yaml"))
    namespace = new_name()
    admin("create", "namespace", namespace)
    admin("create", "serviceaccount", "boss", "-n", namespace)
    words = ("boss", "-n", namespace, "--clusterrole=admin", f"--serviceaccount={namespace}:boss")
    admin("create", "rolebinding", *words)
    token = admin("create", "token", "boss", "-n", namespace).strip()
    theirs = Helm(helm.program, kubeconfig_of(plane, tmp_path, token), tmp_path)
    words = ("install", "pdcluster", str(CHART), "-n", namespace, *preset("namespaced"))
    with pytest.raises(KubectlError, match="attempting to grant RBAC permissions not currently"):
        theirs(*words)
    theirs(*words, "--replace", "--set", "rbac.create=false")
    assert "Deployment/pdcluster" in objects_of(admin, namespace)
    theirs("uninstall", "pdcluster", "-n", namespace)


def test_a_namespace_that_is_not_there_is_told_by_its_name(admin: Kubectl, helm: Helm) -> None:
    with pytest.raises(KubectlError, match='namespaces "not-there" not found'):
        install(helm, new_name(), "--set", "watchNamespaces={not-there}")


@pytest.mark.parametrize("name", PRESETS)
def test_the_server_takes_every_object_of_a_preset(admin: Kubectl, helm4: Helm, name: str) -> None:
    namespace = new_name()
    admin("create", "namespace", namespace)
    admin("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    objects = render(helm4, *preset(name), namespace=namespace)
    # A Deployment is taken whatever its pods are; a pod of it is not.
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "of-the-deployment"},
            "spec": each["spec"]["template"]["spec"],
        }
        for each in objects
        if each["kind"] == "Deployment"
    ]
    priority = [pod["spec"].pop("priorityClassName", "") for pod in pods]
    assert priority == ["system-cluster-critical" if name == "production" else ""]
    text = yaml.safe_dump_all([*objects, *pods])
    accounts = [each for each in objects if each["kind"] == "ServiceAccount"]
    for account in accounts:
        admin("apply", "--server-side", "-f", "-", stdin=account)
    path = helm4.scratch / "all.yaml"
    path.write_text(text)
    admin(
        "apply",
        "--server-side",
        "--validate=strict",
        "--dry-run=server",
        "-n",
        namespace,
        "-f",
        str(path),
    )
    pods[0]["spec"]["securityContext"].pop("runAsNonRoot")
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        admin(
            "apply", "--server-side", "--dry-run=server", "-n", namespace, "-f", "-", stdin=pods[0]
        )


def test_the_prometheus_operators_own_schema_takes_the_pod_monitor(
    admin: Kubectl, helm: Helm
) -> None:
    namespace = new_name()
    (path,) = (
        each for each in crd_files(Project.PROMETHEUS_OPERATOR) if "_podmonitors" in each.name
    )
    monitor = ("--set", "metrics.podMonitor.enabled=true,metrics.podMonitor.labels.release=prom")
    # Without its CRDs Helm says what is missing.
    with pytest.raises(KubectlError, match='no matches for kind "PodMonitor"'):
        install(helm, namespace, *monitor)
    admin("apply", "--server-side", "-f", str(path))
    admin.wait_established("podmonitors.monitoring.coreos.com")
    install(helm, namespace, *monitor, "--replace")
    found = admin.get("podmonitor", "pdcluster", "-n", namespace)
    assert found["metadata"]["labels"]["release"] == "prom"
    (endpoint,) = found["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["interval"]) == ("metrics", "30s")
    # Strictly: a field that is misspelt would be refused.
    rendered = [
        each for each in render(helm, *monitor, namespace=namespace) if each["kind"] == "PodMonitor"
    ]
    admin.apply(*rendered, namespace=namespace, dry_run=True)
    helm("uninstall", "pdcluster", "-n", namespace)
    admin("delete", "-f", str(path))


def test_people_get_rights_by_their_ordinary_roles(admin: Kubectl, helm4: Helm) -> None:
    namespace = new_name()
    install(helm4, namespace)
    for role in ("view", "edit", "admin"):
        admin("create", "serviceaccount", role, "-n", namespace)
        account = f"--serviceaccount={namespace}:{role}"
        admin("create", "rolebinding", role, "-n", namespace, f"--clusterrole={role}", account)

    def may(role: str, verb: str, resource: str) -> bool:
        account = f"--as=system:serviceaccount:{namespace}:{role}"
        words = [verb, *resource.split("/", 1)[:1], "-n", namespace, account]
        if "/" in resource:
            words.append(f"--subresource={resource.split('/', 1)[1]}")
        try:
            return admin("auth", "can-i", *words).strip() == "yes"
        except KubectlError:
            return False

    eventually("view", lambda: may("view", "list", "pdclusters.pdcluster.io"))
    eventually("edit", lambda: may("edit", "create", "pdclusters.pdcluster.io"))
    assert not may("view", "create", "pdclusters.pdcluster.io")
    assert may("view", "get", "pdpools.pdcluster.io/scale")
    for role in ("edit", "admin"):
        assert may(role, "delete", "pdclusters.pdcluster.io")
        assert may(role, "update", "pdpools.pdcluster.io/scale")
        assert not may(role, "delete", "pdpools.pdcluster.io")
        assert not may(role, "update", "pdclusters.pdcluster.io/status")
    helm4("uninstall", "pdcluster", "-n", namespace)


def test_the_notes_second_step_works_as_it_is_pasted(
    admin: Kubectl, helm: Helm, plane: Layout
) -> None:
    namespace = new_name()
    text = install(helm, namespace).partition("# 2.")[2].partition("# 3.")[0]
    pasted, waits, _ = text.partition("EOF\nkubectl")[0], *text.partition("EOF\nkubectl")[1:]
    assert " wait pdcluster/first --for=condition=Ready" in waits + _
    ended = subprocess.run(
        ["bash", "-euo", "pipefail"],
        input=f"#{pasted}EOF\n",
        env={
            "PATH": f"{plane.bin}:{os.environ['PATH']}",
            "KUBECONFIG": str(plane.kubeconfig),
            "HOME": str(helm.scratch),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "pdcluster.pdcluster.io/first created" in ended.stdout
    assert admin.get("pdc", "first", "-n", namespace)["spec"]["model"]["name"] == "simulated"
    helm("uninstall", "pdcluster", "-n", namespace)
