"""Where the command keeps its files, from the environment.

Pure: the composition root passes the environment in; nothing else reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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

    cache_dir: str
    state_dir: str
    models_dir: str
    home_dir: str

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Read the settings.

        Args:
            environ: ``PDCLUSTER_CACHE``, ``XDG_CACHE_HOME``, ``XDG_STATE_HOME``, ``HF_HOME`` and
                ``HOME`` are read; an empty value counts as unset.
        """
        home = environ.get("HOME") or "/"
        below = home.rstrip("/")
        caches = environ.get("XDG_CACHE_HOME") or f"{below}/.cache"
        states = environ.get("XDG_STATE_HOME") or f"{below}/.local/state"
        return cls(
            cache_dir=environ.get("PDCLUSTER_CACHE") or f"{caches}/pdcluster",
            state_dir=f"{states}/pdcluster",
            models_dir=environ.get("HF_HOME") or f"{caches}/huggingface",
            home_dir=home,
        )
