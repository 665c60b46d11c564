"""``kv_transfer_params``: what P returns, what D receives, what the proxy may believe of it.

Pure. The proxy reads the fields it needs with :func:`parse_params` and forwards P's bytes as they
came: unknown fields, order and spelling included. Engines (the simulator) build the object with
:func:`granted_params` and read a request's with :func:`read_request_params`, which is as lenient
as vLLM. Wire names are spelt here and in ``wire.py`` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NewType

import msgspec
from msgspec import Meta

from pdcluster_lease import defaults
from pdcluster_lease.errors import RemoteProtocolError
from pdcluster_lease.hosts import host_fault

__all__ = [
    "DEFAULT_LIMITS",
    "PREFILL_REQUEST_RAW",
    "EngineId",
    "KVTransferParams",
    "ParamsLimits",
    "RemoteLease",
    "RequestId",
    "parse_params",
]

EngineId = NewType("EngineId", str)
"""Names one boot of one engine."""

RequestId = NewType("RequestId", str)
"""An engine's own id of a request; P's is the key of the lease."""

PREFILL_REQUEST_RAW: Final = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
"""What the prefill leg carries: the six-field template.

Source: vLLM's ``toy_proxy_server.py`` and llm-d's sidecar send the same.
"""

PULL_MODE: Final = "pull"
"""The one ``transfer_mode`` we speak; absent below vLLM 0.28.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamsLimits:
    """Bounds on what one object may hold, so that a rogue P costs next to nothing.

    Attributes:
        raw_bytes: Longest object, in bytes.
        block_ids: Most block ids over all groups.
        parallel_size: Largest ``tp_size``, ``dcp_size`` or ``pp_size``.
    """

    raw_bytes: int = defaults.PARAMS_MAX_BYTES
    block_ids: int = defaults.BLOCK_IDS_MAX
    parallel_size: int = defaults.PARALLEL_SIZE_MAX


DEFAULT_LIMITS: Final = ParamsLimits()

_MAX_LISTS: Final = 4096
"""Most lists in one object: one per KV-cache group, and what unknown fields may hold."""

_Identifier = Annotated[str, Meta(min_length=1, max_length=defaults.IDENTIFIER_MAX_CHARS)]
_Port = Annotated[int, Meta(ge=1, le=65_535)]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class _Wire(msgspec.Struct, gc=False):
    """P's answer as it is spelt on the wire; unknown fields are skipped, not kept."""

    do_remote_prefill: bool
    do_remote_decode: bool
    # Lists: they decode in half the time of tuples, and nobody changes them.
    remote_block_ids: list[list[_Count]]
    remote_engine_id: _Identifier
    remote_request_id: _Identifier
    remote_host: str
    remote_port: _Port
    # Without it D never renews (vLLM base_scheduler.on_new_request), so it is no option to us.
    tp_size: _Size
    pp_size: _Size = 1
    dcp_size: _Size = 1
    remote_num_tokens: _Count | None = None
    transfer_mode: str | None = None
    remote_prefill_cached_tokens: _Count | None = None
    remote_blocks_expiry_time: float | None = None
    remote_registration_generation: int | None = None


_DECODER: Final = msgspec.json.Decoder(_Wire)
# The same fields unread, to find the one at fault; a dict would keep what a rogue P adds.
_UNREAD: Final = msgspec.Raw(b"")
_RawWire = msgspec.defstruct(
    "_RawWire", [(field.name, msgspec.Raw, _UNREAD) for field in msgspec.structs.fields(_Wire)]
)
_RAW_DECODER: Final = msgspec.json.Decoder(_RawWire)


