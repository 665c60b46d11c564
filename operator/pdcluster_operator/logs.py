"""Logging of the operator: JSON lines or plain ones, on standard error.

Shell.
"""

from __future__ import annotations

import logging
import logging.config

__all__ = ["configure"]


def configure(*, is_json: bool, level: str) -> None:
    """Send all logging of this process to standard error.

    Args:
        is_json: JSON lines instead of plain ones.
        level: Name of the least severe level that is written.
    """
    formatter: dict[str, object]
    if is_json:
        formatter = {
            "()": "pythonjsonlogger.json.JsonFormatter",
            "fmt": "%(asctime)s %(levelname)s %(name)s %(message)s",
            "rename_fields": {"asctime": "time", "levelname": "level", "message": "event"},
        }
    else:
        formatter = {"fmt": "%(asctime)s %(levelname)-7s %(message)s", "datefmt": "%H:%M:%S"}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": formatter},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
            "root": {"level": level, "handlers": ["stderr"]},
            "loggers": {
                # kopf tells of every event at DEBUG and of its own start at INFO.
                "kopf": {"level": "WARNING"},
                "kubernetes": {"level": "WARNING"},
                "aiohttp.access": {"level": "WARNING"},
            },
        }
    )
