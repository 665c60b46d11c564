"""The command ``pdcluster``, also ``kubectl pdcluster``.

Shell: a composition root. Everything is imported when it is needed, so that the command starts
fast, and so that an interrupt finds its handler in place.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

from pdcluster_cli.exit_codes import ExitCode

__all__ = ["main"]


def _interrupted(number: int, frame: object) -> NoReturn:  # noqa: ARG001 - signal's own arguments
    print("Interrupted; nothing was started.", file=sys.stderr)
    sys.exit(ExitCode.INTERRUPTED)


def main() -> None:
    """Run the command; an error of ours becomes its message and exit code."""
    # Until a verb handles them itself, which `up` does before it starts anything.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupted)

    from pdcluster_cli.verbs import app  # noqa: PLC0415 - starts fast
    from pdcluster_lease.errors import PDClusterError  # noqa: PLC0415 - same

    try:
        app()
    except PDClusterError as error:
        print(f"Error: {error}", file=sys.stderr)
        # A resource that must be changed has no exit code of its own.
        code: ExitCode = getattr(error, "exit_code", ExitCode.WRONG_USE)
        sys.exit(code)


if __name__ == "__main__":
    main()
