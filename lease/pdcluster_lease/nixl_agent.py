"""The agent port over NIXL, without a progress thread.

Shell. NIXL's progress thread burns a whole core for ever, so none is started:
:meth:`NixlAgent.poll` makes all progress. Foreign exceptions are mapped in one function. Where UCX
looks for its transports is the program's environment (``UCX_TLS``, ``UCX_NET_DEVICES``), not ours.
"""

from __future__ import annotations

import importlib
import logging
from contextlib import contextmanager
from dataclasses import dataclass

# NIXL publishes no types; everything it returns is opaque to us and goes straight back to it.
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from typing_extensions import override

from pdcluster_lease.agent import (
    Agent,
    AgentEvent,
    BlockId,
    Notified,
    Peer,
    ReadDone,
    ReadFailed,
    RemoteBlocks,
    TransferId,
)
from pdcluster_lease.errors import NixlMissingError, PeerGoneError, TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

__all__ = ["NixlAgent", "load_nixl"]

_MODULES: Final = ("nixl._api", "nixl_cu13._api", "nixl_cu12._api")
_MICROSECOND_S: Final = 1e-6


def load_nixl() -> ModuleType:
    """Import whichever NIXL package is installed; the plain backends work without CUDA.

    Raises:
        NixlMissingError: None can be imported; the message says why for each.
    """
    failures = []
    for name in _MODULES:
        raise_exceptions = logging.raiseExceptions
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            failures.append(f"{name}: {error}")
            continue
        finally:
            logging.raiseExceptions = raise_exceptions
        _keep_off_stdout()
        return module
    raise NixlMissingError(
        "NIXL cannot be loaded, so no KV can move. Install pdcluster[nixl] (or the nixl-cu13 wheel "
        f"alone, with --no-deps). Tried: {'; '.join(failures)}"
    )


def _keep_off_stdout() -> None:
    """Let NIXL's lines go where the program's own go: by itself it prints them to stdout."""
    logger = logging.getLogger("nixl")
    for handler in tuple(logger.handlers):
        logger.removeHandler(handler)
    logger.propagate = True
    logger.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class _PeerState:
    name: bytes
    blocks: Any  # NIXL's prepared descriptor list, None for a peer we only notify
    num_blocks: int
    num_regions: int


@dataclass(frozen=True, slots=True)
class _Running:
    peer: Peer
    handle: Any  # NIXL's transfer handle
    num_bytes: int
    num_descriptors: int


