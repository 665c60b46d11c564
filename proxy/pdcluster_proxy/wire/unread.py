"""Whether a client reads what was written for it.

Shell. What it has yet to take lies in our buffer and in the kernel's; the latter counts too, for a
buffer of ours only shrinks in steps of megabytes where the kernel's is that large. Looked at by the
server's sweep for connections whose answer is whole, so a request pays nothing for it.
"""

from __future__ import annotations

import array
import fcntl
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

__all__ = ["UnreadAnswer"]


class UnreadAnswer:
    """What one client has yet to read of answers that are whole.

    Args:
        grace_s: A client may read nothing for so long.
        bytes_per_s: Slowest reader, over each such time.
    """

    __slots__ = ("_bytes_per_s", "_grace_s", "_left", "_since")

    def __init__(self, *, grace_s: float, bytes_per_s: float) -> None:
        self._grace_s = grace_s
        self._bytes_per_s = bytes_per_s
        # This is all the mutable state.
        self._since: float | None = None
        self._left = 0

    def is_given_up(self, transport: asyncio.Transport, *, now: float, since: float) -> bool:
        """Tell whether the client reads too little; look once per sweep.

        Args:
            transport: Its connection.
            now: Monotonic seconds.
            since: Monotonic instant from which on nothing new was written.
        """
        left = transport.get_write_buffer_size()
        if not left:
            self._since = None
            return False
        left += _num_unacknowledged(transport)
        if self._since is None or self._since < since:
            self._since, self._left = now, left
            return False
        elapsed = now - self._since
        if elapsed <= self._grace_s:
            return False
        taken, self._since, self._left = self._left - left, now, left
        return taken < elapsed * self._bytes_per_s


def _num_unacknowledged(transport: asyncio.Transport) -> int:
    """Bytes that the kernel holds for the client (SIOCOUTQ of tcp(7), the same as TIOCOUTQ)."""
    raw = transport.get_extra_info("socket")
    descriptor = -1 if raw is None else raw.fileno()
    if descriptor < 0:  # It is closed already.
        return 0
    size = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.TIOCOUTQ, size)
    return size[0]
