"""The command ``kubectl-pdcluster``, which kubectl runs as ``kubectl pdcluster``.

Shell: a composition root. Everything is imported when it is needed, so that the command starts
fast, and so that an interrupt finds its handler in place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pdcluster_cli.running import run_command_line

__all__ = ["main"]


def _load() -> Callable[[], object]:
    from pdcluster_cli.kubectl.verbs import app  # noqa: PLC0415 - starts fast

    # kubectl finds the program by its name and hides it.
    return partial(app, prog_name="kubectl pdcluster")


def main() -> None:
    """Run the command."""
    run_command_line(_load, interrupted="")


if __name__ == "__main__":
    main()
