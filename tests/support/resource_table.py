"""Resources that must be accepted, and resources that must be rejected with a word of why.

The same table is meant for the models and for a real API server: whatever one accepts, the other
must accept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from tests.support.resources import ENGINE, MODEL, resource

Resource: TypeAlias = Mapping[str, object]


def _engine(**fields: object) -> dict[str, object]:
    return resource({"model": MODEL, "engine": ENGINE | fields})


def _containers(*containers: object) -> dict[str, object]:
    return {"podTemplate": {"spec": {"containers": list(containers)}}}


_LABELS = {"podTemplate": {"metadata": {"labels": {"pdcluster.io/role": "x"}}}}
_INSTANCE = {"podTemplate": {"metadata": {"labels": {"app.kubernetes.io/instance": "x"}}}}

GOOD: dict[str, Resource] = {
    "only what is required": resource(),
    "name of 40 characters": resource(name="a" * 40),
    "name of 30 characters with two nodes": resource(name="a" * 30, decode={"nodes": 2}),
    "autoscaling alone": resource(prefill={"autoscaling": {"maxReplicas": 4}}),
    "equal bounds of autoscaling": resource(
        prefill={"autoscaling": {"minReplicas": 4, "maxReplicas": 4}}
    ),
    "both roles asleep": resource(prefill={"replicas": 0}, decode={"replicas": 0}),
    "shortest grace": resource(drain={"terminationGracePeriodSeconds": 86}),
    "shortest grace of a long lease": resource(
        drain={"terminationGracePeriodSeconds": 506}, kvTransfer={"kvLeaseDurationSeconds": 300}
    ),
    "shortest lease": resource(kvTransfer={"kvLeaseDurationSeconds": 6}),
    "TTL with bidirectional": resource(
        kvTransfer={"bidirectional": True, "decoderKVBlocksTTLSeconds": 480}
    ),
    "shortest TTL": resource(kvTransfer={"bidirectional": True, "decoderKVBlocksTTLSeconds": 6}),
    "recompute threshold with bidirectional": resource(
        kvTransfer={"bidirectional": True, "kvRecomputeThreshold": 0}
    ),
    "last side channel port": resource(kvTransfer={"sideChannelPort": 65535}),
    "engine port just above the side channel's": resource(
        {
            "model": MODEL,
            "engine": ENGINE | {"port": 5608},
            "prefill": {"dataParallelSize": 8},
        }
    ),
    "free words": _engine(args=["--max-model-len", "4096", "--dtype=float32"]),
    "words that only begin like an owned flag": _engine(
        args=["--host-memory", "1", "--model-impl", "x", "--portable", "-tpu"]
    ),
    "as many words as fit": resource(decode={"args": ["x"] * 64}),
    "literal and secret variables": _engine(
        env=[
            {"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        ]
    ),
    "quantities as numbers and words": resource(
        prefill={
            "resources": {
                "limits": {"nvidia.com/gpu": 1, "rdma/ib": "1", "memory": "64Gi"},
                "requests": {"cpu": "500m", "memory": "1.5Gi"},
            }
        }
    ),
    "pod template with a sidecar and the engine's mounts": resource(
        prefill={
            "podTemplate": {
                "metadata": {"labels": {"team": "a"}, "annotations": {"x": "y"}},
                "spec": {
                    "nodeSelector": {"gpu": "h100"},
                    "volumes": [{"name": "v", "emptyDir": {}}],
                    "containers": [
                        {"name": "engine", "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
                        {"name": "log", "image": "x", "args": ["y"]},
                    ],
                },
            }
        }
    ),
    "pod template with a field only a dry run can judge": resource(
        prefill={"podTemplate": {"spec": {"nodeSelectr": {"a": "b"}}}}
    ),
    "no keeper, shortest lease for it": resource(
        proxy={"leaseKeeper": False}, kvTransfer={"kvLeaseDurationSeconds": 9}
    ),
    "no keeper, short lease, stated deadline": resource(
        proxy={"leaseKeeper": False, "handOffDeadlineSeconds": 3},
        kvTransfer={"kvLeaseDurationSeconds": 6},
    ),
    "latest hand-off at the default lease": resource(proxy={"handOffDeadlineSeconds": 23}),
    "hold of exactly one lease": resource(proxy={"maxHoldSeconds": 30}),
    "one unavailable instead of one more": resource(rollout={"maxSurge": 0, "maxUnavailable": 1}),
    "start-up just within the progress deadline": resource(decode={"startupTimeoutSeconds": 3599}),
    "equal bounds of the ratio": resource(
        ratio={"minPrefillPerDecode": "1:2", "maxPrefillPerDecode": "2:4"}
    ),
    "everything of the proxy": resource(
        proxy={
            "replicas": 3,
            "service": {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}},
            "policy": {"prefill": "LeastLoad", "decode": "LeastLoad"},
            "admission": {"maxInFlight": 1, "maxQueue": 0, "queueTimeoutSeconds": 0},
            "requestTimeoutSeconds": 60,
            "firstByteTimeoutSeconds": 30,
            "idleTimeoutSeconds": 5,
            "apiKeysSecretRef": {"name": "keys"},
            "tlsSecretRef": {"name": "tls"},
            "localPrefillFallback": "WhenNoPrefill",
        }
    ),
    "network peers as Kubernetes has them": resource(
        networkPolicy={"clientsFrom": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]}
    ),
}

BAD: dict[str, tuple[Resource, str]] = {
    "no spec": (
        {"apiVersion": "pdcluster.io/v1alpha1", "kind": "PDCluster", "metadata": {"name": "x"}},
        "spec: is required",
    ),
    "no image": (
        resource({"model": MODEL, "engine": {}}),
        "spec.engine.image: is required; add image. Image of the engine. Example vllm/",
    ),
    "no engine": (
        resource({"model": MODEL}),
        "spec.engine: is required; add engine with image below it. image: Image of the engine.",
    ),
    "no model": (resource({"engine": ENGINE}), "spec.model: is required"),
    "empty model name": (
        resource({"model": {"name": ""}, "engine": ENGINE}),
        'spec.model.name: "": must have at least 1 character',
    ),
    "misspelt role": (resource(prefil={}), "spec.prefil: unknown field; did you mean prefill?"),
    "misspelt field": (
        resource(prefill={"replicsa": 2}),
        "spec.prefill.replicsa: unknown field; did you mean replicas?",
    ),
    "field in the wrong case": (
        resource(kvtransfer={}),
        "spec.kvtransfer: unknown field; did you mean kvTransfer?",
    ),
    "field by its Python name": (
        resource(kv_transfer={}),
        "spec.kv_transfer: unknown field; did you mean kvTransfer?",
    ),
    "field of another node": (
        resource(sideChannelPort=5600),
        "spec.sideChannelPort: unknown field; it belongs to spec.kvTransfer.sideChannelPort",
    ),
    "field nobody knows": (
        resource(kvTransfer={"ucx": {"zzz": 1}}),
        "spec.kvTransfer.ucx.zzz: unknown field; known here: tls, netDevices",
    ),
    "name of 41 characters": (resource(name="a" * 41), "may have 40 characters"),
    "name of 31 characters with two nodes": (
        resource(name="a" * 31, decode={"nodes": 2}),
        "may have 30 characters",
    ),
    "name that begins with a digit": (resource(name="1qwen"), "must begin with a letter"),
    "name with a dot": (resource(name="qwen.v1"), "no dot"),
    "name that ends in a line break": (resource(name="qwen\n"), "must begin with a letter"),
    "replicas and autoscaling": (
        resource(prefill={"replicas": 2, "autoscaling": {"maxReplicas": 4}}),
        "spec.prefill.replicas: 2: set replicas or autoscaling, not both",
    ),
    "autoscaling without upper bound": (
        resource(decode={"autoscaling": {"minReplicas": 1}}),
        "spec.decode.autoscaling.maxReplicas: is required",
    ),
    "autoscaling upside down": (
        resource(decode={"autoscaling": {"minReplicas": 5, "maxReplicas": 4}}),
        "spec.decode.autoscaling.minReplicas: 5: minReplicas must not exceed maxReplicas",
    ),
    "autoscaling from zero": (
        resource(decode={"autoscaling": {"minReplicas": 0, "maxReplicas": 4}}),
        "spec.decode.autoscaling.minReplicas: 0: must be at least 1",
    ),
    "prefill asleep, decode by default": (
        resource(prefill={"replicas": 0}),
        "spec.decode.replicas: one role cannot serve alone",
    ),
    "decode asleep, prefill scaled": (
        resource(prefill={"autoscaling": {"maxReplicas": 4}}, decode={"replicas": 0}),
        "spec.decode.replicas: 0: one role cannot serve alone",
    ),
    "fewer than no replicas": (resource(prefill={"replicas": -1}), "must be at least 0"),
    "a million replicas": (resource(prefill={"replicas": 1_000_000}), "must be at most 1000"),
    "replicas in quotes": (
        resource(prefill={"replicas": "2"}),
        'spec.prefill.replicas: "2": must be a whole number, without unit or quotes',
    ),
    "replicas as a truth": (resource(prefill={"replicas": True}), "must be a whole number"),
    "lease of 5": (
        resource(kvTransfer={"kvLeaseDurationSeconds": 5}),
        "spec.kvTransfer.kvLeaseDurationSeconds: 5: must be at least 6",
    ),
    "lease of 7.5": (
        resource(kvTransfer={"kvLeaseDurationSeconds": 7.5}),
        "kvLeaseDurationSeconds: 7.5: must be a whole number",
    ),
    "lease with a unit": (
        resource(kvTransfer={"kvLeaseDurationSeconds": "30s"}),
        'kvLeaseDurationSeconds: "30s": must be a whole number, without unit or quotes',
    ),
    "TTL without bidirectional": (
        resource(kvTransfer={"decoderKVBlocksTTLSeconds": 480}),
        "decoderKVBlocksTTLSeconds: 480: has an effect only with bidirectional: true",
    ),
    "TTL of 5": (
        resource(kvTransfer={"bidirectional": True, "decoderKVBlocksTTLSeconds": 5}),
        "decoderKVBlocksTTLSeconds: 5: must be more than 5",
    ),
    "recompute threshold without bidirectional": (
        resource(kvTransfer={"kvRecomputeThreshold": 64}),
        "kvRecomputeThreshold: 64: has an effect only with bidirectional: true",
    ),
    "another connector": (
        resource(kvTransfer={"connector": "Mooncake"}),
        "spec.kvTransfer.connector: \"Mooncake\": must be 'Nixl'",
    ),
    "policy in lower case": (
        resource(kvTransfer={"loadFailurePolicy": "fail"}),
        "must be 'Fail' or 'Recompute'",
    ),
    "side channel past the last port": (
        resource(kvTransfer={"sideChannelPort": 65535}, decode={"dataParallelSize": 2}),
        "spec.kvTransfer.sideChannelPort: 65535: sideChannelPort + dataParallelSize - 1",
    ),
    "engine port on the side channel": (
        _engine(port=5600),
        "spec.engine.port: 5600: lies among the side channel's ports",
    ),
    "engine port on a later rank's side channel": (
        resource(
            {
                "model": MODEL,
                "engine": ENGINE | {"port": 5607},
                "prefill": {"dataParallelSize": 8},
            }
        ),
        "spec.engine.port: 5607: lies among the side channel's ports",
    ),
    "engine port for root alone": (_engine(port=80), "must be at least 1024"),
    "no backends": (resource(kvTransfer={"backends": []}), "must have at least 1 item"),
    "a backend twice": (
        resource(kvTransfer={"backends": ["UCX", "UCX"]}),
        "[1] is 'UCX' a second time",
    ),
    "--model": (_engine(args=["--model", "x"]), "use spec.model.name"),
    "--kv_transfer_config with underscores": (
        resource(prefill={"args": ["--kv_transfer_config={}"]}),
        "use the fields of spec.kvTransfer",
    ),
    "--kv-transfer-config by a dotted key": (
        resource(decode={"args": ["--kv-transfer-config.kv_role=x"]}),
        "use the fields of spec.kvTransfer",
    ),
    "-tp": (resource(decode={"args": ["-tp", "2"]}), "use the role's tensorParallelSize"),
    "--data-parallel-size": (
        resource(decode={"args": ["--data_parallel-size=2"]}),
        "use the role's tensorParallelSize",
    ),
    "--served-model-name": (
        _engine(args=["--served-model-name=x"]),
        "use spec.model.servedName",
    ),
    "--revision": (_engine(args=["--revision", "x"]), "use spec.model.revision"),
    "--port": (_engine(args=["--port", "1"]), "use spec.engine.port"),
    "--host": (_engine(args=["--host=0.0.0.0"]), "leave it out"),
    "--shutdown_timeout": (_engine(args=["--shutdown_timeout", "3"]), "use spec.drain"),
    "--config": (_engine(args=["--config", "f.yaml"]), "give each flag in args"),
    "65 words": (resource(decode={"args": ["x"] * 65}), "must have at most 64 items"),
    "a word of 1025": (
        resource(decode={"args": ["x" * 1025]}),
        "must have at most 1024 characters",
    ),
    "a number among the words": (
        resource(decode={"args": ["--max-num-seqs", 8]}),
        "spec.decode.args[1]: 8: must be text; put quotes around it",
    ),
    "words that are no list": (
        resource(decode={"args": "--max-num-seqs=8"}),
        "must be a list (- item)",
    ),
    "an owned variable": (
        _engine(env=[{"name": "VLLM_HOST_IP", "value": "1"}]),
        "VLLM_HOST_IP and VLLM_NIXL_SIDE_CHANNEL_* are the operator's",
    ),
    "an owned variable of one role": (
        resource(decode={"env": [{"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": "1"}]}),
        "for the port use spec.kvTransfer.sideChannelPort",
    ),
    "a variable twice": (
        _engine(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
        "[1].name is 'A' a second time",
    ),
    "value and source": (
        _engine(env=[{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]),
        "set value or valueFrom, not both",
    ),
    "variable that begins with a digit": (
        _engine(env=[{"name": "1A"}]),
        'spec.engine.env[0].name: "1A": must be the name of a variable: letters, digits and',
    ),
    "a backend in small letters": (
        resource(kvTransfer={"backends": ["ucx"]}),
        "a capital first, like UCX",
    ),
    "a cache at a relative path": (
        resource(
            {
                "model": MODEL | {"cache": {"persistentVolumeClaim": "c", "mountPath": "models"}},
                "engine": ENGINE,
            }
        ),
        "must be an absolute path: it begins with a slash, like /models",
    ),
    "quantity in gigabytes": (
        resource(prefill={"resources": {"limits": {"memory": "64GB"}}}),
        "must be a quantity of Kubernetes",
    ),
    "negative quantity": (
        resource(prefill={"resources": {"limits": {"cpu": -1}}}),
        "must be a quantity of Kubernetes",
    ),
    "the engine's image in the pod template": (
        resource(prefill=_containers({"name": "engine", "image": "x"})),
        "image, command and args of the container engine come from spec.engine",
    ),
    "the engine's words in the pod template": (
        resource(prefill=_containers({"name": "engine", "args": ["x"]})),
        "image, command and args of the container engine come from spec.engine",
    ),
    "the engine's own address in the pod template": (
        resource(
            prefill=_containers({"name": "engine", "env": [{"name": "VLLM_HOST_IP", "value": "x"}]})
        ),
        "of the container engine are the operator's",
    ),
    "the operator's label": (resource(prefill=_LABELS), "choose another key"),
    "the instance label": (resource(prefill=_INSTANCE), "choose another key"),
    "two containers of one name": (
        resource(prefill=_containers({"name": "a"}, {"name": "a"})),
        "[1].name is 'a' a second time",
    ),
    "containers as a map": (
        resource(prefill={"podTemplate": {"spec": {"containers": {"name": "a"}}}}),
        "must be a list (- item)",
    ),
    "copies over several nodes": (
        resource(decode={"nodes": 2, "dataParallelSize": 2}),
        "spec.decode.nodes: 2: dataParallelSize above 1 over several nodes",
    ),
    "no keeper, lease of 8": (
        resource(proxy={"leaseKeeper": False}, kvTransfer={"kvLeaseDurationSeconds": 8}),
        "spec.kvTransfer.kvLeaseDurationSeconds: 8: below 9 s and without proxy.leaseKeeper",
    ),
    "hand-off later than the lease allows": (
        resource(proxy={"handOffDeadlineSeconds": 24}),
        "spec.proxy.handOffDeadlineSeconds: 24: is later than the lease allows",
    ),
    "hand-off at once": (resource(proxy={"handOffDeadlineSeconds": 0}), "must be at least 1"),
    "hold shorter than the lease": (
        resource(proxy={"maxHoldSeconds": 29}),
        "spec.proxy.maxHoldSeconds: 29: must be at least kvTransfer.kvLeaseDurationSeconds",
    ),
    "grace that ends before the last lease": (
        resource(drain={"terminationGracePeriodSeconds": 85}),
        "spec.drain.terminationGracePeriodSeconds: 85: ends before the last lease",
    ),
    "grace that ends before a long lease": (
        resource(
            drain={"terminationGracePeriodSeconds": 505}, kvTransfer={"kvLeaseDurationSeconds": 300}
        ),
        "spec.drain.terminationGracePeriodSeconds: 505: ends before the last lease",
    ),
    "nothing can move": (
        resource(rollout={"maxSurge": 0}),
        "spec.rollout.maxUnavailable: maxSurge and maxUnavailable cannot both be 0",
    ),
    "start-up as long as the progress deadline": (
        resource(decode={"startupTimeoutSeconds": 3600}),
        "spec.rollout.progressDeadlineSeconds: must be longer than startupTimeoutSeconds",
    ),
    "ratio upside down": (
        resource(ratio={"minPrefillPerDecode": "3:1"}),
        'spec.ratio.minPrefillPerDecode: "3:1": must not be above maxPrefillPerDecode',
    ),
    "ratio of nothing": (
        resource(ratio={"minPrefillPerDecode": "0:1"}),
        "must be two whole numbers from 1 to 9999 with a colon between them, like '2:1'",
    ),
    "ratio with a slash": (
        resource(ratio={"minPrefillPerDecode": "1/4"}),
        "with a colon between them, like '2:1'",
    ),
    "engine as a number": (
        resource({"model": MODEL, "engine": 3}),
        "spec.engine: 3: must be a mapping (key: value)",
    ),
    "labels as a list": (
        resource(prefill={"podTemplate": {"metadata": {"labels": ["a"]}}}),
        "must be a mapping (key: value)",
    ),
    "truth in quotes": (
        resource(kvTransfer={"bidirectional": "yes"}),
        "must be true or false",
    ),
}
