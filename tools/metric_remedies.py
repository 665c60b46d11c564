"""What a person does about each metric; becomes a column of ``docs/metrics.md``.

Pure. A metric without an entry, or an entry without a metric, fails ``make generate``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["OPERATOR_REMEDIES", "REMEDIES"]

REMEDIES: Final[Mapping[str, str]] = {
    "requests_total": "Alert on the share of 5xx; `code` names the row of the error table.",
    "request_seconds": "Compare with `first_event_seconds`: the rest is generation.",
    "first_event_seconds": (
        "Time to first token as the proxy sees it. High with a low `prefill_leg_seconds`: D queues."
    ),
    "prefill_leg_seconds": "High: add prefill engines, or look at their queues.",
    "hand_off_age_seconds": (
        "Counted from a second before P's answer. Above half the lease: the proxy is starved, or "
        "decode engines accept slowly."
    ),
    "leg_failures_total": "`leg` and `code` say which role and how; look at that engine's log.",
    "re_prefills_total": "Work done twice. Rising: decode engines fail, or hand-offs come late.",
    "relayed_bytes_total": "Traffic; no action.",
    "requests_rejected_total": "Broken or hostile clients; `code` says what they sent.",
    "answers_unread_total": (
        "Clients that hang, or that do not read what they asked for; many of them: an attack."
    ),
    "exchange_log_lines_dropped_total": (
        "Above 0: what reads the proxy's standard error stalls, or its disk is full. Requests are "
        "served all the same; their lines are lost."
    ),
    "connections_opened_total": (
        "More than the number of concurrent requests explains: engines close connections early."
    ),
    "reports_dropped_total": "Above 0: the companion was away or too slow; figures have gaps.",
    "in_flight": "Near `admission.maxInFlight`: add proxies or raise it.",
    "queued": "Above 0 for long: capacity is short.",
    "workers": "Below the configured number: a worker keeps dying, see the log.",
    "legs_in_flight": "Uneven between engines of a role: look at the slow one.",
    "endpoint_state": (
        "`unproven` for long: the engine does not come up. `ejected` for long: it is broken; its "
        "check or answers say how."
    ),
    "leases_held": (
        "Blocks pinned on that prefill engine. Rising without traffic: hand-offs hang or nobody "
        "ends them."
    ),
    "oldest_lease_seconds": "Above the hold bound: a bug, report it.",
    "leases_total": "`granted` and `ended` must grow alike.",
    "endpoint_transitions_total": "Flapping between ready and ejected: an overloaded engine.",
    "leg_outcomes_total": "The record that ejections are decided on.",
    "check_failures_total": "The engine does not answer `/health`: starting, hanging or gone.",
    "scrape_failures_total": "Load of that engine is unknown; it is chosen by our own count alone.",
    "discovery_errors_total": "The endpoints file is invalid; the log names the field.",
    "discovery_changes_total": "Scaling and rollouts; no action.",
    "malformed_reports_total": "Above 0: a bug, report it.",
}
"""Of the proxy, by short name."""

OPERATOR_REMEDIES: Final[Mapping[str, str]] = {
    "pdcluster_operator_passes_total": (
        "`failed` rising: the API server does not answer, or takes no status; the log names the "
        "object and the reason. A pass that failed is tried again, at the latest after a minute. "
        "What it rejects of a PDCluster's objects is no failed pass but a condition: `ConfigValid`."
    ),
    "pdcluster_operator_pass_seconds": (
        "High: the API server is slow, or throttles (429). Traffic is not affected."
    ),
    "pdcluster_operator_queue": (
        "Above 0 for long: passes are slower than changes come; look at `pass_seconds`."
    ),
    "pdcluster_operator_clusters": (
        "Fewer than there are: the operator does not watch their namespaces, or does not lead."
    ),
    "pdcluster_operator_leads": (
        "The sum over all replicas must be 1; it is 0 for up to 20 s after a leader died, for 3 s "
        "after one was stopped. 0 for more than 20 s: no replica leads, nothing is changed, "
        "clusters go on serving; look at the replicas' logs and the Lease."
    ),
}
"""Of the operator, by name."""
