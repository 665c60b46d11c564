"""A process that is told things before it can hear them: it begins slowly, then it is obedient."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path

from tests.support.processes import obedient

if __name__ == "__main__":
    text = sys.stdin.read()
    lives = Path(json.loads(text)["lives"])
    lives.write_text("begun")
    while lives.exists():  # The test takes it away once it has said what it has to say.
        time.sleep(0.01)
    sys.stdin = io.StringIO(text)
    obedient.main()
