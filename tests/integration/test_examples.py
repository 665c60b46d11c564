"""The examples, run as their pages say."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.engines import EngineKind, free_port
from tests.support.running_up import RunningUp, gone
from tests.support.up_cluster import READY_WITHIN_S

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_second_example_answers_with_its_own_flags(kind: EngineKind, tmp_path: Path) -> None:
    with RunningUp(
        tmp_path,
        *("--engine", kind.name, "-f", str(EXAMPLES / "03-cpu-vllm" / "pdcluster.yaml")),
        port=free_port("127.0.0.1"),
        admin_port=free_port("127.0.0.1"),
        # Real engines are found below the user's own home.
        env={"HOME": os.environ.get("HOME", "/")},
    ) as running:
        running.wait_for("Ready after", within_s=READY_WITHIN_S[kind.name])
        answer = running.ask("smollm2", "What is the capital of France?")
        if kind.name == "vllm":
            assert "Paris" in answer
        else:
            assert answer
        tree = running.tree()
        assert running.stop() == 0
        assert gone(tree, within_s=5.0)
    assert "Traceback" not in running.text
