"""Loopback addresses and ports that nobody uses yet.

Shell: binds and closes again. Each engine gets a loopback address of its own, so that all use the
resource's ports, as pods do.
"""

from __future__ import annotations

import errno
import itertools
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pdcluster_cli.errors import PortTakenError

__all__ = ["WantedPort", "free_address", "require_free"]

_HOSTS: Final = tuple(f"127.0.0.{last}" for last in range(2, 255))
_HEADLINE: Final = "several ports cannot be used:"
_WHY: Final = {
    errno.EADDRINUSE: "another program listens there",
    errno.EADDRNOTAVAIL: "this machine has no such address (Linux has all of 127.0.0.0/8)",
    errno.EACCES: "only root may use it",
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPort:
    """A port that must be free.

    Attributes:
        field: What sets it: an option, or a field of the resource.
        number: The port.
        purpose: What it is for.
        host: The address; None for addresses of the engines' own, from 127.0.0.2 on.
    """

    field: str
    number: int
    purpose: str
    host: str | None = None


def require_free(wanted: Sequence[WantedPort], *, num_engines: int) -> None:
    """Make sure that all ports can be bound.

    Args:
        wanted: The ports; those at one address must differ.
        num_engines: How many addresses of their own the engines need.

    Raises:
        PortTakenError: Somebody listens on some of them, or they may not be bound; it tells all.
    """
    told = []
    for index, port in enumerate(wanted):
        why = _why_not(port, num_engines)
        for other in wanted[:index]:
            if port.host is not None and (port.host, port.number) == (other.host, other.number):
                why = f"{other.field} has it already"
        if why is not None:
            told.append(f"{port.field}: {port.number}: {why}; choose another for {port.purpose}")
    if told:
        raise PortTakenError("\n  ".join([_HEADLINE, *told]) if len(told) > 1 else told[0])


def _why_not(port: WantedPort, num_engines: int) -> str | None:
    if port.host is not None:
        code = _bind_error(port.host, port.number)
        return None if code is None else f"{_WHY.get(code, _name(code))} at {port.host}"
    free = (host for host in _HOSTS if _bind_error(host, port.number) is None)
    if len(list(itertools.islice(free, num_engines))) == num_engines:
        return None
    return (
        f"another program listens there, so that fewer than {num_engines} addresses from "
        f"{_HOSTS[0]} to {_HOSTS[-1]} are free"
    )


def _name(code: int) -> str:
    return errno.errorcode.get(code, str(code))


def free_address(taken: Iterable[str], *, ports: Iterable[int]) -> str:
    """Return the first loopback address from 127.0.0.2 on whose ports are all free.

    Args:
        taken: Addresses that are ours already.
        ports: Ports that must be free there.

    Raises:
        PortTakenError: There is none: somebody listens on one of the ports on all addresses.
    """
    ours, wanted = set(taken), tuple(ports)
    for host in _HOSTS:
        if host not in ours and all(_bind_error(host, port) is None for port in wanted):
            return host
    raise PortTakenError(
        f"ports {', '.join(str(port) for port in wanted)} are taken on every address from "
        f"{_HOSTS[0]} to {_HOSTS[-1]}. Stop what listens on all addresses there, or set "
        "other ports in spec.engine.port and spec.kvTransfer.sideChannelPort"
    )
