"""One engine put together: core, memory, agent, side channel.

Shell. What ``main.py`` starts and stops, and tests too.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

import msgspec

from pdcluster_lease import defaults
from pdcluster_lease.engine_params import GrantingEngine
from pdcluster_lease.nixl_agent import NixlAgent
from pdcluster_lease.params import EngineId
from pdcluster_lease.side_channel import SideChannelAddress
from pdcluster_lease.timing import LeaseTiming
from pdcluster_lease.wire import AgentMetadata, HandshakePayload, connector_release
from pdcluster_sim.core.compatibility import Compatibility
from pdcluster_sim.core.engine import EngineCore
from pdcluster_sim.core.scheduler import SchedulerLimits
from pdcluster_sim.engine_thread import EngineNews, EngineThread
from pdcluster_sim.handshakes import HandshakeThread
from pdcluster_sim.memory import KVMemory
from pdcluster_sim.settings import VLLM_VERSION, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdcluster_lease.agent import Agent

__all__ = ["Engine"]

_KV_LAYOUT: Final = "NHD"


class Engine:
    """The threads and the memory of one engine.

    Args:
        settings: The engine's settings.
        publish: Called from the engine's thread with its news; must not block.
    """

    def __init__(self, settings: Settings, *, publish: Callable[[EngineNews], None]) -> None:
        kv = settings.kv_transfer
        self._settings = settings
        self.compatibility = _compatibility(settings)
        self.memory = KVMemory(
            num_blocks=settings.num_blocks,
            block_size=settings.block_size,
            slot_bytes=settings.slot_bytes,
        )
        # A fresh id per boot: what a peer remembers of an earlier one is void.
        self.engine_id = EngineId((kv and kv.engine_id) or str(uuid.uuid4()))
        at = SideChannelAddress(
            kv.side_channel_host if kv else defaults.SIDE_CHANNEL_HOST,
            kv.side_channel_port if kv else defaults.SIDE_CHANNEL_PORT,
        )
        timing = kv.timing if kv else LeaseTiming.from_duration(defaults.KV_LEASE_DURATION_S)
        self.core = EngineCore(
            limits=SchedulerLimits(
                max_num_seqs=settings.max_num_seqs,
                max_num_batched_tokens=settings.max_num_batched_tokens,
                prefix_caching=settings.prefix_caching,
            ),
            memory=self.memory,
            num_blocks=settings.num_blocks,
            latency=settings.latency,
            engine=GrantingEngine(engine_id=self.engine_id, host=at.host, port=at.port),
            timing=timing,
            recomputes=kv is not None and kv.recomputes,
        )
        self._base_addr = 0
        self.handshakes = HandshakeThread(at, deliver=self._post) if kv else None
        self.thread = EngineThread(
            self.core,
            make_agent=self._make_agent if kv else None,
            compatibility=self.compatibility,
            shake_hands=self.handshakes.ask if self.handshakes else _nobody,
            publish=publish,
        )

    def start(self) -> None:
        """Start the threads: NIXL first, then the side channel that tells of it.

        Raises:
            NixlMissingError: NIXL cannot be loaded.
            SideChannelError: The side channel's address is taken.
        """
        self.thread.start()
        if self.handshakes is None:
            return
        try:
            self.handshakes.start(self._payload())
        except BaseException:
            # An agent that lives into the interpreter's teardown aborts the process there.
            self.thread.stop()
            raise

    def stop(self) -> None:
        """End the threads; idempotent."""
        if self.handshakes is not None:
            self.handshakes.stop()
        self.thread.stop()

    def _post(self, answer: object) -> None:
        self.thread.post(answer)  # type: ignore[arg-type]  # both answers are mail

    def _make_agent(self) -> Agent:
        agent = NixlAgent(str(uuid.uuid4()))
        self._base_addr = agent.register(self.memory.view, self.memory.block_bytes)
        return agent

    def _payload(self) -> HandshakePayload:
        metadata = AgentMetadata(
            engine_id=self.engine_id,
            agent_metadata=self.thread.metadata,
            kv_caches_base_addr=(self._base_addr,),
            num_blocks=self._settings.num_blocks,
            block_lens=(self.memory.block_bytes,),
            kv_cache_layout=_KV_LAYOUT,
            block_size=self._settings.block_size,
        )
        return HandshakePayload(
            compatibility_hash=self.compatibility.hash,
            agent_metadata_bytes=msgspec.msgpack.encode(metadata),
        )


def _compatibility(settings: Settings) -> Compatibility:
    release = connector_release(VLLM_VERSION)
    assert release is not None
    assert release.version is not None
    kv = settings.kv_transfer
    return Compatibility(
        vllm_version=VLLM_VERSION,
        connector_version=release.version,
        model=settings.model,
        dtype=settings.dtype,
        slot_bytes=settings.slot_bytes,
        block_size=settings.block_size,
        is_enforced=kv is None or kv.enforces_compatibility,
    )


def _nobody(_lease: object) -> None:
    """An engine without connector shakes hands with nobody."""
