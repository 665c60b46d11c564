"""Who is told what happens.

Pure: a port and the listener that ignores everything.
"""

from __future__ import annotations

from typing import Protocol

from pdcluster_cli.up.snapshot import Snapshot

__all__ = ["Listener", "Silent"]


class Listener(Protocol):
    """Is told what happens; must not block."""

    def changed(self, snapshot: Snapshot) -> None:
        """Take note of the latest snapshot; called often, also where nothing has changed."""

    def told(self, message: str) -> None:
        """Take note of something a person should know."""


class Silent:
    """A listener that does nothing."""

    def changed(self, snapshot: Snapshot) -> None:
        """Do nothing."""

    def told(self, message: str) -> None:
        """Do nothing."""
