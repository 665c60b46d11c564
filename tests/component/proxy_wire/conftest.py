"""Fixtures: every test here runs on asyncio's loop and on uvloop, which production uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from pdcluster_proxy.wire.engine_client import EngineClient


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    client = EngineClient(sweep_interval_s=0.02)
    yield client
    await client.close()
