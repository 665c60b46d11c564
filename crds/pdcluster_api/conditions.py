"""Names of the conditions and their reasons.

Pure. Polarity is positive; a missing measurement is ``Unknown``, never ``False``. Reasons are part
of the interface: programs match on them, so none is renamed.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ConditionType", "ConfigInvalidReason", "InitialReason"]


class ConditionType(StrEnum):
    """What a condition speaks of."""

    READY = "Ready"
    """Clients are served; the one to wait for."""
    AVAILABLE = "Available"
    """At least one pair and one proxy serve, even while something else is wrong."""
    PROGRESSING = "Progressing"
    """A rollout moves, or none is due."""
    CONFIG_VALID = "ConfigValid"
    """The spec can be acted on."""
    PREFILL_READY = "PrefillReady"
    """As many prefill engines as wanted are ready."""
    DECODE_READY = "DecodeReady"
    """As many decode engines as wanted are ready."""
    PROXY_READY = "ProxyReady"
    """As many proxies as wanted are ready."""
    PAIR_COMPATIBLE = "PairCompatible"
    """Prefill and decode engines accept each other's handshake."""
    KV_TRANSFER_OBSERVED = "KVTransferObserved"
    """Blocks have moved for the current revision."""
    LEASE_SUPPORTED = "LeaseSupported"
    """The engines know heartbeats."""
    LEASE_HEALTHY = "LeaseHealthy"
    """Leases end by being read, not by expiring."""
    DRAIN_BUDGET_SUFFICIENT = "DrainBudgetSufficient"
    """The termination grace covers a whole drain."""
    RATIO_SATISFIED = "RatioSatisfied"
    """The proportion of the roles is within its bounds."""
    RECONCILING = "Reconciling"
    """For kstatus: something is still being brought about."""
    STALLED = "Stalled"
    """For kstatus: a person must act."""


class InitialReason(StrEnum):
    """Reasons before an operator has acted."""

    WAITING_FOR_OPERATOR = "WaitingForOperator"
    """No operator has looked at the resource yet: is one installed, does it watch the namespace?"""


class ConfigInvalidReason(StrEnum):
    """Reasons of ``ConfigValid=False``."""

    INVALID_SPEC = "InvalidSpec"
    """A field breaks a rule; the message names field, value and remedy."""
    INVALID_TIMING = "InvalidTiming"
    """Lease settings break an inequality of the protocol."""
    NOT_YET_SUPPORTED = "NotYetSupported"
    """A field asks for what no program honours yet."""
    NAME_TAKEN = "NameTaken"
    """An object of a child's name exists and is not ours."""
    POD_TEMPLATE_INVALID = "PodTemplateInvalid"
    """The API server refused the merged pod template."""
