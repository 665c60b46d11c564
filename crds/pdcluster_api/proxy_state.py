"""What the proxy tells the operator: which engines still hold KV, and how far a drain has got.

Pure. Counts at one moment; a proxy that does not know says null, which is never zero.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pdcluster_api.proxy_config import Role

__all__ = ["EngineLedger", "ProxyState"]

_Count = Annotated[int, Field(ge=0)]


class _Model(BaseModel):
    """Frozen and camelCase on the wire; unknown fields are a newer proxy's and skipped."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True
    )


class EngineLedger(_Model):
    """What one proxy knows of one engine."""

    name: str
    """The endpoint's name."""
    role: Role
    draining: bool = False
    """This proxy has learnt that the engine drains and sends it nothing new."""
    in_flight: _Count
    """Open legs on it."""
    held: _Count | None = None
    """Leases it granted that have neither been read nor ended (prefill engines only)."""
    oldest_held_seconds: Annotated[float, Field(ge=0)] | None = None
    """Age of the oldest of these."""


class ProxyState(_Model):
    """What one proxy process group reports of itself."""

    cluster: str
    """Name of the PDCluster."""
    draining: bool = False
    """The proxy itself is on its way out."""
    in_flight: _Count
    """Exchanges running."""
    queued: _Count = 0
    """Exchanges waiting for admission."""
    endpoints_seq: _Count = 0
    """How often the list of engines has changed since the start; tells that a change was seen."""
    engines: tuple[EngineLedger, ...] = ()

    def is_quiet(self, name: str) -> bool | None:
        """Whether an engine may stop as far as this proxy knows: no legs, nothing held.

        Returns:
            None where the proxy does not know the engine or its leases.
        """
        for engine in self.engines:
            if engine.name == name:
                if engine.role is Role.PREFILL and engine.held is None:
                    return None
                return engine.in_flight == 0 and not engine.held
        return None
