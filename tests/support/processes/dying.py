"""A process that fails twice before it lives."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

from tests.support.processes import obedient

if __name__ == "__main__":
    text = sys.stdin.read()
    lives = Path(json.loads(text)["lives"])
    number = int(lives.read_text()) + 1 if lives.exists() else 1
    lives.write_text(str(number))
    if number <= 2:
        sys.exit(1)
    sys.stdin = io.StringIO(text)
    obedient.main()
