"""The proxy's program and its configuration.

Pure.
"""

from __future__ import annotations

from typing import Final

from pdcluster_api import defaults
from pdcluster_api.proxy_config import (
    AdmissionConfig,
    LeaseConfig,
    ListenConfig,
    PolicyConfig,
    PrefillPolicy,
    ProxyConfig,
    TimeoutsConfig,
)
from pdcluster_api.support import KEEPER
from pdcluster_api.timing import DerivedTiming, derive_timing
from pdcluster_api.v1alpha1 import PDCluster, PDClusterSpec
from pdcluster_operator.program.programs import (
    Port,
    Probe,
    Probes,
    ProxyPlacement,
    ProxyProgram,
)

__all__ = ["PROXY_COMMAND", "proxy_config", "proxy_program"]

PROXY_COMMAND: Final = ("pdcluster-proxy",)
"""The console script, as in our image."""

_STARTUP_S: Final = 60
"""Seconds a proxy may take to start: it loads nothing."""


def proxy_config(cluster: PDCluster, place: ProxyPlacement) -> ProxyConfig:
    """Return what the proxy is told before it starts.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    spec = cluster.spec
    timing = derive_timing(spec, keeper=KEEPER)
    return ProxyConfig(
        cluster=cluster.metadata.name,
        model=spec.model.served_name or spec.model.name,
        listen=ListenConfig(host=place.host, port=place.port, shared=place.replaces),
        admin=ListenConfig(host=place.admin_host, port=place.admin_port),
        workers=place.workers,
        lease=LeaseConfig(
            duration_seconds=timing.lease.duration_s,
            hand_off_deadline_seconds=spec.proxy.hand_off_deadline_seconds,
            max_hold_seconds=timing.max_hold_s,
        ),
        keeper=timing.keeper,
        timeouts=_timeouts(timing),
        policy=_policy(spec),
        admission=AdmissionConfig(
            max_in_flight=spec.proxy.admission.max_in_flight,
            max_queue=spec.proxy.admission.max_queue,
            queue_timeout_seconds=spec.proxy.admission.queue_timeout_seconds,
        ),
        local_prefill_fallback=spec.proxy.local_prefill_fallback,
        endpoints_file=place.endpoints_file,
        kubernetes=place.discovery,
        drain_seconds=place.drain_s,
        grace_seconds=timing.request_s,
    )


def _timeouts(timing: DerivedTiming) -> TimeoutsConfig:
    return TimeoutsConfig(
        request_seconds=timing.request_s,
        first_byte_seconds=timing.first_byte_s,
        idle_seconds=timing.idle_s,
    )


def _policy(spec: PDClusterSpec) -> PolicyConfig:
    # Affinity is not built yet. Asking for it by name is rejected when the file is read; unset
    # means "as good as the proxy can", which is the least load so far.
    prefill = spec.proxy.policy.prefill
    if prefill is PrefillPolicy.PREFIX_AFFINITY:
        prefill = PrefillPolicy.LEAST_LOAD
    return PolicyConfig(prefill=prefill, decode=spec.proxy.policy.decode)


def proxy_program(cluster: PDCluster, place: ProxyPlacement) -> ProxyProgram:
    """Return one proxy's program.

    Args:
        cluster: A valid resource.
        place: Where it runs.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    config = proxy_config(cluster, place)
    return ProxyProgram(
        name="proxy",
        config=config,
        argv=(*place.command, "--config", place.config_file),
        env=(),
        ports=(
            Port(name="http", number=place.port),
            Port(name="admin", number=place.admin_port),
        ),
        probes=_probes(place),
        grace_s=round(config.drain_seconds + config.grace_seconds) + defaults.GRACE_MARGIN_SECONDS,
    )


def _probes(place: ProxyPlacement) -> Probes:
    def probe(path: str, port: int, period_s: int, failures: int) -> Probe:
        return Probe(
            path=path,
            port=port,
            period_s=period_s,
            timeout_s=defaults.PROBE_TIMEOUT_SECONDS,
            failures=failures,
        )

    period_s = defaults.STARTUP_PERIOD_SECONDS
    return Probes(
        # Readiness waits for engines, which may take half an hour: it must not bound the start. The
        # admin port is asked, since the clients' port may be shared with a proxy that leaves.
        startup=probe("/healthz", place.admin_port, period_s, _STARTUP_S // period_s),
        readiness=probe(
            "/readyz",
            place.admin_port,
            defaults.READINESS_PERIOD_SECONDS,
            defaults.READINESS_FAILURES,
        ),
        liveness=probe(
            "/healthz", place.port, defaults.LIVENESS_PERIOD_SECONDS, defaults.LIVENESS_FAILURES
        ),
    )
