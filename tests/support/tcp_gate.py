"""A gate before a TCP service: open, it forwards; closed, connects neither succeed nor fail.

Closed, its accept queue is full, so that the kernel drops further connection requests and the
caller's connect hangs, as before a host that is overloaded. What was connected before goes on. No
hook in the product is needed.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self

_LOOK_S = 0.05


class TcpGate:
    """Listens on a loopback port before ``target``; open at first.

    Args:
        target: Host and port of the service behind it.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self._listener.settimeout(_LOOK_S)
        self.port: int = self._listener.getsockname()[1]
        self._fillers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._ends: list[socket.socket] = []
        self._is_open = threading.Event()
        self._is_parked = threading.Event()
        self._is_over = threading.Event()
        self._is_open.set()
        self._start(threading.Thread(target=self._accept, daemon=True))

    def __enter__(self) -> Self:
        """Use it in a block, so that its threads and sockets end."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Close everything."""
        self._is_over.set()
        self._is_open.set()
        for each in (*self._fillers, *self._ends):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5.0)
        self._listener.close()

    def close(self) -> None:
        """Accept nobody any more; returns once a further connect hangs."""
        self._is_parked.clear()
        self._is_open.clear()
        self._is_parked.wait(5.0)
        while True:
            filler = socket.socket()
            filler.settimeout(0.3)
            self._fillers.append(filler)
            try:
                filler.connect(("127.0.0.1", self.port))
            except TimeoutError:
                return

    def open(self) -> None:
        """Drop the fillers, and forward everybody who waits or comes."""
        for filler in self._fillers:
            filler.close()
        self._fillers.clear()
        self._is_open.set()

    def _start(self, thread: threading.Thread) -> None:
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_over.is_set():
            if not self._is_open.is_set():
                self._is_parked.set()
                self._is_open.wait(_LOOK_S)
                continue
            try:
                near, _ = self._listener.accept()
            except TimeoutError:
                continue
            self._ends.append(near)
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            self._ends.append(far)
            self._start(threading.Thread(target=self._forward, args=(near, far), daemon=True))

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with selectors.DefaultSelector() as ready, contextlib.suppress(OSError):
            ready.register(near, selectors.EVENT_READ)
            ready.register(far, selectors.EVENT_READ)
            while not self._is_over.is_set():
                for key, _ in ready.select(0.5):
                    source = key.fileobj
                    assert isinstance(source, socket.socket), "only sockets were registered"
                    data = source.recv(65536)
                    if not data:
                        near.close()
                        far.close()
                        return
                    other[source].sendall(data)
