"""What all endpoints of one engine share.

Shell: the frontend, the settings, and what makes ids and times.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdcluster_lease.engine_params import RequestParams, read_request_params
from pdcluster_lease.params import RequestId

if TYPE_CHECKING:
    from starlette.requests import Request

    from pdcluster_sim.api.faults import Faults
    from pdcluster_sim.api.schemas import SamplingFields
    from pdcluster_sim.api.usage import Usage
    from pdcluster_sim.core.results import Output
    from pdcluster_sim.frontend import Frontend
    from pdcluster_sim.metrics import EngineMetrics
    from pdcluster_sim.settings import Settings

__all__ = ["ApiContext"]

_HEX_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """Handed to every endpoint.

    Attributes:
        settings: The engine's settings.
        frontend: Runs requests.
        metrics: For ``/metrics``.
        fingerprint: ``system_fingerprint`` of all answers.
        faults: What to do wrong on purpose.
    """

    settings: Settings
    frontend: Frontend
    metrics: EngineMetrics
    fingerprint: str
    faults: Faults

    def api_id(self, request: Request, prefix: str) -> str:
        """Name a request: the client's ``X-Request-Id``, or a fresh id."""
        given = request.headers.get("x-request-id")
        return f"{prefix}-{given or secrets.token_hex(_HEX_BYTES)}"

    def engine_id_of(self, name: str) -> RequestId:
        """Make the engine's internal id of a request; its suffix keeps equal client ids apart."""
        return RequestId(f"{name}-{secrets.token_hex(_HEX_BYTES // 2)}")

    def kv_of(self, body: SamplingFields) -> RequestParams | None:
        """Read a request's ``kv_transfer_params``; an engine without connector ignores them."""
        if not body.kv_transfer_params or self.settings.kv_transfer is None:
            return None
        return read_request_params(body.kv_transfer_params)

    def created(self) -> int:
        """Return the wall clock for ``created``: shown to people, never compared."""
        return int(time.time())

    def account(self, usage: Usage, output: Output, kv: RequestParams | None) -> None:
        """Add what one output says about cached tokens.

        A decode engine reports what P found in its cache, where P said so.
        """
        cached = output.num_cached_tokens + output.num_external_tokens
        if kv is not None and kv.remote_cached_tokens is not None:
            cached = kv.remote_cached_tokens
        usage.num_cached = cached
