"""The derived timing in words: every figure with its formula, and how much room each rule leaves.

Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pdcluster_api.defaults import GRACE_MARGIN_SECONDS
from pdcluster_api.proxy_config import KeeperMode
from pdcluster_api.support import KEEPER
from pdcluster_api.timing import DerivedTiming, derive_timing
from pdcluster_api.v1alpha1 import PDClusterSpec
from pdcluster_lease.defaults import (
    HAND_OFF_MARGIN_COLD_S,
    HAND_OFF_MARGIN_WARM_S,
    HANDSHAKE_ALLOWANCE_S,
    LEASE_DURATION_MIN_S,
)

__all__ = ["Figure", "Inequality", "explain_json", "explain_text", "figures", "inequalities"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One derived time.

    Attributes:
        name: What it is called.
        seconds: The time; None where nothing bounds it.
        formula: How it comes about, with the figures put in.
        meaning: What it is for.
    """

    name: str
    seconds: float | None
    formula: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inequality:
    """One rule that the times must obey.

    Attributes:
        text: The rule with the figures put in.
        slack_s: Seconds by which it holds; negative where it does not.
    """

    text: str
    slack_s: float


def _hand_off(timing: DerivedTiming, spec: PDClusterSpec) -> tuple[Figure, ...]:
    lease = timing.lease
    length, beat = lease.duration_s, lease.heartbeat_interval_s
    stated = spec.proxy.hand_off_deadline_seconds
    meaning = "latest start of decode after prefill's answer, for a pair that {} exchanged KV"
    if timing.keeper is KeeperMode.ENABLED:
        cold = warm = "none: the lease keeper renews until decode answers"
    elif stated is not None:
        cold = warm = f"spec.proxy.handOffDeadlineSeconds = {stated}"
    else:
        cold = (
            f"L - 2 x heartbeat - {HANDSHAKE_ALLOWANCE_S} for the handshake - "
            f"{HAND_OFF_MARGIN_COLD_S} = {length} - {2 * beat} - {HANDSHAKE_ALLOWANCE_S} - "
            f"{HAND_OFF_MARGIN_COLD_S}"
        )
        warm = (
            f"L - heartbeat - {HAND_OFF_MARGIN_WARM_S} = {length} - {beat} - "
            f"{HAND_OFF_MARGIN_WARM_S}"
        )
    return (
        Figure(
            name="hand-off deadline, new pair",
            seconds=timing.hand_off_cold_s,
            formula=cold,
            meaning=meaning.format("never"),
        ),
        Figure(
            name="hand-off deadline, met pair",
            seconds=timing.hand_off_warm_s,
            formula=warm,
            meaning=meaning.format("has"),
        ),
    )


def _lease(timing: DerivedTiming) -> tuple[Figure, ...]:
    lease = timing.lease
    length = lease.duration_s
    return (
        Figure(
            name="lease duration L",
            seconds=length,
            formula="spec.kvTransfer.kvLeaseDurationSeconds",
            meaning="how long a prefill engine keeps blocks that nobody has asked for",
        ),
        Figure(
            name="heartbeat interval",
            seconds=lease.heartbeat_interval_s,
            formula=f"L // 6 = {length} // 6",
            meaning="how often a decode engine renews the leases of its waiting requests",
        ),
        Figure(
            name="lease extension",
            seconds=lease.extension_s,
            formula=f"L x 2 // 3 = {2 * length} // 3",
            meaning="how long a renewed lease lasts from then; a renewal never shortens it",
        ),
    )


def _bounds(timing: DerivedTiming, spec: PDClusterSpec) -> tuple[Figure, ...]:
    stated = spec.proxy.max_hold_seconds is not None
    return (
        Figure(
            name="longest hold",
            seconds=timing.max_hold_s,
            formula=(
                "spec.proxy.maxHoldSeconds" if stated else f"4 x L = 4 x {timing.lease.duration_s}"
            ),
            meaning="how long the lease keeper may hold one lease, once there is one",
        ),
        Figure(
            name="request timeout",
            seconds=timing.request_s,
            formula="spec.proxy.requestTimeoutSeconds",
            meaning="overall deadline of an exchange, and the longest generation",
        ),
    )


def _endings(timing: DerivedTiming, spec: PDClusterSpec) -> tuple[Figure, ...]:
    lease, drain = timing.lease, spec.drain
    longer = max(lease.duration_s, drain.decode_admission_timeout_seconds)
    held = f"max(L, decodeAdmissionTimeout) = {longer} + extension {lease.extension_s}"
    if drain.termination_grace_period_seconds is not None:
        prefill = decode = "spec.drain.terminationGracePeriodSeconds"
    else:
        prefill = (
            f"settle {drain.settle_seconds} + maxPrefill {drain.max_prefill_seconds} + {held} + "
            f"{GRACE_MARGIN_SECONDS}"
        )
        decode = f"settle {drain.settle_seconds} + request timeout {timing.request_s}"
    return (
        Figure(
            name="prefill --shutdown-timeout",
            seconds=timing.prefill_shutdown_s,
            formula=held,
            meaning="how long a prefill engine that was told to stop waits for its leases",
        ),
        Figure(
            name="decode --shutdown-timeout",
            seconds=timing.decode_shutdown_s,
            formula="request timeout",
            meaning="how long a decode engine that was told to stop goes on generating",
        ),
        Figure(
            name="prefill termination grace",
            seconds=timing.prefill_grace_s,
            formula=prefill,
            meaning="from TERM to KILL for a prefill engine",
        ),
        Figure(
            name="decode termination grace",
            seconds=timing.decode_grace_s,
            formula=decode,
            meaning="from TERM to KILL for a decode engine",
        ),
    )


