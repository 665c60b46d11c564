"""``kv_transfer_params`` as an engine sees them: what it was asked, what it answers.

Pure. Reading is as lenient as vLLM's: nothing is validated when a request arrives, and what is
missing shows only once it is needed. The proxy's strict reading is in ``params.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdcluster_lease.params import PULL_MODE, EngineId, RemoteLease, RequestId

__all__ = ["GrantingEngine", "RequestParams", "granted_params", "read_request_params"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParams:
    """What a request's ``kv_transfer_params`` ask of the engine that receives it.

    Attributes:
        do_remote_decode: Prefill, then keep the blocks for whoever reads them.
        do_remote_prefill: Read the prompt's KV from a prefill engine.
        block_ids: Per KV-cache group the remote block ids; empty where missing.
        lease: Where the remote lease lives, or None where one of engine id, request id, host and
            port is missing: then nothing can be read or released.
        may_renew: Whether ``tp_size`` was there too: without it D never sends a heartbeat.
        remote_cached_tokens: Prompt tokens P found in its own prefix cache, or None.
    """

    do_remote_decode: bool
    do_remote_prefill: bool
    block_ids: tuple[tuple[int, ...], ...]
    lease: RemoteLease | None
    may_renew: bool
    remote_cached_tokens: int | None


def read_request_params(given: Mapping[str, object]) -> RequestParams:
    """Read the fields of a request's params that an engine uses, whatever else is there.

    Args:
        given: The request's ``kv_transfer_params`` as decoded from JSON; never rejected.

    Source:
        vLLM 0.32.0, ``pull_scheduler.py`` (``update_state_after_alloc``) and
        ``base_scheduler.py`` (``on_new_request``).
    """
    engine_id = given.get("remote_engine_id")
    request_id = given.get("remote_request_id")
    host = given.get("remote_host")
    port = given.get("remote_port")
    tp_size = given.get("tp_size")
    pp_size = given.get("pp_size")
    lease = None
    if (
        isinstance(engine_id, str)
        and isinstance(request_id, str)
        and isinstance(host, str)
        and isinstance(port, int)
    ):
        lease = RemoteLease(
            engine_id=EngineId(engine_id),
            request_id=RequestId(request_id),
            host=host,
            port=port,
            tp_size=tp_size if isinstance(tp_size, int) else 1,
            pp_size=pp_size if isinstance(pp_size, int) else 1,
        )
    cached = given.get("remote_prefill_cached_tokens")
    return RequestParams(
        do_remote_decode=bool(given.get("do_remote_decode")),
        do_remote_prefill=bool(given.get("do_remote_prefill")),
        block_ids=_block_ids(given.get("remote_block_ids")),
        lease=lease,
        may_renew=lease is not None and isinstance(tp_size, int),
        remote_cached_tokens=cached if isinstance(cached, int) else None,
    )


def _block_ids(given: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        return ()
    return tuple(
        tuple(each for each in group if isinstance(each, int))
        for group in given
        if isinstance(group, Sequence) and not isinstance(group, str | bytes)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantingEngine:
    """What every grant of one engine says about it.

    Attributes:
        engine_id: This boot's engine id.
        host: The side channel's host, as bound.
        port: The side channel's port.
        tp_size: Tensor-parallel size.
        pp_size: Pipeline-parallel size.
    """

    engine_id: EngineId
    host: str
    port: int
    tp_size: int = 1
    pp_size: int = 1


def granted_params(
    engine: GrantingEngine,
    request_id: RequestId,
    *,
    block_ids: Sequence[int],
    num_tokens: int,
    num_cached_tokens: int,
) -> dict[str, object]:
    """Spell P's answer, in the order in which vLLM spells it.

    Args:
        engine: The engine that grants.
        request_id: Its internal request id, the lease's key.
        block_ids: The blocks that hold the prompt's KV, one KV-cache group.
        num_tokens: Tokens whose KV they hold.
        num_cached_tokens: Prompt tokens found in its prefix cache.

    Source:
        vLLM 0.32.0, ``pull_scheduler.request_finished``, as answered by ``/v1/completions``.
    """
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(block_ids)],
        "remote_engine_id": engine.engine_id,
        "remote_request_id": request_id,
        "remote_host": engine.host,
        "remote_port": engine.port,
        "tp_size": engine.tp_size,
        "dcp_size": 1,
        "pp_size": engine.pp_size,
        "remote_num_tokens": num_tokens,
        # Neither a deadline nor a duration leaves P: whoever hands off keeps its own clock.
        "remote_blocks_expiry_time": None,
        "transfer_mode": PULL_MODE,
        "remote_prefill_cached_tokens": num_cached_tokens,
    }
