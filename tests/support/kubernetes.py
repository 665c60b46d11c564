"""kubectl for tests: one cluster, JSON in and out, never the user's own configuration."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Kubectl", "KubectlError", "claimed_folder", "eventually"]


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

    def wait_established(self, *crds: str) -> None:
        """Wait until the server knows the kinds of these CRDs.

        ``kubectl wait`` gives up on one that is so new that its status has no conditions yet.
        """
        words = ("wait", "--for=condition=Established", "crd", *crds, "--timeout=5s")
        eventually(f"{' '.join(crds)} established", lambda: self(*words))

    def delete_crds(self, *crds: str) -> None:
        """Delete CRDs, those that are there, and wait for their end.

        Kubernetes forgets the end of one that was changed a moment ago, about once in fifty times
        (docs/kubernetes/uninstall.md): a change reminds it.
        """
        self("delete", "crd", *crds, "--ignore-not-found", "--wait=false")

        def are_gone() -> bool:
            try:
                self("wait", "--for=delete", "crd", *crds, "--timeout=5s")
            except KubectlError:
                for crd in filter(lambda crd: self.find("crd", crd), crds):
                    self("annotate", "crd", crd, f"reminded={time.monotonic()}", "--overwrite")
                return False
            return True

        eventually(f"the end of {' '.join(crds)}", are_gone)


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


@contextmanager
def claimed_folder(name: str) -> Iterator[Path]:
    """Give a cluster's folder that no other session uses, so that several run side by side.

    The first free number is taken, not a new one each time: what a killed session has left in its
    folder is found and removed by the next that starts a cluster there.
    """
    for number in itertools.count():
        folder = Path(f"/dev/shm/{name}-{number}")
        claim = Path(f"{folder}.claim")
        with claim.open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if not claim.exists() or claim.stat().st_ino != os.fstat(held.fileno()).st_ino:
                continue  # Its holder was just about to leave; the next number will do.
            folder.mkdir(exist_ok=True)
            try:
                yield folder
            finally:
                claim.unlink()
        return
