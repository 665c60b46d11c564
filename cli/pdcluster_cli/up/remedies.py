"""What to do about an engine that cannot start, from its last words.

Pure. A table: the first pattern found wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["REMEDIES", "remedy_for"]

REMEDIES: Final = (
    (
        re.compile(r"address already in use", re.IGNORECASE),
        (
            "Another process took its port meanwhile: stop it, or set spec.engine.port or "
            "spec.kvTransfer.sideChannelPort."
        ),
    ),
    (
        re.compile(r"unrecognized arguments|invalid choice|expected one argument"),
        "The engine does not know one of its words: correct spec.engine.args or the role's args.",
    ),
    (
        re.compile(r"NIXL is not available|No module named '?nixl|NixlMissing"),
        (
            "NIXL is missing in the engine's environment: pip install 'pdcluster[nixl]', or for "
            "vLLM run `make vllm-env` again."
        ),
    ),
    (
        re.compile(r"No module named '?vllm|cannot run \S+: No such file"),
        "The engine's program is not there: run `make vllm-env`, or correct spec.engine.command.",
    ),
    (
        re.compile(
            r"Repo id must|is not a local folder|does not appear to have|Can't load|HFValidation"
        ),
        "The model cannot be loaded: spec.model.name must be a folder or a name the hub knows.",
    ),
    (
        re.compile(r"No common block size"),
        (
            "This block size does not suit the machine: set --block-size=32 (on CPU a multiple of "
            "32) in spec.engine.args."
        ),
    ),
    (
        re.compile(
            r"out of memory|MemoryError|Cannot allocate memory|No available memory", re.IGNORECASE
        ),
        "There is too little memory: fewer replicas, a smaller model, or a smaller KV cache.",
    ),
)
"""Pattern in the log, remedy."""


def remedy_for(lines: Iterable[str]) -> str:
    """Return what to do, or an empty text where the lines say nothing we know."""
    text = "\n".join(lines)
    return next((remedy for pattern, remedy in REMEDIES if pattern.search(text)), "")
