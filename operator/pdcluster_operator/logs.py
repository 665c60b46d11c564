"""Logging of the operator.

Shell.
"""

from __future__ import annotations

from typing import Final

from pdcluster_lease.logs import LogFormat, configure_logging

__all__ = ["configure"]

_QUIET: Final = ("kopf", "kubernetes", "aiohttp.access")
"""kopf tells of every event at DEBUG and of its own start at INFO."""


def configure(*, is_json: bool, level: str) -> None:
    """Send all logging of this process to standard error.

    Args:
        is_json: JSON lines instead of plain ones.
        level: Name of the least severe level that is written.
    """
    log_format = LogFormat.JSON if is_json else LogFormat.CONSOLE
    configure_logging(log_format=log_format, level=level, quiet=_QUIET)
