"""Where the command keeps its files, from the environment.

Pure: the composition root passes the environment in; nothing else reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Folders of the command.

    Attributes:
        cache_dir: What is expensive to make: engine environments, engines' caches.
        state_dir: What a run leaves: logs, configuration it used.
        models_dir: Downloaded models, shared with other tools of the user.
        home_dir: The user's home.
    """

    cache_dir: Path
    state_dir: Path
    models_dir: Path
    home_dir: Path

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Read the settings.

        Args:
            environ: ``PDCLUSTER_CACHE``, ``XDG_CACHE_HOME``, ``XDG_STATE_HOME``, ``HF_HOME`` and
                ``HOME`` are read; an empty value counts as unset.
        """
        home = Path(environ.get("HOME") or "/")
        caches = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
        states = Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state")
        return cls(
            cache_dir=Path(environ.get("PDCLUSTER_CACHE") or caches / "pdcluster"),
            state_dir=states / "pdcluster",
            models_dir=Path(environ.get("HF_HOME") or caches / "huggingface"),
            home_dir=home,
        )
