"""Log lines as vLLM writes them.

Shell. People and tools search vLLM's logs for its own words, so these are the same; the engine's
events are turned into them here and nowhere else.
"""

from __future__ import annotations

import logging
import logging.config
from typing import TYPE_CHECKING, Final, assert_never

from typing_extensions import override

from pdcluster_lease.lease import Expired, LateRead, Released, Renewed
from pdcluster_sim.core.results import (
    InvalidParams,
    LoadFailed,
    Notice,
    Preempted,
    PrefixLookup,
    TransferFailed,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PathFilter", "configure_logging", "log_notices"]

_log = logging.getLogger("pdcluster_sim.engine")

_PATH_ARG: Final = 2


class PathFilter(logging.Filter):
    """Leaves out uvicorn's lines about some paths.

    Args:
        paths: Paths without their queries.
    """

    def __init__(self, paths: frozenset[str]) -> None:
        super().__init__()
        self._paths = paths

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        # The arguments are uvicorn's: client, method, path with query, HTTP version, status.
        args = record.args
        if not isinstance(args, tuple) or len(args) <= _PATH_ARG:
            return True
        return str(args[_PATH_ARG]).partition("?")[0] not in self._paths


def configure_logging(
    level: str, *, access_log: bool, unlogged_paths: frozenset[str] = frozenset()
) -> None:
    """Write to standard output, in vLLM's shape: level, time, where, message.

    Args:
        level: Level of the engine's own lines.
        access_log: Whether uvicorn's line per request is written.
        unlogged_paths: Paths about whose requests none is written.
    """
    vllm = {
        "format": "%(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s",
        "datefmt": "%m-%d %H:%M:%S",
    }
    handler = {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "vllm"}
    access_level = "INFO" if access_log else "CRITICAL"
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "vllm": vllm,
                "access": {"format": "%(levelname)s:     %(message)s"},
            },
            "filters": {"access": {"()": PathFilter, "paths": unlogged_paths}},
            "handlers": {
                "out": handler,
                "access": {**handler, "formatter": "access", "filters": ["access"]},
            },
            "root": {"level": "WARNING", "handlers": ["out"]},
            "loggers": {
                "pdcluster_sim": {"level": level},
                "uvicorn.error": {"level": "WARNING"},
                "uvicorn.access": {
                    "level": access_level,
                    "handlers": ["access"],
                    "propagate": False,
                },
            },
        }
    )


def log_notices(notices: Iterable[Notice], *, now: float) -> None:
    """Log what the engine's core noticed.

    Args:
        notices: From one pass of the engine.
        now: Monotonic seconds.
    """
    for notice in notices:
        match notice:
            case Renewed() | Released() | Expired() | LateRead():
                _log_lease(notice, now=now)
            case TransferFailed() | LoadFailed() | InvalidParams():
                _log_failure(notice)
            case Preempted():
                _log.warning("Request %s is preempted: no free KV blocks.", notice.request_id)
            case PrefixLookup():
                pass
            case _:
                assert_never(notice)


def _log_lease(notice: Renewed | Released | Expired | LateRead, *, now: float) -> None:
    match notice:
        case Renewed():
            _log.debug(
                "Heartbeat extended lease for request %s by %.1fs (old_expiry=%.3f, "
                "new_expiry=%.3f)",
                notice.request_id,
                notice.expires_at - now,
                notice.old_expires_at,
                notice.expires_at,
            )
        case Released():
            _log.debug("Request %s done sending: blocks freed", notice.request_id)
        case Expired():
            _log.warning(
                "Releasing expired KV blocks for request %s which were retrieved by %d remote "
                "worker(s) before lease expired.",
                notice.request_id,
                notice.num_reads,
            )
        case LateRead():
            _log.error(
                "Potentially invalid KV blocks for unrecognized request %s were retrieved by a "
                "decode worker. They may have expired.",
                notice.request_id,
            )


def _log_failure(notice: TransferFailed | LoadFailed | InvalidParams) -> None:
    match notice:
        case TransferFailed():
            _log.error(
                "NIXL transfer failure: %s | Context: {'failure_type': '%s', 'request_id': %r, "
                "'remote_engine_id': %r} | %s",
                notice.kind,
                notice.kind,
                notice.request_id,
                notice.engine_id,
                notice.reason,
            )
        case LoadFailed():
            _log.error(
                "%s 1 request(s) due to KV load failure (policy=%s, %d tokens affected). Request "
                "IDs: {%r}",
                "Failing" if notice.policy == "fail" else "Recovered from",
                notice.policy,
                notice.num_tokens,
                notice.request_id,
            )
        case InvalidParams():
            _log.warning(
                "Got invalid KVTransferParams for request %s. This request will not utilize "
                "KVTransfer",
                notice.request_id,
            )
