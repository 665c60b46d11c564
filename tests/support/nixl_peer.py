"""A process that owns registered memory and does with its agent what its standard input says.

Run as ``python -m tests.support.nixl_peer NAME NUM_BLOCKS BLOCK_BYTES``. Block i is filled with
byte i + 1. First it prints one line of JSON: its metadata (hex) and address. Then one command per
line: ``poll SECONDS`` polls that long and prints the notifications it got, ``fill BLOCK BYTE``
overwrites one block, ``stall SECONDS`` makes no call at all, ``quit`` ends it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pdcluster_lease.agent import Notified, RemoteBlocks
from pdcluster_lease.nixl_agent import NixlAgent

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.001


@dataclass(frozen=True, kw_only=True)
class PeerProcess:
    """The parent's handle on one such process."""

    process: subprocess.Popen[str]
    metadata: bytes
    blocks: RemoteBlocks

    def tell(self, command: str) -> None:
        """Send one command."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> object:
        """Read one line of JSON."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        """Kill it at once and wait until it is gone."""
        self.process.kill()
        self.process.wait(timeout=10)


@contextmanager
def peer_process(
    name: str, *, num_blocks: int, block_bytes: int, env: dict[str, str]
) -> Iterator[PeerProcess]:
    """Start a peer, and end it by its pid."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.nixl_peer", name, str(num_blocks), str(block_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=env,
    ) as process:
        try:
            assert process.stdout is not None
            first = json.loads(process.stdout.readline())
            blocks = RemoteBlocks(
                base_addrs=(first["address"],), block_bytes=(block_bytes,), num_blocks=num_blocks
            )
            metadata = bytes.fromhex(first["metadata"])
            yield PeerProcess(process=process, metadata=metadata, blocks=blocks)
        finally:
            process.kill()


def main(name: str, num_blocks: int, block_bytes: int) -> None:
    """Obey until told to quit or the parent is gone."""
    memory = bytearray(b"".join(bytes([i + 1]) * block_bytes for i in range(num_blocks)))
    agent = NixlAgent(name)
    address = agent.register(memoryview(memory), block_bytes)
    print(json.dumps({"metadata": agent.metadata().hex(), "address": address}), flush=True)
    for line in sys.stdin:
        verb, *args = line.split()
        if verb == "quit":
            break
        if verb == "stall":
            time.sleep(float(args[0]))
        elif verb == "fill":
            block, value = map(int, args)
            memory[block * block_bytes : (block + 1) * block_bytes] = bytes([value]) * block_bytes
        elif verb == "poll":
            print(json.dumps(poll_for(agent, float(args[0]))), flush=True)
    agent.close()


def poll_for(agent: NixlAgent, seconds: float) -> list[str]:
    """Poll for a while; return what was notified."""
    got = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        got += [event.payload.decode() for event in agent.poll() if isinstance(event, Notified)]
        time.sleep(POLL_S)
    return got


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
