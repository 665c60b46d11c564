"""Discovery by file: changes are found, bad files are reported once, the last good one stays."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path

import pytest
from tests.support.scripted_engine import eventually

from pdcluster_api.proxy_config import EndpointsFile
from pdcluster_lease.errors import ConfigurationError
from pdcluster_proxy.companion.discovery import FileDiscovery, parse_endpoints


class Watcher:
    """Hears of endpoints."""

    def __init__(self) -> None:
        self.found: list[list[str]] = []
        self.failures: list[str] = []

    def discovered(self, endpoints: EndpointsFile) -> None:
        self.found.append([endpoint.name for endpoint in endpoints.endpoints])

    def discovery_failed(self, reason: str) -> None:
        self.failures.append(reason)


def write(path: Path, *names: str) -> None:
    """Replace the file atomically, as its writers do."""
    engine = {
        "role": "prefill",
        "url": "http://10.0.0.1:8000",
        "sideChannel": "10.0.0.1:5600",
        "revision": "r1",
    }
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"endpoints": [{"name": name, **engine} for name in names]}))
    fresh.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "endpoints.json"


def test_a_file_is_read_once_per_change(path: Path) -> None:
    watcher = Watcher()
    discovery = FileDiscovery(path, watcher)
    write(path, "p-0")
    discovery.look()
    discovery.look()
    write(path, "p-1")
    discovery.look()
    assert watcher.found == [["p-0"], ["p-1"]]


def test_a_replaced_file_of_equal_size_and_time_is_noticed(path: Path) -> None:
    watcher = Watcher()
    discovery = FileDiscovery(path, watcher)
    write(path, "p-0")
    before = path.stat()
    discovery.look()
    write(path, "p-1")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    discovery.look()
    assert watcher.found == [["p-0"], ["p-1"]]


def test_a_link_into_a_mounted_volume_is_followed(path: Path, tmp_path: Path) -> None:
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        write(tmp_path / version / "endpoints.json", f"p-{version}")
    data = tmp_path / "data"
    data.symlink_to("one")
    watcher = Watcher()
    discovery = FileDiscovery(data / "endpoints.json", watcher)
    discovery.look()
    swap = tmp_path / "swap"
    swap.symlink_to("two")
    swap.replace(data)  # As the kubelet does.
    discovery.look()
    assert watcher.found == [["p-one"], ["p-two"]]


@pytest.mark.parametrize("bad", [b"", b"{", b"\xff", b'{"endpoints": [{"name": "p-0"}]}'])
def test_a_bad_file_is_an_error_once_and_the_next_good_one_is_taken(
    path: Path, bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = Watcher()
    discovery = FileDiscovery(path, watcher)
    write(path, "p-0")
    discovery.look()
    path.write_bytes(bad)
    with caplog.at_level(logging.ERROR):
        discovery.look()
        discovery.look()
    assert len(watcher.failures) == 1
    assert [r.message for r in caplog.records] == ["discovery.failed"]
    write(path, "p-1")
    discovery.look()
    assert watcher.found == [["p-0"], ["p-1"]]


def test_a_missing_file_is_an_error_until_it_comes(path: Path) -> None:
    watcher = Watcher()
    discovery = FileDiscovery(path, watcher)
    discovery.look()
    discovery.look()
    assert len(watcher.failures) == 1
    write(path, "p-0")
    discovery.look()
    assert watcher.found == [["p-0"]]


async def test_a_running_discovery_finds_changes_by_itself(path: Path) -> None:
    watcher = Watcher()
    task = asyncio.create_task(FileDiscovery(path, watcher, poll_s=0.005).run())
    await eventually(lambda: len(watcher.failures) == 1)
    write(path, "p-0")
    await eventually(lambda: watcher.found == [["p-0"]])
    write(path, "p-0", "p-1")
    await eventually(lambda: watcher.found[-1] == ["p-0", "p-1"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("start", [b'{"endpoints":', b"endpoints: "])
def test_a_file_that_is_nested_too_deep_is_a_file_that_cannot_be_used(start: bytes) -> None:
    with pytest.raises(ConfigurationError, match="nested too deep"):
        parse_endpoints(start + b"[" * 100_000, where="file")


@pytest.mark.parametrize("lease_s", [0, 1, 5])
def test_a_lease_that_no_engine_can_grant_is_found_when_the_file_is_read(lease_s: int) -> None:
    engine = {
        "name": "p-0",
        "role": "prefill",
        "url": "http://10.0.0.1:8000",
        "sideChannel": "10.0.0.1:5600",
        "revision": "r1",
        "leaseDurationSeconds": lease_s,
    }
    with pytest.raises(ConfigurationError, match=r"leaseDurationSeconds: .* equal to 6"):
        parse_endpoints(json.dumps({"endpoints": [engine]}).encode(), where="file")
