"""What the command's verbs can be told.

Pure, and light: read before anything else is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["EngineChoice", "Output", "UpOptions"]


class EngineChoice(StrEnum):
    """Which engine ``up`` runs."""

    SIM = "sim"
    VLLM = "vllm"


class Output(StrEnum):
    """How a verb prints."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Options of ``pdcluster up``.

    Attributes:
        file: The resource; None for the packaged example.
        engine: Which engine to run.
        port: Port for clients.
        admin_port: Port of the proxy's admin page.
        workers: The proxy's worker processes; 0 is one per core.
        state_dir: Where run folders go; None for the user's state folder.
    """

    file: str | None
    engine: EngineChoice
    port: int
    admin_port: int
    workers: int
    state_dir: str | None
