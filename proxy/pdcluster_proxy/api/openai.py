"""The OpenAI-compatible hot routes and the model list.

Shell. The two hot routes are ASGI endpoint objects: no Request or Response is made for them.
Bodies are judged by ``core/bodies.py``, exchanges run by ``exchange/runner.py``.
"""

from __future__ import annotations

import logging
import urllib.parse

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from pdcluster_proxy.core.bodies import Api, parse_request
from pdcluster_proxy.core.failures import failure_of_rejection, internal_error
from pdcluster_proxy.core.headers import read_client_headers
from pdcluster_proxy.errors import ClientGoneError, RejectedError
from pdcluster_proxy.exchange.answer import ClientSide
from pdcluster_proxy.exchange.runner import Runner
from pdcluster_proxy.exchange.worker import Worker
from pdcluster_proxy.wire.relay import take_body

__all__ = ["ExchangeEndpoint", "ModelsEndpoint", "UnfinishedBodies", "read_body", "request_id_of"]

_LOG = logging.getLogger(__name__)


MAX_UNFINISHED_BYTES = 256 * 1024 * 1024
"""Of all bodies that a worker is receiving; those that come in one piece do not count."""


class UnfinishedBodies:
    """What a worker holds of bodies whose end has yet to come.

    Attributes:
        limit_bytes: It takes no more than so much.
        num_bytes: What it holds now.
    """

    def __init__(self) -> None:
        self.limit_bytes = MAX_UNFINISHED_BYTES
        self.num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Count bytes that have come; give them back in any case.

        Raises:
            RejectedError: It holds too much (503).
        """
        self.num_bytes += num_bytes
        if self.num_bytes > self.limit_bytes:
            raise RejectedError(
                "Too many requests are sending their bodies; send yours again in a while.",
                status_code=503,
                code="bodies-full",
                retry_after_s=1,
            )

    def give_back(self, num_bytes: int) -> None:
        """Forget bytes that were taken."""
        self.num_bytes -= num_bytes


class ExchangeEndpoint:
    """One hot route.

    Args:
        worker: What the worker's exchanges share.
        api: The API family of the route.
        unfinished: The bodies that the worker is receiving.
    """

    def __init__(self, worker: Worker, api: Api, unfinished: UnfinishedBodies) -> None:
        self._worker = worker
        self._api = api
        self._unfinished = unfinished

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        worker = self._worker
        headers = read_client_headers(scope["headers"])
        request_id = headers.request_id or worker.new_id()
        client = ClientSide(
            scope, receive, send, request_id=request_id, flush_s=worker.bounds.flush_s
        )
        try:
            _check_encoding(headers.content_encoding)
            body = await read_body(
                scope, receive, limit=worker.bounds.max_body_bytes, unfinished=self._unfinished
            )
            request = parse_request(body, api=self._api, model=worker.config.model)
            await Runner(worker, request, headers, client).run()
        except RejectedError as error:
            self._count(error.status_code, error.code)
            await client.respond_error(failure_of_rejection(error), param=error.param)
        except ClientGoneError:
            self._count(499, "client-gone")
        except Exception:
            # The outermost loop of a request: the process lives, the client gets our own shape.
            _LOG.exception("exchange.failed", extra={"request_id": request_id})
            self._count(500, "internal-error")
            if client.status:
                raise
            await client.respond_error(internal_error())

    def _count(self, status: int, code: str) -> None:
        labels = (self._api.value, str(status), code)
        self._worker.companion.count("requests_total", labels)


class ModelsEndpoint:
    """``/v1/models``: answered by the proxy, also while no engine is ready.

    Args:
        worker: Gives the served model name.
        created: Unix seconds of the worker's start.
    """

    def __init__(self, worker: Worker, *, created: int) -> None:
        name = worker.config.model
        self._worker = worker
        self._model = {"id": name, "object": "model", "created": created, "owned_by": "pdcluster"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the list, or one model of it."""
        wanted = Request(scope).path_params.get("model")
        answer: Response
        if wanted is None:
            answer = JSONResponse({"object": "list", "data": [self._model]})
        elif (wanted := urllib.parse.unquote(wanted)) == self._model["id"]:
            answer = JSONResponse(self._model)
        else:
            answer = not_found(f"The model {wanted[:256]!r} does not exist.", "model-not-found")
        answer.headers["x-request-id"] = request_id_of(scope, self._worker)
        await answer(scope, receive, send)


def request_id_of(scope: Scope, worker: Worker) -> str:
    """Return the client's own request id where it has a usable one, else a new one."""
    return read_client_headers(scope["headers"]).request_id or worker.new_id()


def not_found(message: str, code: str) -> Response:
    """Answer 404 in the API's shape."""
    error = {"message": message, "type": "not_found_error", "param": None, "code": code}
    return JSONResponse({"error": error}, status_code=404)


async def read_body(
    scope: Scope, receive: Receive, *, limit: int, unfinished: UnfinishedBodies
) -> bytes:
    """Read a whole request body.

    Raises:
        RejectedError: It is larger than ``limit`` bytes (413), or the worker receives too much at
            a time (503).
        ClientGoneError: The client left before its end.
    """
    whole = take_body(scope)
    if whole is not None and len(whole) <= limit:
        return whole
    message: Message = {"type": "http.request", "body": whole}
    if whole is None:
        message = await receive()
    parts: list[bytes] = []
    size = 0
    try:
        while True:
            if message["type"] == "http.disconnect":
                raise ClientGoneError("The client left before the request's end.")
            part = message.get("body", b"")
            size += len(part)
            unfinished.take(len(part))
            if size > limit:
                raise RejectedError(
                    f"The request body is larger than {limit} bytes.",
                    status_code=413,
                    code="body-too-large",
                )
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)
            message = await receive()
    finally:
        unfinished.give_back(size)


def _check_encoding(encoding: bytes) -> None:
    if encoding and any(
        coding.strip() not in {b"", b"identity"} for coding in encoding.lower().split(b",")
    ):
        raise RejectedError(
            "Compressed request bodies are not taken; send the body as it is.",
            status_code=415,
            code="content-encoding",
        )
