"""Discovery by file: reads the endpoints file whenever it changes.

Shell. The file is replaced atomically by whoever writes it; a look at its identity five times per
second finds each change within 0.2 s, on every file system and for links into mounted volumes too.
A file that cannot be used is reported once per change, and the last good one stays.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import yaml
from pydantic import ValidationError

from pdcluster_api.proxy_config import EndpointsFile
from pdcluster_lease.errors import ConfigurationError

if TYPE_CHECKING:
    from pdcluster_api.proxy_config import EndpointConfig

__all__ = ["DiscoveryWatcher", "FileDiscovery", "parse_endpoints"]

_LOG = logging.getLogger(__name__)

POLL_S = 0.2
"""Between two looks at the file."""

_Identity = tuple[int, int, int, int]
"""Device, inode, size, time of the last change in nanoseconds."""


class DiscoveryWatcher(Protocol):
    """Hears of the endpoints."""

    def discovered(self, endpoints: EndpointsFile) -> None:
        """A good file was read."""

    def discovery_failed(self, reason: str) -> None:
        """The file could not be used."""


class FileDiscovery:
    """Watches one file.

    Args:
        path: Of the endpoints file.
        watcher: Hears of changes.
        poll_s: Between two looks.
    """

    def __init__(self, path: Path, watcher: DiscoveryWatcher, *, poll_s: float = POLL_S) -> None:
        self._path = path
        self._watcher = watcher
        self._poll_s = poll_s
        self._seen: _Identity | str | None = "never"

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            self.look()
            await asyncio.sleep(self._poll_s)

    def look(self) -> None:
        """Read the file if it is another than at the last look."""
        identity = _identity(self._path)
        if identity == self._seen:
            return
        self._seen = identity
        try:
            endpoints = parse_endpoints(self._path.read_bytes(), where=str(self._path))
        except (OSError, ConfigurationError) as error:
            _LOG.error("discovery.failed", extra={"path": str(self._path), "reason": str(error)})
            self._watcher.discovery_failed(str(error))
            return
        self._watcher.discovered(endpoints)


def parse_endpoints(text: bytes, *, where: str) -> EndpointsFile:
    """Parse and judge an endpoints file, JSON or YAML.

    Args:
        text: Its content.
        where: How to call it in messages.

    Raises:
        ConfigurationError: It is neither, a field is wrong, a name stands twice, or an address
            cannot be used.
    """
    try:
        document = json.loads(text) if text.lstrip().startswith(b"{") else yaml.safe_load(text)
        endpoints = EndpointsFile.model_validate(document)
    except RecursionError:
        raise ConfigurationError(f"{where}: is nested too deep to be read.") from None
    except (ValueError, yaml.YAMLError) as error:
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "the document"
            raise ConfigurationError(f"{where}: {field}: {first['msg']}.") from error
        raise ConfigurationError(f"{where}: is neither valid JSON nor YAML: {error}") from error
    names = [endpoint.name for endpoint in endpoints.endpoints]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"{where}: the name {name!r} stands twice; names are unique.")
    for endpoint in endpoints.endpoints:
        _check_addresses(endpoint, where)
    return endpoints


def _check_addresses(endpoint: EndpointConfig, where: str) -> None:
    try:
        url = urlsplit(endpoint.url)
        usable = url.scheme == "http" and bool(url.hostname) and url.port is not None
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"{where}: {endpoint.name}.url: {endpoint.url!r} is not http://host:port."
        )
    host, _, port = endpoint.side_channel.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigurationError(
            f"{where}: {endpoint.name}.sideChannel: {endpoint.side_channel!r} is not host:port."
        )


def _identity(path: Path) -> _Identity | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