class NixlAgent(Agent):
    """One NIXL agent; call it from one thread only.

    Args:
        name: Unique per boot; peers see it.

    Raises:
        NixlMissingError: NIXL cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        api = load_nixl()
        self._errors = api.nixlBind
        config = api.nixl_agent_config(
            enable_prog_thread=False, num_threads=0, capture_telemetry=True
        )
        with self._mapped("create an agent"):
            self._nixl = api.nixl_agent(name, config)
        # This is all the mutable state.
        self._memory: memoryview | None = None
        self._registered: Any = None
        self._local: Any = None
        self._num_local = 0
        self._block_bytes = 0
        self._next_id = 0
        self._peers: dict[Peer, _PeerState] = {}
        self._running: dict[TransferId, _Running] = {}
        self._done: list[AgentEvent] = []

    @override
    def register(self, memory: memoryview, block_bytes: int) -> int:
        if self._memory is not None or block_bytes <= 0 or memory.nbytes % block_bytes:
            raise TransferError(
                f"cannot register {memory.nbytes} bytes in blocks of {block_bytes}: "
                "register once, whole blocks only"
            )
        address = int(np.frombuffer(memory, dtype=np.uint8).ctypes.data)
        self._memory = memory
        self._block_bytes = block_bytes
        self._num_local = memory.nbytes // block_bytes
        with self._mapped("register memory"):
            regions = self._nixl.get_reg_descs([(address, memory.nbytes, 0, "")], "DRAM")
            self._registered = self._nixl.register_memory(regions, backends=["UCX"])
            blocks = _descriptors((address,), (block_bytes,), self._num_local, 0)
            self._local = self._nixl.prep_xfer_dlist(
                "NIXL_INIT_AGENT", self._nixl.get_xfer_descs(blocks, "DRAM")
            )
        return address

    @override
    def metadata(self) -> bytes:
        with self._mapped("describe the agent"):
            return bytes(self._nixl.get_agent_metadata())

    @override
    def add_peer(self, metadata: bytes, remote: RemoteBlocks | None) -> Peer:
        with self._mapped("add a peer"):
            name = self._nixl.add_remote_agent(metadata)
            blocks = None
            if remote is not None:
                described = _descriptors(
                    remote.base_addrs, remote.block_bytes, remote.num_blocks, remote.device_id
                )
                blocks = self._nixl.prep_xfer_dlist(
                    name, self._nixl.get_xfer_descs(described, "DRAM")
                )
        peer = Peer(self._take_id())
        self._peers[peer] = _PeerState(
            name=name,
            blocks=blocks,
            num_blocks=0 if remote is None else remote.num_blocks,
            num_regions=0 if remote is None else len(remote.base_addrs),
        )
        return peer

    @override
    def drop_peer(self, peer: Peer) -> None:
        state = self._peers.pop(peer, None)
        if state is None:
            return
        for transfer, running in tuple(self._running.items()):
            if running.peer == peer:
                self._end(transfer, "the peer was dropped")
        self._quietly(lambda: self._nixl.release_dlist_handle(state.blocks), when=state.blocks)
        self._quietly(lambda: self._nixl.remove_remote_agent(state.name))

    @override
    def read(
        self, peer: Peer, local: Sequence[BlockId], remote: Sequence[BlockId], note: bytes
    ) -> TransferId:
        state = self._peers.get(peer)
        if state is None:
            raise PeerGoneError("read from a peer that was dropped")
        if state.num_regions != 1 or len(local) != len(remote) or not local:
            raise TransferError(
                f"cannot read {len(remote)} blocks of {state.num_regions} regions into {len(local)}"
            )
        if not (_within(local, self._num_local) and _within(remote, state.num_blocks)):
            raise TransferError("a block id is out of range")
        with self._mapped("start a read"):
            handle = self._nixl.make_prepped_xfer(
                "READ",
                self._local,
                np.asarray(local, dtype=np.int32),
                state.blocks,
                np.asarray(remote, dtype=np.int32),
                notif_msg=note,
            )
            self._nixl.transfer(handle)
        transfer = TransferId(self._take_id())
        self._running[transfer] = _Running(
            peer=peer,
            handle=handle,
            num_bytes=len(local) * self._block_bytes,
            num_descriptors=len(local),
        )
        return transfer

    @override
    def notify(self, peer: Peer, payload: bytes) -> None:
        state = self._peers.get(peer)
        if state is None:
            raise PeerGoneError("notify a peer that was dropped")
        with self._mapped("notify a peer"):
            self._nixl.send_notif(state.name, payload)

    @override
    def poll(self) -> tuple[AgentEvent, ...]:
        with self._mapped("poll"):
            arrived = self._nixl.get_new_notifs()
        events: list[AgentEvent] = [
            Notified(bytes(payload)) for payloads in arrived.values() for payload in payloads
        ]
        for transfer in tuple(self._running):
            self._check(transfer)
        events += self._done
        self._done = []
        return tuple(events)

    @override
    def close(self) -> None:
        for peer in tuple(self._peers):
            self.drop_peer(peer)
        self._quietly(lambda: self._nixl.release_dlist_handle(self._local), when=self._local)
        self._local = None
        self._quietly(
            lambda: self._nixl.deregister_memory(self._registered, backends=["UCX"]),
            when=self._registered,
        )
        self._registered = None
        self._memory = None

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _check(self, transfer: TransferId) -> None:
        running = self._running[transfer]
        try:
            with self._mapped("check a read"):
                state = self._nixl.check_xfer_state(running.handle)
        except (PeerGoneError, TransferError) as error:
            self._end(transfer, str(error))
            return
        if state == "PROC":
            return
        if state != "DONE":
            self._end(transfer, f"NIXL reports {state}")
            return
        with self._mapped("read telemetry"):
            telemetry = self._nixl.get_xfer_telemetry(running.handle)
        self._done.append(
            ReadDone(
                transfer=transfer,
                num_bytes=int(telemetry.totalBytes),
                num_descriptors=int(telemetry.descCount),
                post_s=float(telemetry.postDuration) * _MICROSECOND_S,
                transfer_s=float(telemetry.xferDuration) * _MICROSECOND_S,
            )
        )
        del self._running[transfer]
        self._quietly(lambda: self._nixl.release_xfer_handle(running.handle))

    def _end(self, transfer: TransferId, reason: str) -> None:
        running = self._running.pop(transfer)
        self._done.append(ReadFailed(transfer, reason))
        self._quietly(lambda: self._nixl.release_xfer_handle(running.handle))

    @contextmanager
    def _mapped(self, doing: str) -> Iterator[None]:
        """Map NIXL's exceptions to ours: the one place where they are known."""
        bindings = self._errors
        try:
            yield
        except bindings.nixlRemoteDisconnectError as error:
            raise PeerGoneError(f"cannot {doing}: the peer is gone") from error
        except _nixl_errors(bindings) as error:
            raise TransferError(f"cannot {doing}: {error}") from error

    def _quietly(self, release: Callable[[], object], *, when: object = True) -> None:
        """Release something of NIXL's that may be broken already; there is nothing left to do."""
        if when is None:
            return
        try:
            release()
        except _nixl_errors(self._errors):
            logging.getLogger(__name__).debug("nixl.release.failed", exc_info=True)


def _nixl_errors(bindings: Any) -> tuple[type[Exception], ...]:
    """List NIXL's exceptions: they share no base of their own."""
    return tuple(
        value
        for name in dir(bindings)
        if name.endswith("Error")
        and isinstance(value := getattr(bindings, name), type)
        and issubclass(value, Exception)
    )


def _descriptors(
    base_addrs: tuple[int, ...], block_bytes: tuple[int, ...], num_blocks: int, device_id: int
) -> Any:
    """Describe every block of every region, region by region, as NIXL wants it: (n, 3) unsigned."""
    rows = [
        np.column_stack(
            (
                base + np.arange(num_blocks, dtype=np.uint64) * np.uint64(size),
                np.full(num_blocks, size, dtype=np.uint64),
                np.full(num_blocks, device_id, dtype=np.uint64),
            )
        )
        for base, size in zip(base_addrs, block_bytes, strict=True)
    ]
    return np.concatenate(rows)


def _within(ids: Sequence[BlockId], num_blocks: int) -> bool:
    return min(ids) >= 0 and max(ids) < num_blocks
