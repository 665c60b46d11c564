"""``/sim/...``: looking into the engine and breaking it on purpose.

Shell on the event loop. Served only with ``--sim-admin``.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from pdcluster_sim.api.faults import Fault
from pdcluster_sim.api.generating import error_response, json_response
from pdcluster_sim.api.rejections import RequestRejectedError, bad_request
from pdcluster_sim.api.schemas import parse_body
from pdcluster_sim.engine_thread import Stall

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from pdcluster_sim.api.context import ApiContext
    from pdcluster_sim.memory import KVMemory

__all__ = ["AdminApi", "EngineHandles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHandles:
    """What the admin endpoints may reach beyond the API.

    Attributes:
        memory: The KV memory.
        leases: Returns the blocks that each lease held as P pins.
        silence: Ends the side channel's listener, or None without connector.
    """

    memory: KVMemory
    leases: Callable[[], dict[str, list[int]]]
    silence: Callable[[], None] | None


class _SpoilRequest(msgspec.Struct, forbid_unknown_fields=True):
    block: int
    offset: int = 0


class _StallRequest(msgspec.Struct, forbid_unknown_fields=True):
    seconds: float


class _EndRequest(msgspec.Struct, forbid_unknown_fields=True):
    what: Literal["process", "side-channel"]


class AdminApi:
    """The endpoints.

    Args:
        context: What all endpoints share.
        handles: What these may reach beyond it.
    """

    def __init__(self, context: ApiContext, handles: EngineHandles) -> None:
        self._context = context
        self._handles = handles

    async def state(self, _request: Request) -> Response:
        """``GET /sim/state``: figures of this moment, and the blocks of each lease."""
        gauges = self._context.frontend.gauges
        shown = None if gauges is None else msgspec.to_builtins(gauges)
        return json_response({"gauges": shown, "leases": self._handles.leases()})

    async def spoil(self, request: Request) -> Response:
        """``POST /sim/memory``: change one byte of one block."""
        try:
            body = parse_body(await request.body(), _SpoilRequest)
            num_blocks = self._context.settings.num_blocks
            if not 0 <= body.block < num_blocks:
                raise bad_request(f"block must be 0 to {num_blocks - 1}", param="block")
            if not 0 <= body.offset < self._handles.memory.block_bytes:
                raise bad_request("offset is outside the block", param="offset")
        except RequestRejectedError as error:
            return error_response(error)
        self._handles.memory.spoil(body.block, body.offset)
        return json_response({})

    async def stall(self, request: Request) -> Response:
        """``POST /sim/stall``: the engine's thread makes no call for a while."""
        try:
            body = parse_body(await request.body(), _StallRequest)
        except RequestRejectedError as error:
            return error_response(error)
        self._context.frontend.post(Stall(body.seconds))
        return json_response({})

    async def fault(self, request: Request) -> Response:
        """``POST /sim/faults``: plan one; ``DELETE`` plans none any more."""
        if request.method == "DELETE":
            self._context.faults.clear()
            return json_response({})
        try:
            self._context.faults.add(parse_body(await request.body(), Fault))
        except RequestRejectedError as error:
            return error_response(error)
        return json_response({})

    async def end(self, request: Request) -> Response:
        """``POST /sim/end``: kill the process at once, or the side channel's listener."""
        try:
            body = parse_body(await request.body(), _EndRequest)
        except RequestRejectedError as error:
            return error_response(error)
        if body.what == "process":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._handles.silence is not None:
            self._handles.silence()
        return json_response({})
