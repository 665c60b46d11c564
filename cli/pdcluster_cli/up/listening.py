"""Who is told what happens.

Pure: a port and the listener that ignores everything.
"""

from __future__ import annotations

from typing import Protocol

from pdcluster_cli.up.fleet import Fleet

__all__ = ["Listener", "Silent"]


class Listener(Protocol):
    """Is told what happens; must not block."""

    def changed(self, fleet: Fleet) -> None:
        """Take note of the fleet as it is now; called often, also where nothing has changed."""

    def told(self, message: str) -> None:
        """Take note of something a person should know."""


class Silent:
    """A listener that does nothing."""

    def changed(self, fleet: Fleet) -> None:
        """Do nothing."""

    def told(self, message: str) -> None:
        """Do nothing."""
