"""The admin endpoints: off unless asked for; what they show and what they break."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import httpx
import pytest

from pdcluster_sim.api.admin import EngineHandles
from pdcluster_sim.app import create_app

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.component.simulator.conftest import Served

COMPLETION = {"model": "tiny", "prompt": "river " * 40, "max_tokens": 8, "ignore_eos": True}


async def text(served: Served) -> str:
    answer = await served.client.post("/v1/completions", json=COMPLETION)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.parametrize("path", ["/sim/state", "/sim/memory", "/sim/faults", "/sim/end"])
async def test_without_the_flag_there_is_nothing_to_administer(
    serve: Callable[..., Served], path: str
) -> None:
    served = serve()
    settings = dataclasses.replace(served.context.settings, admin=False)
    context = dataclasses.replace(served.context, settings=settings)
    handles = EngineHandles(memory=served.engine.memory, leases=dict, silence=None)
    app = create_app(context, handles)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://engine"
    ) as client:
        assert (await client.get(path)).status_code == 404


async def test_the_state_shows_figures_and_leases(served: Served) -> None:
    await text(served)
    state = (await served.client.get("/sim/state")).json()
    assert state["gauges"]["num_running"] == 0
    assert state["leases"] == {}


async def test_a_spoilt_byte_changes_the_answer_to_the_same_prompt(served: Served) -> None:
    right = await text(served)
    assert right == await text(served)
    # Block 1 holds the beginning of the first prompt and is found again by its name.
    spoilt = await served.client.post("/sim/memory", json={"block": 1, "offset": 17})
    assert spoilt.status_code == 200
    assert right != await text(served)


@pytest.mark.parametrize(
    "body", [{"block": -1}, {"block": 10**9}, {"block": 1, "offset": 10**9}, {}]
)
async def test_memory_that_does_not_exist_is_rejected(served: Served, body: dict[str, int]) -> None:
    assert (await served.client.post("/sim/memory", json=body)).status_code == 400


async def plan(served: Served, **fault: object) -> None:
    planned = await served.client.post("/sim/faults", json=fault)
    assert planned.status_code == 200, planned.text


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_status_fault_hits_the_next_request_alone(served: Served, status: int) -> None:
    await plan(served, kind="status", status=status)
    answer = await served.client.post("/v1/completions", json=COMPLETION)
    assert status == answer.status_code
    assert answer.json()["error"]["code"] == status
    await text(served)


async def test_planned_faults_can_be_taken_back(served: Served) -> None:
    await plan(served, kind="status", count=100)
    assert (await served.client.delete("/sim/faults")).status_code == 200
    await text(served)


async def test_a_choice_can_be_made_to_end_in_error(served: Served) -> None:
    await plan(served, kind="finish-error")
    answer = await served.client.post("/v1/completions", json=COMPLETION)
    assert answer.json()["choices"][0]["finish_reason"] == "error"


async def test_a_stream_can_be_cut_short(served: Served) -> None:
    await plan(served, kind="truncate-stream", chunks=2)
    answer = await served.client.post("/v1/completions", json={**COMPLETION, "stream": True})
    assert answer.text.count("data: ") == 2
    assert "[DONE]" not in answer.text


async def test_an_answer_can_be_delayed(served: Served) -> None:
    await plan(served, kind="slow-answer", seconds=0.3)
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    await text(served)
    assert loop.time() - started_at >= 0.3


async def test_a_stalled_engine_answers_later(served: Served) -> None:
    await served.client.post("/sim/stall", json={"seconds": 0.3})
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    await text(served)
    assert loop.time() - started_at >= 0.25


@pytest.mark.parametrize("body", [{"kind": "unknown"}, {}, {"kind": "status", "other": 1}])
async def test_a_fault_that_is_none_is_rejected(served: Served, body: dict[str, object]) -> None:
    assert (await served.client.post("/sim/faults", json=body)).status_code == 400
