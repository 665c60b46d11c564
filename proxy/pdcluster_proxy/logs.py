"""Logging of the proxy's processes.

Shell. Never prompts, answers, headers or keys.
"""

from __future__ import annotations

from typing import Final

from pdcluster_lease.logs import LogFormat, configure_logging

__all__ = ["LogFormat", "configure"]

_QUIET: Final = ("uvicorn", "httpx", "httpcore")
"""They log each connection and request at INFO."""


def configure(*, log_format: LogFormat, level: str, process: str) -> None:
    """Send all logging of this process to standard error.

    Args:
        log_format: How lines look.
        level: Name of the least severe level that is written.
        process: Which process of the proxy this is, for example ``worker-0``.
    """
    configure_logging(log_format=log_format, level=level, quiet=_QUIET, process=process)
