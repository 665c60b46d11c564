"""Log lines of our long-running programs: JSON or a console form, on standard error.

Shell. Event text is constant, data are fields. Engines log as vLLM does, in a module of their own.
"""

from __future__ import annotations

import logging
import logging.config
from collections.abc import Iterable
from enum import StrEnum

from typing_extensions import override

__all__ = ["ConsoleFormatter", "LogFormat", "configure_logging"]

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


def configure_logging(
    *, log_format: LogFormat, level: str, quiet: Iterable[str], process: str = ""
) -> None:
    """Send all logging of this process to standard error.

    Args:
        log_format: How lines look.
        level: Name of the least severe level that is written.
        quiet: Loggers of libraries of which only warnings matter.
        process: Which process of its program this is; "" where there is but one.
    """
    formatter: dict[str, object]
    if log_format is LogFormat.JSON:
        formatter = {
            "()": "pythonjsonlogger.json.JsonFormatter",
            "fmt": "%(asctime)s %(levelname)s %(name)s %(message)s",
            "rename_fields": {"asctime": "time", "levelname": "level", "message": "event"},
            "static_fields": {"process_name": process} if process else {},
        }
    else:
        name = f"{process} " if process else ""
        formatter = {
            "()": ConsoleFormatter,
            "fmt": f"%(asctime)s %(levelname)-7s {name}%(message)s",
            "datefmt": "%H:%M:%S",
        }
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": formatter},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
            "root": {"level": level, "handlers": ["stderr"]},
            "loggers": {each: {"level": "WARNING"} for each in quiet},
        }
    )
