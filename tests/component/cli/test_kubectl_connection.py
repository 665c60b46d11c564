"""From a kubeconfig to a connection: whatever the file holds, a failure names it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pdcluster_cli.kubectl.connection import connect
from pdcluster_cli.kubectl.errors import KubeconfigError
from pdcluster_cli.kubectl.options import Target

GOOD = {
    "current-context": "mine",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [
        {"name": "mine", "context": {"cluster": "c", "user": "u", "namespace": "serving"}},
        {"name": "bare", "context": {"cluster": "c", "user": "u"}},
    ],
}


def write(folder: Path, content: object, name: str = "config") -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "just text",
        "a: [",
        "\x00",
        {"clusters": 3},
        {"current-context": "mine"},
        {**GOOD, "current-context": "other"},
        {**GOOD, "clusters": []},
        {**GOOD, "contexts": None},
        {**GOOD, "contexts": [{"name": "mine"}]},
        {
            **GOOD,
            "clusters": [
                {
                    "name": "c",
                    "cluster": {"server": "https://h", "certificate-authority": "/no/such/file"},
                }
            ],
        },
        {
            **GOOD,
            "clusters": [
                {
                    "name": "c",
                    "cluster": {
                        "server": "https://h",
                        "certificate-authority-data": "bm8gY2VydGlmaWNhdGU=",
                    },
                }
            ],
        },
    ],
    ids=repr,
)
async def test_a_kubeconfig_that_can_t_be_used_is_named(tmp_path: Path, content: object) -> None:
    path = write(tmp_path, content)
    with pytest.raises(KubeconfigError, match=f"^the kubeconfig {path} can't be used: "):
        async with connect(Target(name="qwen", kubeconfig=path), {}):
            pass


async def test_a_file_that_was_named_and_is_not_there_is_no_reason_to_take_another(
    tmp_path: Path,
) -> None:
    environ = {"KUBECONFIG": write(tmp_path, GOOD), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    with pytest.raises(KubeconfigError, match=r"there is no kubeconfig \(/no-such-file\)"):
        async with connect(Target(name="qwen", kubeconfig="/no-such-file"), environ):
            pass


@pytest.mark.parametrize(
    ("target", "namespace"),
    [
        (Target(name="qwen"), "serving"),
        (Target(name="qwen", context="bare"), "default"),
        (Target(name="qwen", namespace="named"), "named"),
    ],
    ids=["context", "default", "named"],
)
async def test_the_namespace_is_the_named_one_else_the_context_s(
    tmp_path: Path, target: Target, namespace: str
) -> None:
    environ = {"KUBECONFIG": f"/no/such/file:{write(tmp_path, GOOD)}"}
    async with connect(target, environ) as connection:
        assert connection.namespace == namespace


@pytest.mark.parametrize(("first", "namespace"), [("bare", "default"), ("mine", "serving")])
async def test_the_first_file_s_current_context_counts_as_in_kubectl(
    tmp_path: Path, first: str, namespace: str
) -> None:
    files = (
        write(tmp_path, {"current-context": ""}, "none"),
        write(tmp_path, {"current-context": first}, "first"),
        write(tmp_path, {**GOOD, "current-context": "mine"}, "second"),
        write(tmp_path, {"current-context": "bare"}, "third"),
    )
    async with connect(Target(name="qwen"), {"KUBECONFIG": ":".join(files)}) as connection:
        assert connection.namespace == namespace


async def test_a_kubeconfig_counts_before_the_pod_s_own_rights(tmp_path: Path) -> None:
    environ = {"KUBECONFIG": write(tmp_path, GOOD), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    async with connect(Target(name="qwen"), environ) as connection:
        assert connection.namespace == "serving"
