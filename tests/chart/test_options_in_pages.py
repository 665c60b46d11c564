"""Every option that a page gives to kubectl or Helm is one that the real program knows."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from tests.support.pages import commands
from tests.support.real_kubernetes import find_programs

DEPTHS = {
    "kubectl": {"auth": 2, "config": 2, "create": 2, "create secret": 3, "plugin": 2, "rollout": 2},
    "helm": {"get": 2, "show": 2},
}
"""Words of a verb, where they are more than one."""


@cache
def options_of(program: Path, verb: tuple[str, ...]) -> frozenset[str]:
    """Long and short options that a verb's help lists, and the global ones."""
    texts = []
    asked = [(*verb, "--help"), *([("options",)] if program.name == "kubectl" else [])]
    for words in asked:
        ended = subprocess.run(
            [str(program), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        )
        assert ended.returncode == 0, ended.stderr
        texts.append(ended.stdout)
    return frozenset(re.findall(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", "\n".join(texts)))


def check(program: Path, words: list[str]) -> None:
    rest = words[1:]
    # Global options may stand before the verb.
    while rest and rest[0].startswith("-"):
        rest = rest[2:]
    depths = DEPTHS["kubectl" if program.name == "kubectl" else "helm"]
    depth = depths.get(" ".join(rest[:2]), depths.get(rest[0], 1))
    verb = tuple(rest[:depth])
    known = options_of(program, verb)
    if verb[0] in {"run", "exec"} and "--" in words:
        words = words[: words.index("--")]
    for word in words[1:]:
        if not word.startswith("-") or word == "--" or re.fullmatch(r"-\d+", word):
            continue
        name = word.split("=")[0]
        # Short options may stand together: -it.
        each = [f"-{letter}" for letter in name[1:]] if re.fullmatch(r"-[a-zA-Z]{2,}", name) else []
        assert name in known or (each and set(each) <= known), f"{' '.join(verb)} has no {name}"


def test_kubectl_knows_each_option() -> None:
    program = find_programs() / "kubectl"
    checked = 0
    for page, words in commands("kubectl"):
        if "pdcluster" in words[1:2] or len(words) == 1:
            continue
        try:
            check(program, words)
        except AssertionError as error:
            pytest.fail(f"{page.name}: {' '.join(words)}: {error}")
        checked += 1
    assert checked > 60


@pytest.mark.parametrize("name", ["helm3", "helm4"])
def test_both_helms_know_each_option(name: str) -> None:
    program = find_programs() / name
    checked = 0
    for page, words in commands("helm", name):
        if len(words) == 1:
            continue
        # Of Helm 4 alone, and the pages say so.
        known = [word for word in words if name == "helm4" or word != "--force-conflicts"]
        try:
            check(program, known)
        except AssertionError as error:
            pytest.fail(f"{page.name}: {' '.join(words)}: {error}")
        checked += 1
    assert checked > 15


def test_an_option_that_is_not_there_is_noticed() -> None:
    with pytest.raises(AssertionError, match="has no --no-such-option"):
        check(find_programs() / "kubectl", ["kubectl", "get", "pods", "--no-such-option"])
    with pytest.raises(AssertionError, match="has no --alll"):
        check(find_programs() / "helm4", ["helm", "list", "--alll"])
