from __future__ import annotations

import pytest

from pdcluster_cli.settings import Settings


def test_everything_lies_below_home_by_default() -> None:
    assert Settings.from_environ({"HOME": "/home/me"}) == Settings(
        cache_dir="/home/me/.cache/pdcluster",
        state_dir="/home/me/.local/state/pdcluster",
        models_dir="/home/me/.cache/huggingface",
        home_dir="/home/me",
    )


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("XDG_CACHE_HOME", "/c", "cache_dir", "/c/pdcluster"),
        ("XDG_CACHE_HOME", "/c", "models_dir", "/c/huggingface"),
        ("XDG_STATE_HOME", "/s", "state_dir", "/s/pdcluster"),
        ("PDCLUSTER_CACHE", "/p", "cache_dir", "/p"),
        ("HF_HOME", "/m", "models_dir", "/m"),
    ],
)
def test_a_variable_moves_its_folder(name: str, value: str, field: str, expected: str) -> None:
    settings = Settings.from_environ({"HOME": "/home/me", name: value})
    assert getattr(settings, field) == expected


def test_an_empty_variable_counts_as_unset() -> None:
    names = ("XDG_CACHE_HOME", "XDG_STATE_HOME", "PDCLUSTER_CACHE", "HF_HOME")
    empty = dict.fromkeys(names, "")
    assert Settings.from_environ({"HOME": "/h", **empty}) == Settings.from_environ({"HOME": "/h"})


def test_without_a_home_there_is_still_an_answer() -> None:
    assert Settings.from_environ({}).state_dir == "/.local/state/pdcluster"
