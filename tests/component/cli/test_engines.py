from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.support.resources import ENGINE, cluster

from pdcluster_cli.errors import EngineMissingError
from pdcluster_cli.exit_codes import ExitCode
from pdcluster_cli.settings import Settings
from pdcluster_cli.up.engines import VLLM_POINTER, find_simulator, find_vllm


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environ({"HOME": "/home/me", "PDCLUSTER_CACHE": str(tmp_path)})


def point(settings: Settings, **content: object) -> None:
    text = json.dumps(content)
    Path(settings.cache_dir, VLLM_POINTER).write_text(text, encoding="utf-8")


def test_the_simulator_is_the_same_installations(settings: Settings) -> None:
    source = find_simulator(settings)
    assert source.command == (sys.executable, "-P", "-m", "pdcluster_sim", "serve")
    assert source.args == ("--disable-uvicorn-access-log",)
    assert source.cwd is None


def test_engines_talk_over_loopback_and_shared_memory_and_keep_the_users_home(
    settings: Settings,
) -> None:
    env = dict(find_simulator(settings).env)
    assert env["UCX_TLS"] == "tcp,sm,self"
    assert env["UCX_NET_DEVICES"] == "lo"
    assert env["HOME"] == "/home/me"


def test_vllm_is_found_where_the_pointer_says(settings: Settings) -> None:
    point(
        settings,
        command=[sys.executable, "serve"],
        env={"OMP_NUM_THREADS": "1", "UCX_TLS": "tcp"},
        cwd="/models",
        python="/x",
    )
    source = find_vllm(settings, cluster())
    assert source.command == (sys.executable, "serve")
    assert source.args == ("--disable-access-log-for-endpoints", "/health,/metrics")
    assert source.cwd == "/models"
    env = dict(source.env)
    assert (env["OMP_NUM_THREADS"], env["UCX_TLS"]) == ("1", "tcp")


def test_the_resources_own_command_wins(settings: Settings) -> None:
    point(settings, command=[sys.executable], env={})
    named = cluster(engine=ENGINE | {"command": ["my-vllm", "serve"]})
    source = find_vllm(settings, named)
    assert source.command == ("my-vllm", "serve")
    assert source.args == ("--disable-access-log-for-endpoints", "/health,/metrics")


def test_without_vllm_the_error_names_the_remedy(settings: Settings) -> None:
    with pytest.raises(EngineMissingError, match="make vllm-env") as caught:
        find_vllm(settings, cluster())
    assert caught.value.exit_code is ExitCode.WRONG_USE
    assert settings.cache_dir in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        {"command": ["/no/such/vllm"], "env": {}},
        {"command": [], "env": {}},
        {"command": "vllm serve", "env": {}},
        {"env": {}},
    ],
    ids=str,
)
def test_a_pointer_that_leads_nowhere_is_an_error(
    settings: Settings, content: dict[str, object]
) -> None:
    point(settings, **content)
    with pytest.raises(EngineMissingError, match="run `make vllm-env` again"):
        find_vllm(settings, cluster())


def test_a_pointer_that_is_no_json_is_an_error(settings: Settings) -> None:
    Path(settings.cache_dir, VLLM_POINTER).write_text("{", encoding="utf-8")
    with pytest.raises(EngineMissingError, match="cannot be used"):
        find_vllm(settings, cluster())
