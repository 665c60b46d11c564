"""What the operator's installation decides for all clusters.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdcluster_operator.manifests.pods import RUN_AS_USER

__all__ = ["RenderSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderSettings:
    """Values of the chart that enter manifests.

    Attributes:
        operator: Who this operator is, as ``namespace/name``.
        image: The operator's own image, which proxies use too unless the resource says otherwise.
        image_pull_policy: When proxies' image is pulled.
        image_pull_secrets: Secrets for pulling it, in each cluster's namespace.
        run_as_user: User of engines and proxies; None where the platform chooses.
        cluster_domain: DNS domain of the Kubernetes cluster.
    """

    operator: str
    image: str
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    run_as_user: int | None = RUN_AS_USER
    cluster_domain: str = "cluster.local"
