"""`kubectl pdcluster` as people run it: kubectl finds the plugin on the PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Plugin"]

Ended = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True)
class Plugin:
    """kubectl with the plugin of this environment.

    Attributes:
        kubectl: The program kubectl.
        kubeconfig: Whose cluster.
        home: A home folder without a kubeconfig.
    """

    kubectl: Path
    kubeconfig: Path
    home: Path

    def __call__(self, *words: str, timeout_s: float = 60.0, **environ: str) -> Ended:
        """Run ``kubectl pdcluster WORDS``; whatever it ends with."""
        return subprocess.run(
            [str(self.kubectl), "pdcluster", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env={**self._environ(), **environ},
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start ``kubectl pdcluster WORDS``, for what goes on until it is told to stop."""
        return subprocess.Popen(
            [str(self.kubectl), "pdcluster", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environ(),
        )

    def _environ(self) -> dict[str, str]:
        # The environment's own programs first: kubectl-pdcluster lies beside its Python.
        return {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.home),
            "KUBECONFIG": str(self.kubeconfig),
            "COLUMNS": "200",
        }