class KVTransferParams(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One grant as P announced it.

    Attributes:
        raw: The object's bytes as P sent them: what D must receive.
        engine_id: P's engine id; another one means that P restarted.
        request_id: P's internal request id, the key of the lease.
        host: Host of P's side channel.
        port: Port of P's side channel.
        block_ids: One sequence of logical block ids per KV-cache group; empty groups are legal.
        tp_size: P's tensor-parallel size.
        pp_size: P's pipeline-parallel size.
        dcp_size: P's decode-context-parallel size.
        num_tokens: Tokens whose KV the blocks hold, or None where P did not say.
        transfer_mode: ``"pull"``, or None from engines that do not say.
        cached_tokens: Prompt tokens P found in its prefix cache, or None where P did not say.
        registration_generation: Changes when P registered its memory anew (vLLM 0.33.0 and later).
    """

    raw: bytes
    engine_id: EngineId
    request_id: RequestId
    host: str
    port: int
    block_ids: Sequence[Sequence[int]]
    tp_size: int
    pp_size: int
    dcp_size: int
    num_tokens: int | None
    transfer_mode: str | None
    cached_tokens: int | None
    registration_generation: int | None

    @property
    def num_blocks(self) -> int:
        """Block ids over all groups."""
        return sum(map(len, self.block_ids))

    @property
    def lease(self) -> RemoteLease:
        """The part of it that whoever renews or releases needs."""
        return RemoteLease(
            engine_id=self.engine_id,
            request_id=self.request_id,
            host=self.host,
            port=self.port,
            tp_size=self.tp_size,
            pp_size=self.pp_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLease:
    """Where a lease lives and under which id.

    Attributes:
        engine_id: The engine that granted.
        request_id: The lease's key there.
        host: Host of its side channel.
        port: Port of its side channel.
        tp_size: Its tensor-parallel size; each rank has its own timer.
        pp_size: Its pipeline-parallel size.
    """

    engine_id: EngineId
    request_id: RequestId
    host: str
    port: int
    tp_size: int = 1
    pp_size: int = 1


def parse_params(raw: bytes, limits: ParamsLimits = DEFAULT_LIMITS) -> KVTransferParams:
    """Read the ``kv_transfer_params`` of a prefill engine's answer, and reject a half-valid one.

    A decode engine dies of incomplete params and reads another request's KV by wrong ones, so
    nothing that fails here may be forwarded.

    Args:
        raw: The object's JSON, exactly as it stood in P's answer.
        limits: Bounds on sizes.

    Raises:
        RemoteProtocolError: Not JSON, not an object, a required field is missing, or a value has
            the wrong type or range; ``field`` names it.

    Source:
        vLLM 0.32.0, answers of ``/v1/completions``; ``tp_size`` and ``pp_size`` from 0.22.0 on.
    """
    if len(raw) > limits.raw_bytes:
        raise RemoteProtocolError(
            f"kv_transfer_params of {len(raw)} bytes, at most {limits.raw_bytes}"
        )
    if raw.count(b"[") > _MAX_LISTS:
        # Lists cost more than their bytes; this many would hold the loop for milliseconds.
        raise RemoteProtocolError(
            f"more than {_MAX_LISTS} lists in one object", field="remote_block_ids"
        )
    try:
        wire = _DECODER.decode(raw)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(str(error), field=_field_at_fault(raw)) from error
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RemoteProtocolError(f"kv_transfer_params is no JSON we accept: {error}") from error
    _check_values(wire, limits)
    return KVTransferParams(
        raw=raw,
        engine_id=EngineId(wire.remote_engine_id),
        request_id=RequestId(wire.remote_request_id),
        host=wire.remote_host,
        port=wire.remote_port,
        block_ids=wire.remote_block_ids,
        tp_size=wire.tp_size,
        pp_size=wire.pp_size,
        dcp_size=wire.dcp_size,
        num_tokens=wire.remote_num_tokens,
        transfer_mode=wire.transfer_mode,
        cached_tokens=wire.remote_prefill_cached_tokens,
        registration_generation=wire.remote_registration_generation,
    )


def _check_values(wire: _Wire, limits: ParamsLimits) -> None:
    """Check what types cannot say."""
    if not wire.do_remote_prefill:
        raise RemoteProtocolError("expected true in a prefill answer", field="do_remote_prefill")
    if wire.do_remote_decode:
        raise RemoteProtocolError("expected false in a prefill answer", field="do_remote_decode")
    num_blocks = sum(map(len, wire.remote_block_ids))
    if num_blocks == 0:
        raise RemoteProtocolError("holds no block", field="remote_block_ids")
    if num_blocks > limits.block_ids or len(wire.remote_block_ids) > limits.parallel_size:
        raise RemoteProtocolError(
            f"{num_blocks} blocks in {len(wire.remote_block_ids)} groups, at most "
            f"{limits.block_ids} in {limits.parallel_size}",
            field="remote_block_ids",
        )
    largest = max(wire.tp_size, wire.pp_size, wire.dcp_size)
    if largest > limits.parallel_size:
        field = next(
            name for name in ("tp_size", "pp_size", "dcp_size") if getattr(wire, name) == largest
        )
        raise RemoteProtocolError(f"{largest}, at most {limits.parallel_size}", field=field)
    if wire.transfer_mode is not None and wire.transfer_mode != PULL_MODE:
        raise RemoteProtocolError(
            f"expected {PULL_MODE!r} or nothing, got {wire.transfer_mode[:32]!r}",
            field="transfer_mode",
        )
    fault = host_fault(wire.remote_host)
    if fault is not None:
        raise RemoteProtocolError(fault, field="remote_host")


def _field_at_fault(raw: bytes) -> str:
    """Find the field that does not have its type; only run once something is known to be wrong."""
    try:
        given = _RAW_DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return ""
    for field in msgspec.structs.fields(_Wire):
        value = getattr(given, field.name)
        if value is _UNREAD:
            if field.required:
                return field.name
            continue
        try:
            msgspec.json.decode(value, type=field.type)
        except (msgspec.DecodeError, RecursionError, ValueError):
            return field.name
    return ""
