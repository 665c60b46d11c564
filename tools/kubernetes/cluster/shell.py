"""Running programs, and waiting for what they bring about.

Shell.
"""

from __future__ import annotations

import http.client
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["ClusterError", "run", "wait_for"]


class ClusterError(Exception):
    """The cluster could not do what was asked; the message says why."""


def run(*argv: str | Path, check: bool = True) -> str:
    """Run a program to its end.

    Returns:
        What it printed.

    Raises:
        ClusterError: It is missing, or ended with a failure and ``check`` is set.
    """
    words = [str(word) for word in argv]
    try:
        ended = subprocess.run(words, text=True, capture_output=True, check=False)
    except FileNotFoundError as error:
        message = f"the program {words[0]!r} is missing"
        raise ClusterError(message) from error
    if check and ended.returncode:
        message = f"{' '.join(words)}: {ended.stderr.strip() or ended.returncode}"
        raise ClusterError(message)
    return ended.stdout


def wait_for(
    what: str, test: Callable[[], object], *, timeout_s: float, pause_s: float = 0.1
) -> None:
    """Try ``test`` until it gives something true; what it raises meanwhile is kept for the message.

    Raises:
        ClusterError: It did not within ``timeout_s``.
    """
    until = time.monotonic() + timeout_s
    last: Exception | None = None
    while time.monotonic() < until:
        try:
            if test():
                return
        except (OSError, ClusterError, http.client.HTTPException, ValueError, KeyError) as error:
            last = error
        time.sleep(pause_s)
    message = f"no {what} after {timeout_s:.0f} s" + (f": {last}" if last else "")
    raise ClusterError(message)
