"""The simulator's errors.

Pure.
"""

from __future__ import annotations

from typing import ClassVar

from pdcluster_lease.errors import ConfigurationError, PDClusterError

__all__ = ["EngineDeadError", "FlagError", "SimulatorError"]


class SimulatorError(PDClusterError):
    """Base of the simulator's errors."""

    reason: ClassVar[str] = "SimulatorError"


class FlagError(ConfigurationError):
    """A command-line value that vLLM would reject too, or that cannot be simulated."""

    reason: ClassVar[str] = "InvalidFlag"


class EngineDeadError(SimulatorError):
    """The engine's core has ended, by a fault or by input that ends vLLM's core too."""

    reason: ClassVar[str] = "EngineDead"
