"""What tests of processes need: waiting with a deadline, and a look at what is left."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

WAIT_S = 20.0


def _until(holds: Callable[[], bool], *, within_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


@pytest.fixture
def until() -> Callable[..., None]:
    """Return a function that waits until a condition holds, with a deadline."""
    return _until


@pytest.fixture
def shared_name() -> Iterator[str]:
    """Return a name for files in shared memory; none of it is left afterwards."""
    name = f"/dev/shm/pdcluster-test-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    left = list(Path("/dev/shm").glob(f"{Path(name).name}*"))
    for path in left:
        path.unlink()
    assert left == []


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Assert that the test leaves no process of ours behind."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield

    def quiet() -> bool:
        now = psutil.Process().children(recursive=True)
        return all(child.pid in before for child in now)

    _until(quiet)


@pytest.fixture
def free_port() -> int:
    """Return the first of three ports that nobody uses on any address.

    They lie below the range from which the kernel gives ports to connections.
    """
    for first in itertools.count(20_000 + os.getpid() % 900 * 10, 3):
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + 3):
                probe = probes.enter_context(socket.socket())
                probe.bind(("0.0.0.0", port))
            return first
    raise AssertionError("no port is free")
