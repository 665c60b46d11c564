from __future__ import annotations

import json
import shlex
from typing import Any

from tests.support.resources import ENGINE, resource, text_of

from pdcluster_api.loading import load_cluster
from pdcluster_api.revision import revision_of
from pdcluster_cli.rendering import render_json, render_text

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}


def text(*others: object, **fields: Any) -> str:
    return render_text(load_cluster(text_of(*others, resource(**fields)), source="x"))


def parsed(*others: object, **fields: Any) -> Any:
    loaded = load_cluster(text_of(*others, resource(**fields)), source="x")
    return json.loads(render_json(loaded))


def test_the_first_line_sums_it_up() -> None:
    first = text().splitlines()[0]
    revision = revision_of(load_cluster(text_of(resource()), source="x").cluster.spec)
    assert first == (
        f"qwen: revision {revision}, lease 30 s, heartbeat 5 s, extension 20 s, "
        "hand-off 14 s (23 s for a pair that met), keeper: absent"
    )


def test_each_role_is_shown_once_with_its_number() -> None:
    rendered = text(prefill={"replicas": 3}, decode={"replicas": 5})
    assert rendered.count("prefill x 3") == 1
    assert rendered.count("decode x 5") == 1
    assert rendered.count("proxy x 2") == 1


def test_roles_that_sleep_are_not_shown() -> None:
    rendered = text(prefill={"replicas": 0}, decode={"replicas": 0})
    assert "prefill x" not in rendered
    assert "proxy x 2" in rendered


def test_a_command_line_is_shown_whole_and_can_be_pasted() -> None:
    rendered = text(engine=ENGINE | {"args": ["--override=it's {x}"]})
    lines = rendered.splitlines()
    begin = lines.index("  command:")
    end = next(n for n in range(begin, len(lines)) if lines[n] == "  environment:")
    words = shlex.split(" ".join(line.removesuffix("\\") for line in lines[begin + 1 : end]))
    expected = parsed(engine=ENGINE | {"args": ["--override=it's {x}"]})
    assert words == expected["engines"]["prefill"]["argv"]
    assert words[:3] == ["vllm", "serve", "Qwen/Qwen3-8B"]
    assert words[-1] == "--override=it's {x}"


def test_a_pods_address_and_sources_are_shown_as_such() -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    fields = {"decode": {"env": [{"name": "TOKEN", "valueFrom": source}]}}
    rendered = text(**fields)
    assert "VLLM_HOST_IP=<status.podIP>" in rendered
    assert 'TOKEN=<{"secretKeyRef":{"name":"s","key":"k"}}>' in rendered
    env = parsed(**fields)["engines"]["decode"]["env"]
    assert env["TOKEN"] == source
    assert env["VLLM_HOST_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_what_only_kubernetes_honours_is_listed() -> None:
    fields = {"proxy": {"service": {"port": 81}}, "ratio": {"maxPrefillPerDecode": "3:1"}}
    rendered = text(**fields)
    listed = rendered[rendered.index("Honoured by a Kubernetes cluster only") :]
    assert "  spec.proxy.service\n" in listed
    assert "  spec.ratio" in listed
    assert parsed(**fields)["kubernetesOnly"] == [
        "spec.engine.image",
        "spec.proxy.service",
        "spec.ratio",
    ]


def test_skipped_documents_are_named() -> None:
    assert text(NAMESPACE).endswith("Skipped documents of other kinds: Namespace")
    assert parsed(NAMESPACE)["skipped"] == ["Namespace"]


def test_the_model_cache_is_where_models_are_looked_for() -> None:
    model = {"name": "m", "cache": {"persistentVolumeClaim": "c", "mountPath": "/weights"}}
    assert parsed(model=model)["engines"]["prefill"]["env"]["HF_HOME"] == "/weights"
    assert parsed()["engines"]["prefill"]["env"]["HF_HOME"] == "/var/cache/pdcluster/models"


def test_the_proxys_configuration_is_shown() -> None:
    config = parsed()["proxy"]["config"]
    assert config["keeper"] == "absent"
    assert config["drainSeconds"] == 5.0
    assert '"keeper": "absent"' in text()


def test_json_holds_ports_and_grace() -> None:
    prefill = parsed()["engines"]["prefill"]
    assert prefill["ports"] == {"http": 8000, "side-channel": 5600}
    assert prefill["terminationGraceSeconds"] == 155
    assert prefill["replicas"] == 2
