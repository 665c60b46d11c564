"""``pdcluster up`` as a process of its own, for tests that talk to it from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

WAIT_S = 60.0


class RunningUp:
    """One run of the command; killed with everything below it when the block ends."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        port: int,
        admin_port: int | None = None,
        env: Mapping[str, str] | None = None,
        under: Sequence[str] = (),
    ) -> None:
        """Start it.

        Args:
            folder: Its home, and where its output and its runs go.
            words: Its own words, beside ports and folders.
            port: Port for clients.
            admin_port: Port of the admin page; the next one by default.
            env: Variables beside those of the test run.
            under: Command that runs it.
        """
        self.url = f"http://127.0.0.1:{port}"
        self.output = folder / "up.txt"
        self.state_dir = folder / "state"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *under,
                    sys.executable,
                    "-m",
                    "pdcluster_cli.main",
                    "up",
                    f"--port={port}",
                    f"--admin-port={admin_port or port + 1}",
                    "--workers=1",
                    f"--state-dir={self.state_dir}",
                    *words,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "HOME": str(folder), "COLUMNS": "200", **(env or {})},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            below = self.tree()
            self.process.kill()
            self.process.wait(WAIT_S)
            psutil.wait_procs(below, timeout=WAIT_S)

    @property
    def text(self) -> str:
        """Everything it has printed so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    @property
    def run_dir(self) -> Path:
        """The folder of its one run."""
        (run_dir,) = (self.state_dir / "runs").iterdir()
        return run_dir

    def wait_for(self, words: str, *, times: int = 1, within_s: float = WAIT_S) -> None:
        """Wait until it has printed some words, so many times."""
        deadline = time.monotonic() + within_s
        while self.text.count(words) < times:
            assert self.process.poll() is None, f"it ended: {self.text}"
            assert time.monotonic() < deadline, f"no {words!r} in:\n{self.text}"
            time.sleep(0.05)

    def tree(self) -> list[psutil.Process]:
        """Every process below it."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def program(self, word: str) -> psutil.Process:
        """Return the first program below a guard with a word in its command line."""
        for process in self.tree():
            words = process.cmdline()
            if word in " ".join(words) and "pdcluster_cli.guard" not in words:
                return process
        raise AssertionError(f"no program with {word!r}")

    def guard_of(self, process: psutil.Process) -> psutil.Process:
        """Return the guard above a program."""
        parent = process.parent()
        assert parent is not None
        assert "pdcluster_cli.guard" in parent.cmdline()
        return parent

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to drain and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def ask(self, model: str, content: str = "Say hello.") -> str:
        """Send one chat request and return the answer."""
        answer = httpx.post(
            f"{self.url}/v1/chat/completions",
            json={
                "model": model,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": 8,
                "temperature": 0,
            },
            timeout=30.0,
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
        text = answer.json()["choices"][0]["message"]["content"]
        assert isinstance(text, str)
        return text


def gone(processes: list[psutil.Process], *, within_s: float = 20.0) -> bool:
    """Whether all processes end within a time."""
    return psutil.wait_procs(processes, timeout=within_s)[1] == []
