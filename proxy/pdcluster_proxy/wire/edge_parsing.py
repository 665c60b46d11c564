"""What the client's edge makes of its parser: errors that become rejections, and when to read on.

Shell.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import httptools
from typing_extensions import override
from uvicorn.protocols.http.flow_control import FlowControl

from pdcluster_proxy.errors import RejectedError
from pdcluster_proxy.wire.edge_guard import malformed, version_unsupported

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sized

__all__ = ["PipelineFlow", "rejection_of"]


def rejection_of(error: httptools.HttpParserError) -> RejectedError:
    """Say what a client is told of a request that could not be parsed."""
    if isinstance(error, httptools.HttpParserCallbackError):
        cause = error.__context__
        if isinstance(cause, RejectedError):
            return cause
        return malformed("its target is not valid")
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return RejectedError(
            "The request's method is unknown.",
            status_code=HTTPStatus.NOT_IMPLEMENTED,
            code="method-unknown",
        )
    if "HTTP version" in str(error) or "PRI" in str(error):  # The latter begins HTTP/2.
        return version_unsupported()
    return malformed(str(error))


class PipelineFlow(FlowControl):
    """Flow control that reads nothing more while pipelined requests wait: each takes memory.

    Args:
        transport: The client's connection.
        waiting: The requests that wait for their turn.
    """

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    @override
    def resume_reading(self) -> None:
        if self.read_paused and not self._waiting:
            super().resume_reading()
