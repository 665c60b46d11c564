"""Stand-ins for an engine and a proxy: small programs that supervision can be tested with.

``python standin.py engine ...`` takes an engine's command line, ``python standin.py proxy --config
FILE`` a proxy's. Environment variables make them misbehave: ``STANDIN_FAIL`` (words to say before
exiting with 3), ``STANDIN_CHILD`` (start a grandchild that ignores TERM), ``STANDIN_SHARED`` (make
a file of that name in shared memory), ``STANDIN_DEAF`` (never answer a probe).
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


class _Well(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    allow_reuse_address = True
    allow_reuse_port = True
    daemon_threads = True


def _serve(addresses: list[tuple[str, int]]) -> None:
    for address in addresses:
        Thread(target=_Server(address, _Well).serve_forever, daemon=True).start()


def _misbehave() -> None:
    if words := os.environ.get("STANDIN_FAIL"):
        print(words, flush=True)
        sys.exit(3)
    if name := os.environ.get("STANDIN_SHARED"):
        with Path(f"{name}-{os.getpid()}").open("wb+") as shared:
            shared.truncate(4096)
            # Kept on purpose: a mapping lives as long as its object.
            globals()["mapping"] = mmap.mmap(shared.fileno(), 4096)
    if os.environ.get("STANDIN_CHILD"):
        stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", stubborn])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["engine", "proxy"])
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--config", type=Path)
    options, _ = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("starting", options.kind, flush=True)
    _misbehave()
    if os.environ.get("STANDIN_DEAF"):
        addresses: list[tuple[str, int]] = []
    elif options.kind == "engine":
        addresses = [(options.host, options.port)]
    else:
        config = json.loads(options.config.read_text(encoding="utf-8"))
        addresses = [
            (config[place]["host"], config[place]["port"]) for place in ("listen", "admin")
        ]
    _serve(addresses)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
