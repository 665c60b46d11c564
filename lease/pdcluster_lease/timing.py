"""What follows from one lease duration: interval, extension, hand-off deadline.

Pure. Validates the inequalities and names the broken one; never adjusts anything silently. It
holds no clock: instants are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdcluster_lease import defaults
from pdcluster_lease.errors import TimingError

__all__ = ["LeaseTiming", "clock_start"]

_DURATION_FIELD = "spec.kvTransfer.kvLeaseDurationSeconds"
_OVERRIDE_FIELD = "spec.proxy.handOffDeadlineSeconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """The times of one lease duration; build it with :meth:`from_duration`.

    Attributes:
        duration_s: The initial grant, whole seconds.
        heartbeat_interval_s: How often D renews, whole seconds.
        extension_s: What one renewal grants, whole seconds.
    """

    duration_s: int
    heartbeat_interval_s: int
    extension_s: int

    @classmethod
    def from_duration(cls, seconds: int) -> LeaseTiming:
        """Derive the times as vLLM does, with integer division.

        Args:
            seconds: ``kv_lease_duration``, whole seconds, 6 or more. It must be the same on P and
                D: the interval comes from D's value, the extension from P's.

        Raises:
            TimingError: ``seconds`` is below 6, so that the heartbeat interval would be 0.

        Source:
            vLLM 0.22.0 to 0.33.0, ``base_scheduler.py`` and ``base_worker.py`` of the NIXL
            connector.
        """
        if seconds < defaults.LEASE_DURATION_MIN_S:
            raise TimingError(
                inequality=f"lease duration >= {defaults.LEASE_DURATION_MIN_S} (it is {seconds})",
                field=_DURATION_FIELD,
                remedy=(
                    f"Set it to {defaults.LEASE_DURATION_MIN_S} or more: below that the heartbeat "
                    "interval, duration // 6, is 0."
                ),
            )
        return cls(
            duration_s=seconds,
            heartbeat_interval_s=seconds // defaults.HEARTBEATS_PER_DURATION,
            extension_s=seconds * defaults.EXTENSION_NUMERATOR // defaults.EXTENSION_DENOMINATOR,
        )

    def renewed_until(self, expires_at: float, *, now: float) -> float:
        """Return the end of a lease after a renewal: a renewal never shortens.

        Args:
            expires_at: Its end so far, monotonic seconds on the granting engine's clock.
            now: When that engine applies the heartbeat, on the same clock.

        Returns:
            Its new end, on the same clock.

        Source:
            vLLM 0.22.0 and later, ``base_worker._handle_heartbeat``.
        """
        return max(expires_at, now + self.extension_s)

    def hand_off_deadline_s(
        self, *, met: bool, keeper: bool, override_s: int | None
    ) -> float | None:
        """Return how long after the clock's start a decode leg may still begin.

        Args:
            met: Whether this P and this boot of D have exchanged KV before. A pair that never met
                needs a handshake, and its first heartbeat is dropped.
            keeper: Whether the lease keeper renews in between; then the lease is no bound.
            override_s: ``handOffDeadlineSeconds`` where the user set it; replaces both figures.

        Returns:
            Seconds, or None where the lease is no bound.

        Raises:
            TimingError: The override is outside 1 to duration - interval - 2, or nothing is left
                for a pair that never met while there is neither keeper nor override.
        """
        warm_s = self.duration_s - self.heartbeat_interval_s - defaults.HAND_OFF_MARGIN_WARM_S
        if override_s is not None and not 1 <= override_s <= warm_s:
            raise TimingError(
                inequality=(
                    "1 <= hand-off deadline <= lease duration - heartbeat interval - "
                    f"{defaults.HAND_OFF_MARGIN_WARM_S} (1 <= {override_s} <= {warm_s})"
                ),
                field=_OVERRIDE_FIELD,
                remedy=f"Set it to 1..{warm_s}, leave it out, or lengthen {_DURATION_FIELD}.",
            )
        if keeper:
            return None
        if override_s is not None:
            return float(override_s)
        cold_s = self._cold_hand_off_s()
        return float(warm_s if met else cold_s)

    def _cold_hand_off_s(self) -> int:
        """Return the deadline of a pair that never met, or reject a lease that leaves nothing."""
        cold_s = (
            self.duration_s
            - 2 * self.heartbeat_interval_s
            - defaults.HANDSHAKE_ALLOWANCE_S
            - defaults.HAND_OFF_MARGIN_COLD_S
        )
        if cold_s < 1:
            # A cold pair could never hand anything over, hence never become warm: rejecting only
            # cold hand-offs would be a cluster that never answers.
            raise TimingError(
                inequality=(
                    "lease duration - 2 * heartbeat interval - "
                    f"{defaults.HANDSHAKE_ALLOWANCE_S} - {defaults.HAND_OFF_MARGIN_COLD_S} >= 1 "
                    f"(it is {cold_s} for a duration of {self.duration_s})"
                ),
                field=_DURATION_FIELD,
                remedy=(
                    f"Set it to 9 or more, or set {_OVERRIDE_FIELD}: otherwise a pair that never "
                    "met can never meet."
                ),
            )
        return cold_s


def clock_start(*, answered_at: float, last_tick_at: float) -> float:
    """Return the instant from which the proxy counts a lease's age.

    Args:
        answered_at: When the read that completed P's answer returned, monotonic seconds.
        last_tick_at: The event loop's last tick before that read. Where the loop was busy, the
            answer may have lain in the socket since then.

    Returns:
        Monotonic seconds: the earlier of the two, less 1 s, because P grants before its answer
        leaves.
    """
    return min(answered_at, last_tick_at) - defaults.ANSWER_ALLOWANCE_S