def figures(spec: PDClusterSpec, timing: DerivedTiming) -> tuple[Figure, ...]:
    """Return every derived time, in the order in which they follow from one another."""
    return (
        *_lease(timing),
        *_hand_off(timing, spec),
        *_bounds(timing, spec),
        *_endings(timing, spec),
    )


def inequalities(timing: DerivedTiming) -> tuple[Inequality, ...]:
    """Return the rules between the times, with the room each leaves."""
    lease = timing.lease
    rules = [
        Inequality(
            text=f"lease duration {lease.duration_s} >= {LEASE_DURATION_MIN_S}",
            slack_s=lease.duration_s - LEASE_DURATION_MIN_S,
        ),
        Inequality(
            text=(
                f"lease extension {lease.extension_s} >= 3 heartbeats = "
                f"{3 * lease.heartbeat_interval_s}"
            ),
            slack_s=lease.extension_s - 3 * lease.heartbeat_interval_s,
        ),
        Inequality(
            text=f"longest hold {timing.max_hold_s} >= lease duration {lease.duration_s}",
            slack_s=timing.max_hold_s - lease.duration_s,
        ),
        Inequality(
            text=(
                f"prefill grace {timing.prefill_grace_s} >= what a whole drain needs = "
                f"{timing.prefill_grace_needed_s}"
            ),
            slack_s=timing.prefill_grace_s - timing.prefill_grace_needed_s,
        ),
        Inequality(
            text=(
                f"decode grace {timing.decode_grace_s} >= what a whole drain needs = "
                f"{timing.decode_grace_needed_s}"
            ),
            slack_s=timing.decode_grace_s - timing.decode_grace_needed_s,
        ),
    ]
    for name, deadline in (
        ("a new", timing.hand_off_cold_s),
        ("a met", timing.hand_off_warm_s),
    ):
        if deadline is not None:
            rules.append(
                Inequality(
                    text=f"hand-off deadline of {name} pair {deadline:g} >= 1",
                    slack_s=deadline - 1,
                )
            )
    return tuple(rules)


def _derived_here(rules: tuple[Inequality, ...]) -> tuple[Inequality, ...]:
    """Return the tightest rules, leaving out those that hold with equality by construction."""
    open_rules = [rule for rule in rules if rule.slack_s != 0] or list(rules)
    least = min(rule.slack_s for rule in open_rules)
    return tuple(rule for rule in open_rules if rule.slack_s == least)


def explain_text(spec: PDClusterSpec) -> str:
    """Return the derived timing in words.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    timing = derive_timing(spec, keeper=KEEPER)
    rules = inequalities(timing)
    lines = [f"keeper: {timing.keeper.value}"]
    if timing.keeper is KeeperMode.ABSENT:
        lines.append(
            "  Nobody renews a lease between prefill's answer and decode's first heartbeat, so the "
            "hand-off has a deadline; past it the proxy prefills again."
        )
    lines.append("")
    for figure in figures(spec, timing):
        seconds = "-" if figure.seconds is None else f"{figure.seconds:g} s"
        lines += [
            f"{figure.name}: {seconds}",
            f"  = {figure.formula}",
            f"  {figure.meaning}",
        ]
    lines += ["", "Rules, with the room each leaves:"]
    lines += [
        f"  {'ok' if rule.slack_s >= 0 else 'BROKEN':<7}{rule.text}  ({rule.slack_s:+g} s)"
        for rule in rules
    ]
    lines += ["", "Tightest: " + "; ".join(rule.text for rule in _derived_here(rules))]
    return "\n".join(lines)


def explain_json(spec: PDClusterSpec) -> str:
    """Return the derived timing as a JSON object.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    timing = derive_timing(spec, keeper=KEEPER)
    rules = inequalities(timing)
    tightest = _derived_here(rules)
    return json.dumps(
        {
            "keeper": timing.keeper.value,
            "figures": [
                {
                    "name": figure.name,
                    "seconds": figure.seconds,
                    "formula": figure.formula,
                    "meaning": figure.meaning,
                }
                for figure in figures(spec, timing)
            ],
            "inequalities": [
                {"text": rule.text, "slackSeconds": rule.slack_s, "tight": rule in tightest}
                for rule in rules
            ],
        },
        indent=2,
    )
