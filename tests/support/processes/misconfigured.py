"""A process whose configuration a person must change."""

from __future__ import annotations

import sys

from tests.support.processes.notes import begin

if __name__ == "__main__":
    begin()
    sys.exit(2)
