"""Names of the conditions and their reasons.

Pure. Polarity is positive; a missing measurement is ``Unknown``, never ``False``. Reasons are part
of the interface: programs match on them, so none is renamed.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ConditionType", "ConfigInvalidReason", "InitialReason", "Reason", "TroubleReason"]


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
    """For kstatus: something is still being brought about, and nobody has to act for it."""
    STALLED = "Stalled"
    """For kstatus: a person must act; waiting does not help. Never together with Reconciling."""


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
    """The API server rejected the merged pod template."""
    APPLY_REJECTED = "ApplyRejected"
    """The API server rejected an object's content; the message says which and why."""
    APPLY_FORBIDDEN = "ApplyForbidden"
    """The API server forbids an object: a missing right, a full quota, a policy, a webhook."""
    MANAGED_BY_ANOTHER = "ManagedByAnother"
    """Another operator has made this cluster's objects."""


class TroubleReason(StrEnum):
    """Reasons of a role or of the proxies not being ready, read from pods and Deployments."""

    IMAGE_UNAVAILABLE = "ImageUnavailable"
    """The image can't be pulled, or is not on the node."""
    CONTAINER_CONFIG_INVALID = "ContainerConfigInvalid"
    """The container can't be made: a Secret or ConfigMap is missing, or the image wants root."""
    VOLUME_UNAVAILABLE = "VolumeUnavailable"
    """A volume can't be mounted."""
    UNSCHEDULABLE = "Unschedulable"
    """No node has room, or none may run it."""
    CONTAINER_EXITS = "ContainerExits"
    """The container ends with an error, again and again."""
    PODS_REJECTED = "PodsRejected"
    """Pods can't be made: a quota is full, or Pod Security, a policy or a webhook forbids them."""


class Reason(StrEnum):
    """All other reasons."""

    VALID = "Valid"
    """The resource can be acted on."""
    SERVING = "Serving"
    """Everything that is wanted serves."""
    ENGINES_READY = "EnginesReady"
    """As many engines as wanted are ready."""
    ENGINES_STARTING = "EnginesStarting"
    """Engines load, or wait for an object that can't be made; the message names it."""
    PROXIES_READY = "ProxiesReady"
    """As many proxies as wanted are ready."""
    PROXIES_STARTING = "ProxiesStarting"
    """Proxies start, or wait for an object that can't be made; the message names it."""
    WAITING_FOR_ENGINES = "WaitingForEngines"
    """Proxies run and wait for a pair to serve."""
    NO_PAIR = "NoPair"
    """No prefill and decode engine of one revision are ready."""
    NO_PROXY = "NoProxy"
    """No proxy is ready."""
    ASLEEP = "Asleep"
    """Both roles are scaled to zero."""
    PAUSED = "Paused"
    """The user has asked that nothing is changed."""
    ROLLING_OUT = "RollingOut"
    """Engines of a new revision replace those of the old one."""
    UPDATING = "Updating"
    """Pods are replaced within a revision, or the number of engines changes."""
    STARTING = "Starting"
    """Engines or proxies start."""
    COMPLETE = "Complete"
    """All is as the resource wants it."""
    NOTHING_DUE = "NothingDue"
    """There is nothing to do, or nothing before a person acts, which Stalled tells."""
    NOT_MEASURED = "NotMeasured"
    """This version of the operator does not measure it."""
    GRACE_SUFFICIENT = "GraceSufficient"
    """The termination grace covers a whole drain."""
    GRACE_TOO_SHORT = "GraceTooShort"
    """The termination grace does not cover a whole drain."""
    WITHIN_BOUNDS = "WithinBounds"
    """The proportion of the roles is within spec.ratio."""
    TOO_FEW_PREFILL = "TooFewPrefill"
    """The proportion is below spec.ratio.minPrefillPerDecode."""
    TOO_MANY_PREFILL = "TooManyPrefill"
    """The proportion is above spec.ratio.maxPrefillPerDecode."""
