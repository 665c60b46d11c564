"""What ``kubectl pdcluster`` can be told.

Pure, and light: read before anything else is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["ALL_LINES", "LogOptions", "Part", "Target", "kubeconfig_files"]

ALL_LINES: Final = -1
"""Value of ``--tail`` that leaves nothing out."""


class Part(StrEnum):
    """Whose logs to read."""

    PREFILL = "prefill"
    DECODE = "decode"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which PDCluster, and where.

    Attributes:
        name: Its name.
        namespace: Its namespace; empty means the context's.
        context: The kubeconfig's context; empty means its current one.
        kubeconfig: File that was named; empty means the usual ones.
    """

    name: str
    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Which lines of which pods.

    Attributes:
        part: Whose; None means everybody's.
        follow: Go on until interrupted.
        tail: Last lines of each pod; :data:`ALL_LINES` means all.
        previous: Of the containers before those that run.
    """

    part: Part | None = None
    follow: bool = False
    tail: int = 20
    previous: bool = False


def kubeconfig_files(given: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Files that make up the kubeconfig, as kubectl has it; whether they exist is not asked.

    Args:
        given: A file that was named; nothing else counts then.
        environ: ``KUBECONFIG`` (files with colons between them) and ``HOME`` are read.
    """
    if given:
        return (given,)
    named = tuple(path for path in environ.get("KUBECONFIG", "").split(":") if path)
    home = environ.get("HOME", "").rstrip("/")
    return named or (f"{home}/.kube/config",)
