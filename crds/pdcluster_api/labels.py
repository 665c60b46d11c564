"""Labels and annotations of engines' pods: the operator writes them, the proxy reads them.

Pure. Selectors never change for an object's life.
"""

from __future__ import annotations

from typing import Final

from pdcluster_api import defaults

__all__ = [
    "CLUSTER_LABEL",
    "LEASE_ANNOTATION",
    "REVISION_LABEL",
    "ROLE_LABEL",
    "SIDE_CHANNEL_ANNOTATION",
]

CLUSTER_LABEL: Final = f"{defaults.API_GROUP}/cluster"
"""On every child: name of its PDCluster."""

ROLE_LABEL: Final = f"{defaults.API_GROUP}/role"
"""On engines: ``prefill`` or ``decode``."""

REVISION_LABEL: Final = f"{defaults.API_GROUP}/revision"
"""On engines: what P and D must share to pair."""

LEASE_ANNOTATION: Final = f"{defaults.API_GROUP}/kv-lease-duration-seconds"
"""On an engine's pod: the lease it grants. The proxy uses the lease of the P that granted."""

SIDE_CHANNEL_ANNOTATION: Final = f"{defaults.API_GROUP}/side-channel-port"
"""On an engine's pod: the port of its side channel."""
