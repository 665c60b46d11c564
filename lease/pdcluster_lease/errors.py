"""The root of all our errors, and the lease protocol's own family.

Pure. The root lives in the lowest layer so that every program can derive from it. Families name
who can act; leaves name the cause. ``reason`` is CamelCase and stable: it is used in Events,
conditions, metrics and logs.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ConfigurationError",
    "HandshakeTimeoutError",
    "LocalProtocolError",
    "NixlMissingError",
    "PDClusterError",
    "PeerGoneError",
    "ProtocolError",
    "RemoteProtocolError",
    "SideChannelError",
    "TimingError",
    "TransferError",
]


class PDClusterError(Exception):
    """Anything this project raises on purpose.

    Attributes:
        reason: Stable CamelCase word for Events, conditions, metrics and logs.
    """

    reason: ClassVar[str] = "Unknown"


class ConfigurationError(PDClusterError):
    """A person must change something; never retried."""

    reason: ClassVar[str] = "InvalidConfiguration"


class TimingError(ConfigurationError):
    """Lease settings that break one of the protocol's inequalities.

    Attributes:
        inequality: The broken inequality in words, for example ``duration >= 6``.
        field: The resource's field that has to change, for example
            ``spec.kvTransfer.kvLeaseDurationSeconds``.
        remedy: What to do, as an imperative sentence.
    """

    reason: ClassVar[str] = "InvalidTiming"

    def __init__(self, *, inequality: str, field: str, remedy: str) -> None:
        super().__init__(f"{field}: {inequality} does not hold. {remedy}")
        self.inequality = inequality
        self.field = field
        self.remedy = remedy


class NixlMissingError(ConfigurationError):
    """No NIXL library can be loaded here; the message names what was tried and the remedy."""

    reason: ClassVar[str] = "NixlMissing"


class SideChannelError(ConfigurationError):
    """The side channel cannot listen: its address is taken, or not this machine's."""

    reason: ClassVar[str] = "SideChannelUnavailable"


class ProtocolError(PDClusterError):
    """The lease protocol was broken; see the two leaves for by whom."""

    reason: ClassVar[str] = "ProtocolError"


class LocalProtocolError(ProtocolError):
    """We broke the protocol: a bug of ours."""

    reason: ClassVar[str] = "LocalProtocolError"


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol; what it sent is rejected and counted.

    Attributes:
        field: The wire field at fault, or an empty string where the whole message is.
    """

    reason: ClassVar[str] = "RemoteProtocolError"

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class PeerGoneError(ProtocolError):
    """The peer's agent cannot be reached any more; drop it and shake hands anew."""

    reason: ClassVar[str] = "PeerGone"


class HandshakeTimeoutError(ProtocolError):
    """A side channel did not answer in time: nobody listens there, or its listener has ended."""

    reason: ClassVar[str] = "HandshakeTimeout"


class TransferError(ProtocolError):
    """NIXL rejected or lost a call for a reason other than a peer that is gone."""

    reason: ClassVar[str] = "TransferFailed"
