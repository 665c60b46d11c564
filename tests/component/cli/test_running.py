"""A signal ends a command line where it waits, not in the middle of what it does."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal, sys
from pdcluster_cli.running import run_command_line, run_until_interrupted

async def verb():
    os.kill(os.getpid(), signal.{name})
    print("went on", flush=True)
    try:
        await asyncio.sleep(20)
    finally:
        print("left in order", flush=True)

run_command_line(lambda: lambda: sys.exit(run_until_interrupted(verb)), interrupted="")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_cancels_a_verb_where_it_waits(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM.format(name=name)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "went on\nleft in order\n", "")
