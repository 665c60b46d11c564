"""The command ``pdcluster``.

Shell: a composition root. Everything is imported when it is needed, so that the command starts
fast, and so that an interrupt finds its handler in place.
"""

from __future__ import annotations

from collections.abc import Callable

from pdcluster_cli.running import run_command_line

__all__ = ["main"]


def _load() -> Callable[[], object]:
    from pdcluster_cli.verbs import app  # noqa: PLC0415 - starts fast

    return app


def main() -> None:
    """Run the command."""
    run_command_line(_load, interrupted="Interrupted; nothing was started.")


if __name__ == "__main__":
    main()
