"""Every time that follows from a resource's lease settings, with its formula.

Pure. Shown in the status, printed by ``pdcluster explain-lease``, used for the engines' and the
proxy's programs. Nothing is adjusted: an impossible setting is an error that names it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdcluster_api import defaults
from pdcluster_api.proxy_config import KeeperMode
from pdcluster_api.v1alpha1 import PDClusterSpec
from pdcluster_lease.timing import LeaseTiming

__all__ = ["DerivedTiming", "derive_timing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedTiming:
    """Times of one cluster, in seconds.

    Attributes:
        lease: Duration, heartbeat interval and extension.
        keeper: Whether somebody renews between P's and D's answer.
        hand_off_cold_s: Latest start of decode for a pair that never met; None: no bound.
        hand_off_warm_s: The same for a pair that did meet.
        max_hold_s: How long the keeper may hold one lease.
        request_s: Overall deadline of an exchange, which is the longest generation.
        first_byte_s: Longest wait for an answer's first byte.
        idle_s: Longest silence within a stream.
        prefill_shutdown_s: A prefill engine's ``--shutdown-timeout``.
        decode_shutdown_s: A decode engine's ``--shutdown-timeout``.
        prefill_grace_needed_s: Grace that a whole drain of a prefill engine needs.
        decode_grace_needed_s: The same of a decode engine.
        prefill_grace_s: Grace a prefill engine gets: what it needs unless the user says otherwise.
        decode_grace_s: Grace a decode engine gets.
    """

    lease: LeaseTiming
    keeper: KeeperMode
    hand_off_cold_s: float | None
    hand_off_warm_s: float | None
    max_hold_s: int
    request_s: int
    first_byte_s: int
    idle_s: int
    prefill_shutdown_s: int
    decode_shutdown_s: int
    prefill_grace_needed_s: int
    decode_grace_needed_s: int
    prefill_grace_s: int
    decode_grace_s: int


def derive_timing(spec: PDClusterSpec, *, keeper: KeeperMode) -> DerivedTiming:
    """Derive every time from the spec.

    Args:
        spec: A valid spec.
        keeper: Whether a lease keeper runs, whatever the spec asks for.

    Raises:
        TimingError: Nothing would be left for a hand-off, or ``handOffDeadlineSeconds`` is later
            than the lease allows.
    """
    lease = LeaseTiming.from_duration(spec.kv_transfer.kv_lease_duration_seconds)
    proxy, drain = spec.proxy, spec.drain
    kept = keeper is KeeperMode.ENABLED
    deadline = proxy.hand_off_deadline_seconds
    held_s = max(lease.duration_s, drain.decode_admission_timeout_seconds) + lease.extension_s
    prefill_needed = (
        drain.settle_seconds + drain.max_prefill_seconds + held_s + defaults.GRACE_MARGIN_SECONDS
    )
    decode_needed = drain.settle_seconds + proxy.request_timeout_seconds
    stated = drain.termination_grace_period_seconds
    return DerivedTiming(
        lease=lease,
        keeper=keeper,
        hand_off_cold_s=lease.hand_off_deadline_s(met=False, keeper=kept, override_s=deadline),
        hand_off_warm_s=lease.hand_off_deadline_s(met=True, keeper=kept, override_s=deadline),
        max_hold_s=proxy.max_hold_seconds or defaults.HOLD_LEASES * lease.duration_s,
        request_s=proxy.request_timeout_seconds,
        first_byte_s=proxy.first_byte_timeout_seconds or proxy.request_timeout_seconds,
        idle_s=proxy.idle_timeout_seconds,
        prefill_shutdown_s=held_s,
        decode_shutdown_s=proxy.request_timeout_seconds,
        prefill_grace_needed_s=prefill_needed,
        decode_grace_needed_s=decode_needed,
        prefill_grace_s=stated or prefill_needed,
        decode_grace_s=stated or decode_needed,
    )
