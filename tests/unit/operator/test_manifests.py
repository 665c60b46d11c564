"""What is rendered for a cluster, field by field where it matters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.kubernetes_world import SETTINGS, resource

from pdcluster_api.proxy_config import ProxyConfig, Role
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_operator.manifests.engines import engine_deployment
from pdcluster_operator.manifests.objects import KINDS, Owner
from pdcluster_operator.manifests.rendering import shared_objects
from pdcluster_operator.manifests.settings import RenderSettings

OWNER = Owner(name="qwen", namespace="serving", uid="u", operator=SETTINGS.operator)


def cluster(**spec: object) -> PDCluster:
    return PDCluster.model_validate_json(json.dumps(resource(**spec)))


def shared(settings: RenderSettings = SETTINGS, **spec: object) -> dict[tuple[str, str], Any]:
    return {
        (str(each["kind"]), each["metadata"]["name"]): each  # type: ignore[index]
        for each in shared_objects(cluster(**spec), OWNER, settings)
    }


def engine(role: Role = Role.PREFILL, **spec: object) -> Any:
    return engine_deployment(cluster(**spec), role, OWNER, SETTINGS)


def pod(role: Role = Role.PREFILL, **spec: object) -> Any:
    return engine(role, **spec)["spec"]["template"]


def container(role: Role = Role.PREFILL, **spec: object) -> Any:
    (found,) = [
        each for each in pod(role, **spec)["spec"]["containers"] if each["name"] == "engine"
    ]
    return found


def variables(role: Role = Role.PREFILL, **spec: object) -> dict[str, Any]:
    return {each["name"]: each for each in container(role, **spec)["env"]}


def test_every_child_is_owned_labelled_and_of_a_known_kind() -> None:
    for (kind, _), each in shared().items():
        assert each["apiVersion"] == KINDS[kind].api_version
        metadata = each["metadata"]
        assert metadata["namespace"] == "serving"
        assert metadata["labels"]["pdcluster.io/cluster"] == "qwen"
        (owner,) = metadata["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == ("u", True)


def test_nothing_rendered_is_null() -> None:
    def check(value: object, where: str) -> None:
        assert value is not None, where
        if isinstance(value, Mapping):
            for key, each in value.items():
                check(each, f"{where}.{key}")
        elif isinstance(value, list | tuple):
            for index, each in enumerate(value):
                check(each, f"{where}[{index}]")

    for each in (*shared().values(), engine(), engine(Role.DECODE)):
        check(each, f"{each['kind']}/{each['metadata']['name']}")
        json.dumps(each)


def test_the_engine_runs_what_the_program_says() -> None:
    found = container()
    words = [*found["command"], *found["args"]]
    assert words[:3] == ["vllm", "serve", "Qwen/Qwen3-8B"]
    config = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert config["kv_role"] == "kv_producer"
    assert words[words.index("--host") + 1] == "$(VLLM_HOST_IP)"


def test_the_address_is_the_pods_and_stands_before_whoever_refers_to_it() -> None:
    names = [each["name"] for each in container()["env"]]
    field = {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}
    for name in ("VLLM_HOST_IP", "VLLM_NIXL_SIDE_CHANNEL_HOST"):
        assert variables()[name] == {"name": name, **field}
        assert names.index(name) < names.index("HOME")


def test_a_pod_tells_its_lease_and_side_channel() -> None:
    found = pod(kvTransfer={"kvLeaseDurationSeconds": 45, "sideChannelPort": 5700})["metadata"]
    assert found["annotations"] == {
        "pdcluster.io/kv-lease-duration-seconds": "45",
        "pdcluster.io/side-channel-port": "5700",
    }
    assert found["labels"]["pdcluster.io/role"] == "prefill"
    assert len(found["labels"]["pdcluster.io/revision"]) == 8


def test_the_grace_covers_the_lease() -> None:
    assert pod()["spec"]["terminationGracePeriodSeconds"] == 155
    assert pod(Role.DECODE)["spec"]["terminationGracePeriodSeconds"] == 605


def test_pods_obey_the_restricted_pod_security() -> None:
    proxies = shared()["Deployment", "qwen-proxy"]["spec"]["template"]
    for template in (pod(), pod(Role.DECODE), proxies):
        security = template["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in template["spec"]["containers"]:
            assert each["securityContext"]["allowPrivilegeEscalation"] is False
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (proxy,) = proxies["spec"]["containers"]
    assert proxy["securityContext"]["readOnlyRootFilesystem"] is True


def test_where_the_platform_chooses_users_none_is_named() -> None:
    settings = RenderSettings(operator="a/b", image="x:1", run_as_user=None)
    template = engine_deployment(cluster(), Role.PREFILL, OWNER, settings)["spec"]
    security = template["template"]["spec"]["securityContext"]  # type: ignore[index]
    assert "runAsUser" not in security
    assert security["runAsNonRoot"] is True


def test_every_writable_place_of_an_engine_is_a_volume() -> None:
    mounts = {each["mountPath"] for each in container()["volumeMounts"]}
    assert {"/scratch", "/tmp", "/dev/shm"} <= mounts
    for name in ("HOME", "HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"):
        assert any(variables()[name]["value"].startswith(mount) for mount in mounts)


def test_a_claim_with_models_is_mounted_and_a_writable_one_takes_downloads() -> None:
    def spec(*, read_only: bool) -> dict[str, object]:
        cache = {"persistentVolumeClaim": "models", "mountPath": "/m", "readOnly": read_only}
        return {"model": {"name": "x", "cache": cache}}

    found = container(**spec(read_only=True))
    assert {"name": "models", "mountPath": "/m", "readOnly": True} in found["volumeMounts"]
    assert variables(**spec(read_only=True))["HF_HOME"]["value"].startswith("/scratch")
    assert variables(**spec(read_only=False))["HF_HOME"]["value"] == "/m"


def test_the_hubs_token_comes_from_its_secret() -> None:
    spec = {"model": {"name": "x", "tokenSecretRef": {"name": "hf", "key": "token"}}}
    source = {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert variables(**spec)["HF_TOKEN"] == {"name": "HF_TOKEN", "valueFrom": source}


TEMPLATE = {
    "prefill": {
        "podTemplate": {
            "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
            "spec": {
                "nodeSelector": {"gpu": "h200"},
                "volumes": [{"name": "data", "emptyDir": {}}],
                "containers": [
                    {
                        "name": "engine",
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        "env": [{"name": "HOME", "value": "/data"}],
                    },
                    {"name": "side", "image": "side:1"},
                ],
            },
        }
    }
}


def test_a_pod_template_is_laid_over_ours_by_name() -> None:
    template = pod(**TEMPLATE)
    assert template["metadata"]["labels"]["team"] == "a"
    assert "pdcluster.io/role" in template["metadata"]["labels"]
    assert template["spec"]["nodeSelector"] == {"gpu": "h200"}
    assert [each["name"] for each in template["spec"]["containers"]] == ["engine", "side"]
    assert {each["name"] for each in template["spec"]["volumes"]} == {
        "scratch",
        "tmp",
        "shm",
        "data",
    }
    assert variables(**TEMPLATE)["HOME"]["value"] == "/data"
    assert "--kv-transfer-config" in container(**TEMPLATE)["args"]
    assert [each["name"] for each in pod(Role.DECODE, **TEMPLATE)["spec"]["containers"]] == [
        "engine"
    ]


def test_the_proxys_configuration_is_one_that_the_proxy_takes() -> None:
    data = shared()["ConfigMap", "qwen-proxy"]["data"]["proxy.json"]
    config = ProxyConfig.model_validate_json(data)
    assert config.kubernetes is not None
    assert (config.kubernetes.namespace, config.kubernetes.cluster) == ("serving", "qwen")
    assert config.listen.port == 8080


def test_a_changed_configuration_makes_new_proxies() -> None:
    def template(**spec: object) -> object:
        return shared(**spec)["Deployment", "qwen-proxy"]["spec"]["template"]["metadata"]

    assert template() == template(decode={"replicas": 7})
    assert template() != template(proxy={"idleTimeoutSeconds": 7})


def test_the_proxys_image_is_the_resources_or_ours() -> None:
    def image(**spec: object) -> str:
        (found,) = shared(**spec)["Deployment", "qwen-proxy"]["spec"]["template"]["spec"][
            "containers"
        ]
        return str(found["image"])

    assert image() == SETTINGS.image
    assert image(proxy={"image": "other:2"}) == "other:2"


def test_a_proxy_may_list_and_watch_pods_and_nothing_else() -> None:
    assert shared()["Role", "qwen-proxy"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    ]
    (subject,) = shared()["RoleBinding", "qwen-proxy"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "qwen-proxy", "namespace": "serving"}
    engines = shared()["ServiceAccount", "qwen-engine"]
    assert engines["automountServiceAccountToken"] is False


def test_pull_secrets_reach_both_accounts() -> None:
    settings = RenderSettings(operator="a/b", image="x:1", image_pull_secrets=("ours",))
    spec = {"engine": {"image": "e:1", "imagePullSecrets": [{"name": "theirs"}]}}
    objects = shared(settings, **spec)
    assert objects["ServiceAccount", "qwen-engine"]["imagePullSecrets"] == [{"name": "theirs"}]
    assert objects["ServiceAccount", "qwen-proxy"]["imagePullSecrets"] == [
        {"name": "ours"},
        {"name": "theirs"},
    ]


def test_only_the_clusters_own_pods_reach_the_side_channel() -> None:
    policy = shared()["NetworkPolicy", "qwen-engine"]["spec"]
    own, scrapers = policy["ingress"]
    assert own == {"from": [{"podSelector": {"matchLabels": {"pdcluster.io/cluster": "qwen"}}}]}
    assert scrapers["ports"] == [{"port": 8000, "protocol": "TCP"}]
    assert scrapers["from"], "an empty list would let everybody in"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, None),
        (
            {"clientsFrom": [{"podSelector": {"matchLabels": {"a": "b"}}}]},
            [{"podSelector": {"matchLabels": {"a": "b"}}}],
        ),
    ],
)
def test_clients_are_those_that_were_named_or_everybody(asked: Any, expected: Any) -> None:
    policy = shared(networkPolicy=asked)["NetworkPolicy", "qwen-proxy"]["spec"]
    assert policy["ingress"][0].get("from") == expected
    assert policy["ingress"][0]["ports"] == [{"port": 8080, "protocol": "TCP"}]
    assert policy["ingress"][1]["from"]


def test_budgets_let_one_go_at_a_time_even_of_one() -> None:
    for name in ("qwen-prefill", "qwen-decode", "qwen-proxy"):
        assert shared()["PodDisruptionBudget", name]["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("service", "url"),
    [({}, "http://qwen.serving.svc"), ({"port": 8000}, "http://qwen.serving.svc:8000")],
)
def test_the_service_is_where_the_status_says(service: dict[str, object], url: str) -> None:
    from pdcluster_operator.manifests.proxies import service_url  # noqa: PLC0415

    found = shared(proxy={"service": service})["Service", "qwen"]["spec"]
    assert found["selector"]["app.kubernetes.io/component"] == "proxy"
    assert service_url(OWNER, cluster(proxy={"service": service})) == url
