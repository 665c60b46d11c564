"""kubectl for tests: one cluster, JSON in and out, never the user's own configuration."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Kubectl", "KubectlError", "eventually"]


class KubectlError(Exception):
    """kubectl ended with a failure; the message is what it said."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl against one cluster.

    Attributes:
        program: The program.
        kubeconfig: Whose cluster.
    """

    program: Path
    kubeconfig: Path

    def __call__(self, *words: str, stdin: object = None, timeout_s: float = 60.0) -> str:
        """Run a verb; give what it prints."""
        ended = subprocess.run(
            [str(self.program), *words],
            input=json.dumps(stdin) if stdin is not None else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env={
                "KUBECONFIG": str(self.kubeconfig),
                "PATH": os.environ["PATH"],
                "HOME": str(self.kubeconfig.parent),
            },
        )
        if ended.returncode:
            raise KubectlError(ended.stderr.strip())
        return ended.stdout

    def get(self, *words: str) -> Any:
        """Read one or more objects."""
        return json.loads(self("get", *words, "-o", "json"))

    def find(self, *words: str) -> Any:
        """Read one object; None where it is not there."""
        text = self("get", *words, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def apply(self, *objects: Mapping[str, object], namespace: str, dry_run: bool = False) -> str:
        """Apply objects server-side, strictly."""
        words = ["apply", "--server-side", "--validate=strict", "-n", namespace, "-f", "-"]
        if dry_run:
            words.append("--dry-run=server")
        return self(*words, stdin={"apiVersion": "v1", "kind": "List", "items": list(objects)})


def eventually(what: str, holds: Callable[[], Any], *, within_s: float = 60.0) -> Any:
    """Wait until ``holds`` gives something true, and give that."""
    until = time.monotonic() + within_s
    last: object = None
    while time.monotonic() < until:
        try:
            found = holds()
        except (KubectlError, KeyError, IndexError, TypeError) as error:
            last = error
        else:
            if found:
                return found
        time.sleep(0.1)
    message = f"{what} did not come about within {within_s:.0f} s ({last})"
    raise AssertionError(message)
