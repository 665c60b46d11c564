"""The companion: what all workers share, in one place.

Shell. It hears of engines (discovery, checks) and of workers (reports), keeps roster, ledger and
figures, and pushes a pool snapshot to every worker when an endpoint's state changes and, while loads
change, twice per second. Deliberately not here: HTTP, sockets and files.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from pdcluster_api.proxy_config import Role
from pdcluster_api.proxy_state import EngineLedger, ProxyState
from pdcluster_proxy.companion.figures import Figures, Gauge
from pdcluster_proxy.companion.ledger import Ledger
from pdcluster_proxy.companion.roster import Elsewhere, Roster
from pdcluster_proxy.core.messages import (
    Drain,
    EndpointState,
    EndpointView,
    LeaseEvent,
    LeaseEventKind,
    OutcomeKind,
    PoolSnapshot,
    Snapshot,
    ToWorker,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdcluster_api.proxy_config import EndpointConfig, EndpointsFile, ProxyConfig
    from pdcluster_proxy.companion.exposition import EngineFigures
    from pdcluster_proxy.companion.roster import Transition
    from pdcluster_proxy.core.messages import InFlight, Report

__all__ = ["Companion", "EngineChecks", "WorkerLink"]

_LOG = logging.getLogger(__name__)

PUSH_INTERVAL_S: Final = 0.5
"""Longest time a changed load waits for its snapshot."""

MAX_WARM_PAIRS: Final = 10_000


class WorkerLink:
    """What the companion needs of a worker's connection (``wire/link_server.py``)."""

    def send(self, message: ToWorker) -> None:
        """Queue one message."""
        raise NotImplementedError
