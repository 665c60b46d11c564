"""Builders of PDCluster resources: plain objects, as a person would write them.

Fields are Any on purpose: half of them are wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_api.v1alpha1.shape import BROKEN_RULES

MODEL = {"name": "Qwen/Qwen3-8B"}
ENGINE = {"image": "sim:1"}


def resource(
    spec: Mapping[str, object] | None = None,
    /,
    *,
    name: str = "qwen",
    **fields: Any,
) -> dict[str, object]:
    """Return a resource with a minimal spec and the given fields of it."""
    minimal = {"model": MODEL, "engine": ENGINE}
    return {
        "apiVersion": "pdcluster.io/v1alpha1",
        "kind": "PDCluster",
        "metadata": {"name": name},
        "spec": dict(spec) if spec is not None else minimal | fields,
    }


def text_of(*documents: object) -> str:
    """Return documents as the text of one YAML file."""
    return yaml.safe_dump_all(documents, sort_keys=False)


def validated(document: Mapping[str, object]) -> PDCluster:
    """Return the model of a resource, without what only the loader rejects."""
    return PDCluster.model_validate_json(json.dumps(document), by_alias=True, by_name=False)


def cluster(**fields: Any) -> PDCluster:
    """Return the model of a minimal resource with the given fields of its spec."""
    return validated(resource(**fields))


def broken_by(document: Any) -> tuple[set[str], bool]:
    """Return the messages of the rules that a resource breaks, and whether more is wrong."""
    try:
        validated(document)
    except ValidationError as error:
        messages = {
            rule.message
            for details in error.errors()
            if details["type"] == BROKEN_RULES
            for rule in details["ctx"]["broken"]
        }
        return messages, any(details["type"] != BROKEN_RULES for details in error.errors())
    return set(), False
