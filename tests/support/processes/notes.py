"""A process's notes: one line per step, in the file that its configuration names."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from pdcluster_proxy.settings import ProcessSettings, parse_process_settings


def begin() -> tuple[ProcessSettings, Callable[[str], None]]:
    """Read arguments and configuration as a real one does; returns how to note a step."""
    settings = parse_process_settings(sys.argv[1:])
    path = Path(json.loads(sys.stdin.read())["notes"])

    def note(step: str) -> None:
        with path.open("a") as file:
            file.write(f"{settings.index} {os.getpid()} {step}\n")

    note("began")
    return settings, note
