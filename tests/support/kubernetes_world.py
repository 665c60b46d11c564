"""A naive Kubernetes for plans: objects in a dict, controllers that move one step at a time.

It knows no validation and no field managers; what it does know, the real server does alike: uids,
generations, controllers that follow, pods that take their time to start and to leave.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pdcluster_operator.manifests.settings import RenderSettings
from pdcluster_operator.model.actions import (
    Action,
    Apply,
    Delete,
    EmitEvent,
    Patch,
    Plan,
    SetStatus,
)
from pdcluster_operator.model.observed import Observed
from pdcluster_operator.model.reading import observe
from pdcluster_operator.plan.reconcile import plan

SETTINGS = RenderSettings(operator="pdcluster-system/pdcluster", image="pdcluster:1")
NOW = "2026-11-29T12:00:00Z"

Raw = dict[str, Any]


def resource(**spec: object) -> Raw:
    """A PDCluster as the server would have it, with defaults left to the models."""
    return {
        "apiVersion": "pdcluster.io/v1alpha1",
        "kind": "PDCluster",
        "metadata": {"name": "qwen", "namespace": "serving", "uid": "cluster-uid", "generation": 1},
        "spec": {"model": {"name": "Qwen/Qwen3-8B"}, "engine": {"image": "engine:1"}} | spec,
    }


class World:
    """One PDCluster and what belongs to it.

    Args:
        cluster: The PDCluster, raw.

    Attributes:
        pods_forbidden: Why no pod may be made; "" where they may.
    """

    def __init__(self, cluster: Raw | None = None) -> None:
        self.cluster = cluster or resource()
        self.objects: dict[tuple[str, str], Raw] = {}
        self.pods: dict[str, Raw] = {}
        self.events: list[EmitEvent] = []
        self.num_writes = 0
        self.pods_forbidden = ""
        self._num_uids = 0

    # What the operator sees and does.

    def observed(self) -> Observed:
        return observe(
            copy.deepcopy(self.cluster),
            children=copy.deepcopy(list(self.objects.values())),
            pods=copy.deepcopy(list(self.pods.values())),
        )

    def plan(self, settings: RenderSettings = SETTINGS) -> Plan:
        return plan(self.observed(), settings, now=NOW)

    def do(self, action: Action) -> None:
        if isinstance(action, EmitEvent):
            self.events.append(action)
            return
        self.num_writes += 1
        match action:
            case Apply(manifest=manifest, uid=uid):
                self._apply(copy.deepcopy(dict(manifest)), uid)
            case Delete(key=key, uid=uid):
                found = self.objects.get((key.kind, key.name))
                if found is not None and found["metadata"]["uid"] == uid:
                    self._delete(key.kind, key.name)
            case Patch(key=key, uid=uid, content=content):
                found = self.objects[key.kind, key.name]
                assert found["metadata"]["uid"] == uid
                _lay_over(found, copy.deepcopy(dict(content)))
            case SetStatus(key=key, status=status):
                target = (
                    self.cluster if key.kind == "PDCluster" else self.objects[key.kind, key.name]
                )
                target["status"] = copy.deepcopy(dict(status))

    def settle(self, *, max_passes: int = 60, check: Any = None) -> int:
        """Plan, act and let the controllers move until nothing changes; give the passes needed."""
        for number in range(max_passes):
            actions = self.plan().actions
            for action in actions:
                self.do(action)
                if check is not None:
                    check(self)
            moved = self.move()
            if check is not None:
                check(self)
            if not actions and not moved:
                return number
        message = "it never settled"
        raise AssertionError(message)

    # What users do.

    def edit(self, **spec: object) -> None:
        _lay_over(self.cluster["spec"], copy.deepcopy(spec))
        self.cluster["metadata"]["generation"] += 1

    def scale(self, role: str, replicas: int) -> None:
        self.objects["PDPool", f"qwen-{role}"]["spec"]["replicas"] = replicas

    def condition(self, kind: str) -> tuple[str, str]:
        for each in self.cluster["status"]["conditions"]:
            if each["type"] == kind:
                return each["status"], each["reason"]
        raise KeyError(kind)

    # Controllers.

    def move(self) -> bool:
        """Let every controller and kubelet do one step; tell whether anything changed."""
        before = copy.deepcopy((self.objects, self.pods))
        for name, pod in list(self.pods.items()):
            if "deletionTimestamp" in pod["metadata"]:
                del self.pods[name]
            elif not pod.get("stuck"):
                pod["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        deployments = [each for (kind, _), each in self.objects.items() if kind == "Deployment"]
        for deployment in deployments:
            self._follow(deployment)
        owners = {each["metadata"]["name"] for each in deployments}
        for pod in self.pods.values():
            if pod["deployment"] not in owners:
                pod["metadata"].setdefault("deletionTimestamp", NOW)
        return before != (self.objects, self.pods)

    def _follow(self, deployment: Raw) -> None:
        spec, name = deployment["spec"], deployment["metadata"]["name"]
        template = spec["template"]
        mine = [
            pod
            for pod in self.pods.values()
            if pod["deployment"] == name and "deletionTimestamp" not in pod["metadata"]
        ]
        outdated = [pod for pod in mine if pod["template"] != template]
        current = [pod for pod in mine if pod["template"] == template]
        num_missing = spec["replicas"] - len(current)
        for _ in range(0 if self.pods_forbidden else num_missing):
            self._num_uids += 1
            pod_name = f"{name}-{self._num_uids}"
            self.pods[pod_name] = {
                "metadata": {"name": pod_name, "labels": dict(template["metadata"]["labels"])},
                "status": {},
                "deployment": name,
                "template": copy.deepcopy(template),
            }
        ready = [pod for pod in current if pod["status"].get("conditions")]
        surplus = outdated if len(ready) >= spec["replicas"] else []
        surplus = [*surplus, *current[spec["replicas"] :]]
        is_failing = num_missing > 0 and bool(self.pods_forbidden)
        for pod in surplus:
            pod["metadata"]["deletionTimestamp"] = NOW
        deployment["status"] = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": len(mine) - len(surplus),
            "updatedReplicas": len(current),
            "conditions": [_replica_failure(self.pods_forbidden)] if is_failing else [],
        }

    def _apply(self, manifest: Raw, uid: str) -> None:
        key = (manifest["kind"], manifest["metadata"]["name"])
        found = self.objects.get(key)
        if found is None:
            assert not uid, f"{key} was applied by uid and is not there"
            self._num_uids += 1
            manifest["metadata"] |= {"uid": f"uid-{self._num_uids}", "generation": 1}
            self.objects[key] = manifest
            return
        assert found["metadata"]["uid"] == uid, f"a stranger was adopted: {key}"
        before = copy.deepcopy(found.get("spec"))
        _lay_over(found, manifest)
        if found.get("spec") != before:
            found["metadata"]["generation"] += 1

    def _delete(self, kind: str, name: str) -> None:
        del self.objects[kind, name]
        for pod in self.pods.values():
            if kind == "Deployment" and pod["deployment"] == name:
                pod["metadata"]["deletionTimestamp"] = NOW


def _replica_failure(message: str) -> Raw:
    return {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": message,
    }


_ATOMIC = {"selector", "matchLabels", "nodeSelector", "roleRef"}


def _lay_over(base: Raw, patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        is_merged = isinstance(value, Mapping) and isinstance(base.get(key), dict)
        if is_merged and key not in _ATOMIC:
            _lay_over(base[key], value)
        else:
            base[key] = value
