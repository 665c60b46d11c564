"""The kinds of engine that a suite runs on, and what to do where one cannot be run here."""

from __future__ import annotations

import os

import pytest

from tests.support.engines import EngineKind, sim_kind, vllm_kind

KINDS = ("sim", "vllm")


def engine_kind(name: str, *sim_args: str) -> EngineKind:
    """Return a kind by its name; skips the case where it is missing, and fails it in CI.

    Args:
        name: One of :data:`KINDS`.
        sim_args: Words for every simulated engine.
    """
    found = sim_kind(*sim_args) if name == "sim" else vllm_kind(os.environ)
    if found.missing is not None:
        if os.environ.get("CI"):
            pytest.fail(f"CI proves both kinds of engine: {found.missing}")
        pytest.skip(found.missing)
    return found
