"""A process's tie to its parent: it dies with it.

Shell. Linux only, like the project.
"""

from __future__ import annotations

import ctypes
import os
import signal

from pdcluster_proxy.errors import SupervisorGoneError

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1
"""prctl(2), linux/prctl.h."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends.

    Args:
        parent: The parent's process id, by which a parent that is gone already is noticed.

    Raises:
        SupervisorGoneError: The parent has ended before the tie was made.
        OSError: The kernel does not know the call.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        raise SupervisorGoneError("The supervisor ended before this process began.")
