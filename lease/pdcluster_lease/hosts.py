"""Which side-channel hosts may be believed.

Pure. Judges the spelling of an address only; whether it is the one that discovery published is the
caller's comparison. No name is resolved here.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

from pdcluster_lease import defaults

__all__ = ["host_fault"]

_NAME_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.")
_LABEL_MAX_CHARS: Final = 63
# Names and addresses under which clouds serve instance credentials; none of them is link-local,
# which is rejected as a range.
_METADATA_NAMES: Final = frozenset({"metadata", "metadata.google.internal"})
_METADATA_ADDRESSES: Final = frozenset(
    ipaddress.ip_address(text) for text in ("100.100.100.200", "168.63.129.16", "fd00:ec2::254")
)


@lru_cache(maxsize=1024)
def host_fault(host: str) -> str | None:
    """Say what is wrong with a host an engine advertised, or None.

    Rejected are: nothing at all, names over 253 characters, unspecified, multicast and link-local
    addresses, metadata services, IPv4 in IPv6 clothing, and numbers that some resolvers read as
    an address ("127.1", "0x7f000001"). Loopback is fine: local clusters live there.

    Args:
        host: A host name, an IPv4 address, or an IPv6 address without brackets and zone.
    """
    if not host or len(host) > defaults.ADDRESS_NAME_MAX_CHARS:
        return f"expected 1 to {defaults.ADDRESS_NAME_MAX_CHARS} characters, got {len(host)}"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _name_fault(host)
    return _address_fault(address)


def _name_fault(host: str) -> str | None:
    if not _NAME_CHARS.issuperset(host.lower()):
        return "neither an IP address nor a host name"
    labels = host.rstrip(".").lower().split(".")
    if any(not label or len(label) > _LABEL_MAX_CHARS for label in labels):
        return "a label of the host name is empty or longer than 63 characters"
    if labels[-1].isdigit() or labels[-1].startswith("0x"):
        # inet_aton() reads these as addresses, ipaddress does not: they only serve to get past
        # filters like this one.
        return "a number that is no dotted-quad address"
    if ".".join(labels) in _METADATA_NAMES:
        return "a metadata service"
    return None


def _address_fault(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str | None:
    dressed = isinstance(address, ipaddress.IPv6Address) and (
        address.ipv4_mapped or address.sixtofour or address.teredo
    )
    zoned = isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None
    rejected = (
        (zoned, "an IPv6 zone"),
        (dressed, "an IPv4 address dressed as IPv6"),
        (address in _METADATA_ADDRESSES, "a metadata service"),
        (address.is_unspecified, "the unspecified address, which nobody can reach"),
        (address.is_multicast, "a multicast address"),
        (address.is_link_local, "a link-local address, where metadata services live"),
        (address.is_reserved and not address.is_loopback, "a reserved address"),
    )
    return next((fault for applies, fault in rejected if applies), None)
