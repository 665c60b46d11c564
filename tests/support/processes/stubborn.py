"""A process that does not end when it is asked to."""

from __future__ import annotations

import signal

from tests.support.processes.notes import begin


def main() -> None:
    _, note = begin()
    signal.signal(signal.SIGTERM, lambda _number, _frame: note("ignored"))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    note("ready")
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
