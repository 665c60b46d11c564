"""Logging of the proxy's processes: JSON lines or a console form, on standard error.

Shell. Event text is constant, data are fields. Never prompts, answers, headers or keys.
"""

from __future__ import annotations

import logging
import logging.config
from enum import StrEnum
from typing import TYPE_CHECKING

from pythonjsonlogger.json import JsonFormatter
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LogFormat", "configure"]

_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "message",
    "asctime",
    "process_name",
    "taskName",
}
"""Fields that every record has; what is left is the event's own."""


class LogFormat(StrEnum):
    """How a line looks."""

    JSON = "json"
    CONSOLE = "console"


class ConsoleFormatter(logging.Formatter):
    """``12:00:00 INFO worker-0 event key=value``: for people at a terminal."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        """One line; the event's own fields follow its text."""
        line = super().formatMessage(record)
        fields = {k: v for k, v in vars(record).items() if k not in _STANDARD}
        return " ".join([line, *(f"{key}={value}" for key, value in fields.items())])


def configure(*, log_format: LogFormat, level: str, process: str) -> None:
    """Send all logging of this process to standard error.

    Args:
        log_format: How lines look.
        level: Name of the least severe level that is written.
        process: Which process of the proxy this is, for example ``worker-0``.
    """
    static: Mapping[str, str] = {"process_name": process}
    formatter: dict[str, object]
    if log_format is LogFormat.JSON:
        formatter = {
            "()": JsonFormatter,
            "fmt": "%(asctime)s %(levelname)s %(name)s %(message)s",
            "rename_fields": {"asctime": "time", "levelname": "level", "message": "event"},
            "static_fields": static,
        }
    else:
        formatter = {
            "()": ConsoleFormatter,
            "fmt": f"%(asctime)s %(levelname)-7s {process} %(message)s",
            "datefmt": "%H:%M:%S",
        }
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": formatter},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
            "root": {"level": level, "handlers": ["stderr"]},
            "loggers": {
                # They log each connection and request at INFO.
                "uvicorn": {"level": "WARNING"},
                "httpx": {"level": "WARNING"},
                "httpcore": {"level": "WARNING"},
            },
        }
    )
