"""Everything that generates nothing: health, models, tokenizer, metrics.

Shell on the event loop.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from starlette.responses import Response

from pdcluster_sim.api.generating import error_response, json_response
from pdcluster_sim.api.rejections import RequestRejectedError, not_validated
from pdcluster_sim.api.sampling import check_model, message_tokens
from pdcluster_sim.api.schemas import DetokenizeRequest, TokenizeRequest, parse_body
from pdcluster_sim.core.tokens import VOCABULARY_SIZE, decode, encode, token_bytes
from pdcluster_sim.settings import VLLM_VERSION

if TYPE_CHECKING:
    from starlette.requests import Request

    from pdcluster_sim.api.context import ApiContext

__all__ = ["PlainApi"]

_METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class PlainApi:
    """The endpoints.

    Args:
        context: What all endpoints share.
    """

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def health(self, _request: Request) -> Response:
        """``GET /health``: 200 while the engine lives."""
        return Response(status_code=503 if self._context.frontend.death else 200)

    async def version(self, _request: Request) -> Response:
        """``GET /version``: the release whose protocol is spoken."""
        return json_response({"version": VLLM_VERSION})

    async def load(self, _request: Request) -> Response:
        """``GET /load``: 0, as long as vLLM's load tracking is off, which is its default."""
        return json_response({"server_load": 0})

    async def metrics(self, _request: Request) -> Response:
        """``GET /metrics``."""
        return Response(self._context.metrics.exposition(), media_type=_METRICS_TYPE)

    async def models(self, _request: Request) -> Response:
        """``GET /v1/models``."""
        settings, created = self._context.settings, self._context.created()
        permission = {
            "id": f"modelperm-{secrets.token_hex(8)}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        cards = [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "vllm",
                "root": settings.model,
                "parent": None,
                "max_model_len": settings.max_model_len,
                "permission": [permission],
            }
            for name in settings.served_names
        ]
        return json_response({"object": "list", "data": cards})

    async def tokenize(self, request: Request) -> Response:
        """``POST /tokenize``: a prompt or messages."""
        try:
            body = parse_body(await request.body(), TokenizeRequest)
            check_model(body.model, self._context.settings.served_names)
            if body.messages is not None:
                tokens = message_tokens(body.messages, generate=body.add_generation_prompt)
            elif body.prompt is not None:
                tokens = encode(body.prompt)
            else:
                return error_response(
                    not_validated("Field required", kind="missing", location="body.prompt")
                )
        except RequestRejectedError as error:
            return error_response(error)
        strings = [token_bytes(token).decode(errors="replace") for token in tokens]
        return json_response(
            {
                "count": len(tokens),
                "max_model_len": self._context.settings.max_model_len,
                "tokens": tokens,
                "token_strs": strings if body.return_token_strs else None,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        """``POST /detokenize``; unknown ids spell nothing, as in vLLM."""
        try:
            body = parse_body(await request.body(), DetokenizeRequest)
            check_model(body.model, self._context.settings.served_names)
        except RequestRejectedError as error:
            return error_response(error)
        known = [token for token in body.tokens if token < VOCABULARY_SIZE]
        return json_response({"prompt": decode(known, skip_special=False)})
