"""Version v1alpha1 of the resources PDCluster and PDPool.

Pure. The models are the one source of the CRDs, their reference page and every program's view of
the resource.
"""

from pdcluster_api.v1alpha1.cluster import ObjectMeta, PDCluster, PDClusterSpec
from pdcluster_api.v1alpha1.pool import PDPool, PDPoolSpec, PDPoolStatus
from pdcluster_api.v1alpha1.role import RoleSpec

__all__ = [
    "ObjectMeta",
    "PDCluster",
    "PDClusterSpec",
    "PDPool",
    "PDPoolSpec",
    "PDPoolStatus",
    "RoleSpec",
]
