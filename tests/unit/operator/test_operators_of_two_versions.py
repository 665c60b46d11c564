"""What a newer operator finds in a resource that it did not know, and what an older proxy is told.

A field that was added, with a default, is in every resource: the server fills it in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tests.support.kubernetes_world import SETTINGS, resource

from pdcluster_api.problems import Path
from pdcluster_api.proxy_config import ProxyConfig, Role
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_operator.manifests.engines import engine_deployment, rendering_inputs
from pdcluster_operator.manifests.objects import Owner
from pdcluster_operator.manifests.records import input_of
from pdcluster_operator.manifests.rendering import shared_objects

OWNER = Owner(name="qwen", namespace="serving", uid="u", operator=SETTINGS.operator)
IMAGE = "engine:1"
# Fields as if they had been added after the first version.
ADDED: Mapping[Path, object] = {
    ("engine", "port"): 8000,
    ("prefill", "startupTimeoutSeconds"): 1800,
    ("drain", "settleSeconds"): 5,
}


def cluster(**spec: object) -> PDCluster:
    return PDCluster.model_validate_json(json.dumps(resource(**spec)))


def inputs(found: PDCluster) -> list[object]:
    return rendering_inputs(found, Role.PREFILL, SETTINGS, neutral=ADDED)


def test_the_inputs_of_the_minimal_resource_never_change() -> None:
    """Renderings are kept under their hash: if this fails, an upgrade would render engines anew.

    A field that was added belongs into ``NEUTRAL``, with the value that means "as before".
    """
    found = {role: input_of(engine_deployment(cluster(), role, OWNER, SETTINGS)) for role in Role}
    assert found == {Role.PREFILL: "22b7d6240821", Role.DECODE: "8c2b6289b890"}


def test_an_added_field_is_no_input_while_it_is_neutral() -> None:
    without = json.dumps(inputs(cluster()))
    moved = {
        "port": cluster(engine={"image": IMAGE, "port": 8001}),
        "startupTimeoutSeconds": cluster(prefill={"startupTimeoutSeconds": 60}),
        "settleSeconds": cluster(drain={"settleSeconds": 1}),
    }
    assert {path[-1] for path in ADDED} == set(moved)
    for name, changed in moved.items():
        assert f'"{name}"' not in without
        assert f'"{name}"' in json.dumps(inputs(changed))
        assert f'"{name}"' in json.dumps(rendering_inputs(cluster(), Role.PREFILL, SETTINGS))


def told(**spec: object) -> dict[str, object]:
    """A proxy's configuration, as it is written."""
    (found,) = (
        each["data"]["proxy.json"]  # type: ignore[index]
        for each in shared_objects(cluster(**spec), OWNER, SETTINGS)
        if each["kind"] == "ConfigMap"
    )
    return dict(json.loads(found))


def test_a_proxy_is_told_only_what_is_not_as_by_default() -> None:
    found = told()
    assert ProxyConfig.model_validate(found).local_prefill_fallback == "Never"
    for name in ("localPrefillFallback", "maxBodyBytes", "exchangeLog"):
        assert name not in found
    found = told(proxy={"localPrefillFallback": "WhenNoPrefill"})
    assert found["localPrefillFallback"] == "WhenNoPrefill"
