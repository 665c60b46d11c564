"""The whole program: one companion, workers, their deaths, and a stop that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tests.support.scripted_engine import (
    LAST_CHUNK,
    STREAM_HEAD,
    Peer,
    chunk,
    eventually,
    json_answer,
    scripted_engine,
)

from pdcluster_proxy.clients import Answer, HttpReader, make_client
from pdcluster_proxy.errors import ProxyError
from pdcluster_proxy.wire.engine_client import EngineClient

START_S = 40.0
"""Starting takes a second; a loaded machine may take many."""

PREFILL_ANSWER = json.dumps(
    {
        "id": "p",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "x"},
                "finish_reason": "length",
            }
        ],
        "usage": {"prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1},
        "kv_transfer_params": {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2]],
            "remote_engine_id": "engine-1",
            "remote_request_id": "cmpl-1",
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
        },
    }
).encode()
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}\n\n'


async def prefill(peer: Peer) -> None:
    while True:
        head, _ = await peer.request()
        await peer.send(json_answer(b"" if head.startswith(b"GET") else PREFILL_ANSWER))


@dataclass
class Decode:
    """A decode engine whose stream goes on until the test ends it."""

    may_end: asyncio.Event

    async def __call__(self, peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            if head.startswith(b"GET"):
                await peer.send(json_answer(b""))
                continue
            await peer.send(STREAM_HEAD, chunk(EVENT))
            await self.may_end.wait()
            await peer.send(chunk(EVENT), chunk(b"data: [DONE]\n\n") + LAST_CHUNK)


@dataclass
class Program:
    """A running proxy."""

    process: asyncio.subprocess.Process
    port: int
    admin: int
    reader: HttpReader
    may_end: asyncio.Event
    endpoints: Path

    async def page(self, name: str) -> Answer | None:
        """A page of the admin port; None where it cannot be read."""
        try:
            return await self.reader.get(f"http://127.0.0.1:{self.admin}/{name}", timeout_s=5)
        except ProxyError:
            return None

    async def until(self, status: int, *, says: bytes = b"") -> None:
        """Wait until readiness has a status."""
        async with asyncio.timeout(START_S):
            while True:
                page = await self.page("readyz")
                if page is not None and page.status == status and says in page.body:
                    return
                await asyncio.sleep(0.05)

    def process_of(self, module: str) -> psutil.Process:
        """The first process that runs a module."""
        processes = psutil.Process(self.process.pid).children()
        return next(c for c in processes if module in c.cmdline())

    async def stream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream that has begun."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps(
            {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        ).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        async with asyncio.timeout(START_S):
            await reader.readuntil(EVENT)
        return reader, writer

    async def exit_code(self) -> int:
        async with asyncio.timeout(START_S):
            return await self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def running(folder: Path, **changes: object) -> AsyncIterator[Program]:
    """The proxy in front of one scripted pair."""
    may_end = asyncio.Event()
    engines = EngineClient()
    async with scripted_engine(prefill) as p, scripted_engine(Decode(may_end)) as d:
        endpoints = folder / "endpoints.json"
        common = {"sideChannel": "127.0.0.1:5600", "revision": "r1"}
        listed = [
            {"name": name, "role": role, "url": f"http://127.0.0.1:{at.address.port}", **common}
            for name, role, at in (("p-0", "prefill", p), ("d-0", "decode", d))
        ]
        endpoints.write_text(json.dumps({"endpoints": listed}))
        port, admin = free_port(), free_port()
        config = {
            "cluster": "demo",
            "model": "m",
            "listen": {"host": "127.0.0.1", "port": port},
            "admin": {"host": "127.0.0.1", "port": admin},
            "workers": 1,
            "lease": {"durationSeconds": 30, "maxHoldSeconds": 60},
            "timeouts": {"requestSeconds": 60, "firstByteSeconds": 30, "idleSeconds": 30},
            "admission": {"maxInFlight": 10, "maxQueue": 1, "queueTimeoutSeconds": 1},
            "endpointsFile": str(endpoints),
            "drainSeconds": 0.3,
            "graceSeconds": 20,
            **changes,
        }
        path = folder / "proxy.json"
        path.write_text(json.dumps(config))
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "pdcluster_proxy.main", "--config", str(path)), stderr=log
            )
        try:
            reader = HttpReader(make_client(engines))
            program = Program(process, port, admin, reader, may_end, endpoints)
            await program.until(200)
            yield program
        finally:
            may_end.set()
            if process.returncode is None:
                process.kill()
                await process.wait()
            await engines.close()


async def test_a_stream_passes_and_is_counted(tmp_path: Path) -> None:
    async with running(tmp_path) as program:
        reader, writer = await program.stream()
        ledger = await program.page("ledger")
        assert ledger is not None
        program.may_end.set()
        async with asyncio.timeout(START_S):
            rest = await reader.read()
        writer.close()
        assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        async with asyncio.timeout(START_S):
            while True:
                page = await program.page("metrics")
                assert page is not None
                if b'requests_total{code="",route="chat",status="200"} 1.0' in page.body:
                    break
                await asyncio.sleep(0.05)
        assert b'connections_opened_total{endpoint="p-0"} 1.0' in page.body
        assert b'leases_held{endpoint="p-0"} 0.0' in page.body


async def test_sigterm_drains_finishes_what_runs_and_exits_with_0(tmp_path: Path) -> None:
    async with running(tmp_path, workers=2) as program:
        reader, writer = await program.stream()
        program.process.terminate()
        await program.until(503, says=b"draining")
        program.may_end.set()
        async with asyncio.timeout(START_S):
            rest = await reader.read()
        writer.close()
        assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert await program.exit_code() == 0
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", program.port)


async def test_a_companion_that_dies_during_the_drain_comes_back_draining(tmp_path: Path) -> None:
    async with running(tmp_path, drainSeconds=60) as program:
        program.process.terminate()
        await program.until(503, says=b"draining")
        program.process_of("pdcluster_proxy.companion").kill()
        log = tmp_path / "log"
        await eventually(
            lambda: log.read_bytes().count(b'"companion.started"') == 2, within_s=START_S
        )
        await program.until(503, says=b"draining")
        program.process.terminate()
        assert await program.exit_code() == 1


async def test_a_second_request_to_stop_does_not_wait(tmp_path: Path) -> None:
    async with running(tmp_path, drainSeconds=60) as program:
        _, writer = await program.stream()
        program.process.terminate()
        await program.until(503, says=b"draining")
        program.process.terminate()
        assert await program.exit_code() == 1
        writer.close()


async def test_a_worker_that_dies_is_replaced_and_serves(tmp_path: Path) -> None:
    async with running(tmp_path) as program:
        program.process_of("pdcluster_proxy.worker").kill()
        program.may_end.set()
        reader, writer = await program.stream()  # It waits in the socket's queue meanwhile.
        async with asyncio.timeout(START_S):
            assert b"[DONE]" in await reader.read()
        writer.close()
        assert b'"process.died"' in (tmp_path / "log").read_bytes()


async def test_workers_serve_on_without_a_companion_and_the_next_one_finds_them(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as program:
        program.process_of("pdcluster_proxy.companion").kill()
        program.may_end.set()
        reader, writer = await program.stream()
        async with asyncio.timeout(START_S):
            assert b"[DONE]" in await reader.read()
        writer.close()
        await program.until(200)


async def test_the_processes_die_with_the_supervisor(tmp_path: Path) -> None:
    async with running(tmp_path) as program:
        processes = psutil.Process(program.process.pid).children(recursive=True)
        assert len(processes) == 2
        os.kill(program.process.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(processes, timeout=START_S)
        assert alive == []


async def test_an_edited_endpoints_file_is_followed(tmp_path: Path) -> None:
    async with running(tmp_path) as program:
        listed = json.loads(program.endpoints.read_text())
        fresh = tmp_path / "fresh.json"
        fresh.write_text(json.dumps({"endpoints": listed["endpoints"][:1]}))
        fresh.replace(program.endpoints)
        await program.until(503, says=b"decode: none")
        fresh.write_text(json.dumps(listed))
        fresh.replace(program.endpoints)
        await program.until(200)


async def test_a_companion_whose_discovery_fails_for_good_is_started_again(tmp_path: Path) -> None:
    port, admin = free_port(), free_port()
    config = {
        "cluster": "demo",
        "model": "m",
        "listen": {"host": "127.0.0.1", "port": port},
        "admin": {"host": "127.0.0.1", "port": admin},
        "workers": 1,
        "lease": {"durationSeconds": 30, "maxHoldSeconds": 60},
        "timeouts": {"requestSeconds": 60, "firstByteSeconds": 30, "idleSeconds": 30},
        "admission": {"maxInFlight": 10, "maxQueue": 1, "queueTimeoutSeconds": 1},
        "kubernetes": {"namespace": "default", "cluster": "demo"},
        "drainSeconds": 0.1,
        "graceSeconds": 5,
    }
    path, log = tmp_path / "proxy.json", tmp_path / "log"
    path.write_text(json.dumps(config))
    nowhere = {"KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)}
    environ = {k: v for k, v in os.environ.items() if k != "KUBERNETES_SERVICE_HOST"} | nowhere
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pdcluster_proxy.main", "--config", str(path)),
            stderr=out,
            env=environ,
        )
    try:
        await eventually(lambda: log.read_bytes().count(b'"process.died"') >= 2, within_s=START_S)
        assert b'"companion.failed"' in log.read_bytes()
        process.terminate()
        async with asyncio.timeout(START_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
