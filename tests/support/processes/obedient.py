"""A process that does as it is told: SIGUSR1 is noted, SIGTERM ends it."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from tests.support.processes.notes import begin


def main() -> None:
    _, note = begin()

    def end(_number: int, _frame: FrameType | None) -> None:
        note("ended")
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGUSR1, lambda _number, _frame: note("drains"))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    note("ready")
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
