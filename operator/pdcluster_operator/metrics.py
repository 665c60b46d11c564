"""Every metric of the operator.

Shell around prometheus_client: one registry per process, made by the root.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["Metrics"]

_PASS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts what the operator does.

    Args:
        num_waiting: Clusters that wait for a pass.
        num_clusters: Clusters that are known.
    """

    def __init__(self, *, num_waiting: Callable[[], int], num_clusters: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.passes = Counter(
            "pdcluster_operator_passes",
            "Passes over clusters, by how they ended.",
            ["outcome"],
            registry=self.registry,
        )
        self.pass_seconds = Histogram(
            "pdcluster_operator_pass_seconds",
            "One pass: observe, plan, execute.",
            buckets=_PASS_S,
            registry=self.registry,
        )
        waiting = Gauge(
            "pdcluster_operator_queue", "Clusters that wait for a pass.", registry=self.registry
        )
        waiting.set_function(num_waiting)
        clusters = Gauge(
            "pdcluster_operator_clusters", "PDClusters that are known.", registry=self.registry
        )
        clusters.set_function(num_clusters)
        self.leads = Gauge(
            "pdcluster_operator_leads", "1 where this replica leads.", registry=self.registry
        )

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
