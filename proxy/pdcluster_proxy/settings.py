"""What the proxy's processes are told: arguments, environment, the configuration file.

Shell: the only place that reads any of them, once, for the composition roots.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import ValidationError

from pdcluster_api.proxy_config import ProxyConfig
from pdcluster_lease.errors import ConfigurationError
from pdcluster_proxy.logs import LogFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ProcessSettings", "Settings", "load_config", "parse_process_settings", "parse_settings"]

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_FORMAT_VARIABLE = "PDCLUSTER_LOG_FORMAT"
_LEVEL_VARIABLE = "PDCLUSTER_LOG_LEVEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the supervisor is told.

    Attributes:
        config: Path of the ProxyConfig.
        log_format: How log lines look.
        log_level: Least severe level written.
    """

    config: Path
    log_format: LogFormat
    log_level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """What the supervisor tells a process of its; the configuration itself comes on standard input.

    Attributes:
        parent: Process id of the supervisor.
        link: Name of the companion's socket.
        socket: Descriptor of the bound socket it serves.
        index: Which worker it is; 0 for the companion.
        workers: How many workers there are.
        log_format: How log lines look.
        log_level: Least severe level written.
    """

    parent: int
    link: str
    socket: int
    index: int
    workers: int
    log_format: LogFormat
    log_level: str


def parse_settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read the command line; argparse exits with 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="pdcluster-proxy",
        description="Route requests over prefill and decode engines, inside the KV lease.",
        epilog="Exit codes: 0 stopped as asked, 1 a fault of its own, 2 a person must change"
        " something (configuration, port).",
    )
    parser.add_argument(
        "--config", required=True, type=Path, metavar="FILE", help="ProxyConfig, JSON or YAML"
    )
    _add_logging(parser, environ)
    args = parser.parse_args(argv)
    return Settings(config=args.config, log_format=args.log_format, log_level=args.log_level)


def parse_process_settings(argv: Sequence[str]) -> ProcessSettings:
    """Read the command line that the supervisor gives a process."""
    parser = argparse.ArgumentParser()
    for name in ("parent", "socket", "index", "workers"):
        parser.add_argument(f"--{name}", required=True, type=int)
    parser.add_argument("--link", required=True)
    _add_logging(parser, {})
    return ProcessSettings(**vars(parser.parse_args(argv)))


def load_config(path: Path) -> ProxyConfig:
    """Read a ProxyConfig from a JSON or YAML file.

    Raises:
        ConfigurationError: The file cannot be read or parsed, or a field is missing, unknown or
            out of range; the message names each field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(
            f"{path}: cannot be read: {reason}. Name an existing ProxyConfig file."
        ) from error
    try:
        document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except RecursionError:
        raise ConfigurationError(f"{path}: is nested too deep to be read.") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(
            f"{path}: is not valid {'JSON' if path.suffix == '.json' else 'YAML'}: {error}"
        ) from error
    try:
        return ProxyConfig.model_validate(document)
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {describe(error)}") from error


def describe(error: ValidationError) -> str:
    """Name field, fault and value of each problem, one a line."""
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        field = ".".join(str(part) for part in problem["loc"]) or "the document"
        fault = problem["msg"][:1].lower() + problem["msg"][1:]
        remedy = "remove it" if problem["type"] == "extra_forbidden" else "correct it"
        given = "" if problem["type"] == "missing" else f" (given: {problem['input']!r:.80})"
        lines.append(f"{field}: {fault}{given}; {remedy if given else 'add it'}.")
    return "\n  ".join(lines) if len(lines) == 1 else "\n  " + "\n  ".join(lines)


def _add_logging(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    parser.add_argument(
        "--log-format",
        type=LogFormat,
        choices=list(LogFormat),
        default=environ.get(_FORMAT_VARIABLE, LogFormat.JSON),
        help=f"default: ${_FORMAT_VARIABLE}, else json",
    )
    parser.add_argument(
        "--log-level",
        type=str.upper,
        choices=_LEVELS,
        default=environ.get(_LEVEL_VARIABLE, "INFO"),
        help=f"default: ${_LEVEL_VARIABLE}, else INFO",
    )
