"""Loopback addresses and ports that nobody uses yet.

Shell: binds and closes again. Each engine gets a loopback address of its own, so that all use the
resource's ports, as pods do.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

from pdcluster_cli.errors import PortTakenError

__all__ = ["free_address", "require_free"]

_FIRST = 2
_LAST = 254


def _bind_error(host: str, port: int) -> int | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # A port whose last connections are only just closed counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            # Another listener that also set SO_REUSEADDR shows only here.
            probe.listen(1)
        except OSError as error:
            return error.errno
    return None


def require_free(host: str, port: int, *, purpose: str, remedy: str) -> None:
    """Make sure that a port can be bound.

    Args:
        host: Address.
        port: Port.
        purpose: What it is for.
        remedy: How to choose another.

    Raises:
        PortTakenError: Somebody listens there, or it may not be bound.
    """
    code = _bind_error(host, port)
    if code is None:
        return
    why = {
        errno.EADDRINUSE: "somebody else listens there",
        errno.EADDRNOTAVAIL: "this machine has no such address (Linux has all of 127.0.0.0/8)",
        errno.EACCES: "only root may use it",
    }.get(code, errno.errorcode.get(code, str(code)))
    raise PortTakenError(f"cannot use {host}:{port} for {purpose}: {why}. {remedy}")


def free_address(taken: Iterable[str], *, ports: Iterable[int]) -> str:
    """Return the first loopback address from 127.0.0.2 on whose ports are all free.

    Args:
        taken: Addresses that are ours already.
        ports: Ports that must be free there.

    Raises:
        PortTakenError: There is none: somebody listens on one of the ports on all addresses.
    """
    ours, wanted = set(taken), tuple(ports)
    for last in range(_FIRST, _LAST + 1):
        host = f"127.0.0.{last}"
        if host not in ours and all(_bind_error(host, port) is None for port in wanted):
            return host
    raise PortTakenError(
        f"ports {', '.join(str(port) for port in wanted)} are taken on every address from "
        f"127.0.0.{_FIRST} to 127.0.0.{_LAST}. Stop what listens on all addresses there, or set "
        "other ports in spec.engine.port and spec.kvTransfer.sideChannelPort"
    )
