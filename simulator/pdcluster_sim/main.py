"""``pdcluster-sim``: one engine, one process.

Composition root. Threads: the main one runs HTTP; the engine's owns scheduler, memory and agent; a
third one speaks on the side channel. Exit status: 0 after SIGTERM or SIGINT, 1 when the engine has
died, 2 for a command line or an environment that cannot work.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from pdcluster_lease.engine_params import GrantingEngine
from pdcluster_lease.errors import ConfigurationError, PDClusterError
from pdcluster_lease.params import EngineId
from pdcluster_lease.side_channel import SideChannelAddress
from pdcluster_lease.timing import LeaseTiming
from pdcluster_lease.wire import AgentMetadata, HandshakePayload, connector_release
from pdcluster_sim.api.admin import EngineHandles
from pdcluster_sim.api.context import ApiContext
from pdcluster_sim.api.faults import Fault, Faults
from pdcluster_sim.app import create_app
from pdcluster_sim.core.compatibility import Compatibility
from pdcluster_sim.core.engine import EngineCore
from pdcluster_sim.core.scheduler import SchedulerLimits
from pdcluster_sim.engine_thread import EngineThread
from pdcluster_sim.errors import FlagError
from pdcluster_sim.flags import parse_settings
from pdcluster_sim.frontend import Frontend
from pdcluster_sim.handshakes import HandshakeThread
from pdcluster_sim.logs import configure_logging
from pdcluster_sim.memory import KVMemory
from pdcluster_sim.metrics import EngineMetrics
from pdcluster_sim.server import HttpServer, bind
from pdcluster_sim.settings import VLLM_VERSION, Settings

if TYPE_CHECKING:
    from pdcluster_lease.agent import Agent

__all__ = ["main"]

_log = logging.getLogger(__name__)

_EXIT_DEAD: Final = 1
_EXIT_CONFIGURATION: Final = 2
_DEFAULT_LEASE_S: Final = 30


def main() -> None:
    """Run one engine until it is told to stop."""
    try:
        settings = parse_settings(sys.argv[1:], os.environ)
        configure_logging(settings.log_level, access_log=settings.access_log)
        listening = bind(settings.host, settings.port)
        status = _serve(settings, listening)
    except ConfigurationError as error:
        print(f"pdcluster-sim: error: {error}", file=sys.stderr)  # noqa: T201 - no log yet
        status = _EXIT_CONFIGURATION
    except PDClusterError:
        _log.exception("Engine core initialization failed.")
        status = _EXIT_DEAD
    sys.exit(status)
