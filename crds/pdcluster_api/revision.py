"""The revision: a hash of everything in which a pair must agree.

Pure. Eight hex digits over what may enter vLLM's compatibility hash or the lease: the model, the
engine, both roles' image, words, environment and parallel sizes, and the KV transfer. A change that
alters it is rolled out as a new pair of roles; replicas, resources, probes and pod metadata do not
alter it.

An operator upgrade must not roll engines. So the hash is over the user's own values with defaults
filled in, fields that are unset are left out, and a field added after v1alpha1's first release
enters only where it differs from the value that means "as before": list it in :data:`NEUTRAL`. The
same holds for what engines are rendered from, beside the revision.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from pdcluster_api.problems import Path
from pdcluster_api.v1alpha1 import PDClusterSpec

__all__ = ["NEUTRAL", "drop_neutral", "revision_of"]

_HEX_DIGITS: Final = 8
_ROLE_FIELDS: Final = (
    "image",
    "args",
    "env",
    "tensorParallelSize",
    "pipelineParallelSize",
    "dataParallelSize",
)

NEUTRAL: Final[Mapping[Path, object]] = {}
"""Fields added later, with the value that changes nothing; see the module's docstring."""


def revision_of(spec: PDClusterSpec, *, neutral: Mapping[Path, object] = NEUTRAL) -> str:
    """Return the revision of a spec.

    Args:
        spec: The spec.
        neutral: Fields that enter only where they differ from the given value.
    """
    full = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    document: dict[str, object] = {
        "model": full["model"],
        "engine": full["engine"],
        "kvTransfer": full["kvTransfer"],
    }
    for role in ("prefill", "decode"):
        document[role] = {name: full[role][name] for name in _ROLE_FIELDS}
    drop_neutral(document, neutral)
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:_HEX_DIGITS]


def drop_neutral(
    document: dict[str, object], neutral: Mapping[Path, object] = NEUTRAL
) -> dict[str, object]:
    """Take fields out of a dumped spec, or part of it, that were added later and change nothing.

    Args:
        document: The spec; changed, and given back.
        neutral: Those fields, with their values.
    """
    for path, value in neutral.items():
        _drop_if_equal(document, path, value)
    return document


def _drop_if_equal(document: dict[str, object], path: Path, value: object) -> None:
    node: object = document
    for step in path[:-1]:
        node = node.get(step) if isinstance(node, dict) else None
    if isinstance(node, dict) and node.get(path[-1]) == value:
        del node[path[-1]]
