"""The one thread that owns scheduler, memory and agent.

Shell around ``core/engine.py``: it takes inputs from its mailbox and the agent, lets the core
advance, does the effects and hands outputs over. NIXL makes progress only in :meth:`Agent.poll`, so
the agent is polled every millisecond while anything is going on and every five when idle, always: a
peer's read of this memory moves only then, late reads included.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from pdcluster_lease.agent import Agent, Notified, ReadDone, ReadFailed, RemoteBlocks, TransferId
from pdcluster_lease.errors import PeerGoneError, ProtocolError, TransferError
from pdcluster_lease.wire import Unrecognised, decode_notification
from pdcluster_sim.core.messages import (
    DropPeer,
    Effect,
    HandshakeFailed,
    HandshakeSucceeded,
    Input,
    PeerLost,
    ReadArrived,
    ReadBroke,
    SendNote,
    ShakeHands,
    StartRead,
)
from pdcluster_sim.core.results import Notice, Output, TransferFailed
from pdcluster_sim.handshakes import HandshakeAnswered, HandshakeUnanswered

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdcluster_lease.params import EngineId, RemoteLease
    from pdcluster_sim.core.compatibility import Compatibility
    from pdcluster_sim.core.engine import EngineCore
    from pdcluster_sim.core.results import EngineGauges

__all__ = ["AbortAll", "Drain", "EngineNews", "EngineThread", "Mail", "Stall"]

_log = logging.getLogger(__name__)

BUSY_POLL_S: Final = 0.001
IDLE_POLL_S: Final = 0.005
STOP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Stall:
    """Make no call for a while, as a stopped process would: a fault to inject."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Drain:
    """Report once nothing is left to do."""


@dataclass(frozen=True, slots=True)
class AbortAll:
    """Cancel every request; leases stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNews:
    """What one pass of the thread brought about.

    Attributes:
        outputs: For the requests' streams.
        notices: To count and log.
        reads: Reads that are complete, for the transfer metrics.
        gauges: The figures after it.
        step_tokens: Tokens computed in a step that ended, or None.
        is_drained: Whether a drain was asked for and nothing is left to do.
        death: Why the engine has ended, or None.
    """

    outputs: tuple[Output, ...] = ()
    notices: tuple[Notice, ...] = ()
    reads: tuple[ReadDone, ...] = ()
    gauges: EngineGauges | None = None
    step_tokens: int | None = None
    is_drained: bool = False
    death: str | None = None


Mail: TypeAlias = Input | HandshakeAnswered | HandshakeUnanswered | Stall | Drain | AbortAll


class EngineThread:
    """Runs one engine.

    Args:
        core: The engine's core.
        make_agent: Makes the agent on this thread, memory registered; None for an engine that
            exchanges no KV.
        compatibility: What peers have to match.
        shake_hands: Asks a peer's side channel; the answer comes back by :meth:`post`.
        publish: Called from this thread with its news; must not block.
    """

    def __init__(
        self,
        core: EngineCore,
        *,
        make_agent: Callable[[], Agent] | None,
        compatibility: Compatibility,
        shake_hands: Callable[[RemoteLease], None],
        publish: Callable[[EngineNews], None],
    ) -> None:
        self._core = core
        self._make_agent = make_agent
        self._compatibility = compatibility
        self._shake_hands = shake_hands
        self._publish = publish
        self._mail: SimpleQueue[Mail | None] = SimpleQueue()  # None only wakes the thread
        self._next_at: float | None = None
        self._ready = threading.Event()
        self._is_stopping = False
        self._is_draining = False
        self._failure: Exception | None = None
        self._agent: Agent | None = None
        self._reads: dict[TransferId, StartRead] = {}
        self._done_reads: list[ReadDone] = []
        self._notices: list[Notice] = []
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.metadata = b""

    def start(self) -> None:
        """Start, and wait until the agent exists.

        Raises:
            PDClusterError: NIXL is missing, or rejects the memory; anything else that went wrong
                on the thread is raised too.
        """
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def post(self, mail: Mail) -> None:
        """Hand something in, from any thread."""
        self._mail.put(mail)

    def stop(self) -> None:
        """End the thread; idempotent. One that is stalled on purpose is not waited for long."""
        self._is_stopping = True
        self._mail.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_S)

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._open_agent()
        except Exception as error:  # noqa: BLE001 - whatever it is, start() raises it
            self._failure = error
            return
        finally:
            self._ready.set()
        try:
            while not self._is_stopping:
                self._pass()
        except Exception as error:  # noqa: BLE001 - the outermost loop reports what ended it
            _log.exception("EngineCore encountered a fatal error.")
            self._publish(EngineNews(death=str(error) or type(error).__name__))
        finally:
            if self._agent is not None:
                self._agent.close()

    def _open_agent(self) -> None:
        if self._make_agent is None:
            return
        self._agent = self._make_agent()
        try:
            self.metadata = self._agent.metadata()
        except BaseException:
            self._agent.close()
            raise

    def _pass(self) -> None:
        had_mail = self._read_mail(self._pause_s())
        had_events = self._poll_agent()
        now = time.monotonic()
        is_due = self._next_at is not None and now >= self._next_at
        if not (had_mail or had_events or is_due):
            return  # nothing but time has passed, and none of it matters to the core
        advance = self._core.advance(now=now)
        self._next_at = advance.next_at
        for effect in advance.effects:
            self._do(effect)
        notices = (*advance.notices, *self._notices)
        reads = tuple(self._done_reads)
        self._notices, self._done_reads = [], []
        is_drained = self._is_draining and not self._core.is_busy
        happened = had_mail or had_events or advance.outputs or notices or is_drained
        if happened or advance.step_tokens is not None:
            self._publish(
                EngineNews(
                    outputs=advance.outputs,
                    notices=notices,
                    reads=reads,
                    gauges=self._core.gauges(),
                    step_tokens=advance.step_tokens,
                    is_drained=is_drained,
                )
            )
        if is_drained:
            self._is_draining = False

    def _pause_s(self) -> float | None:
        """Return how long to wait for mail at most; None for ever."""
        pause_s = None
        if self._agent is not None:
            pause_s = BUSY_POLL_S if self._core.is_busy or self._reads else IDLE_POLL_S
        if self._next_at is not None:
            until_due_s = max(0.0, self._next_at - time.monotonic())
            pause_s = until_due_s if pause_s is None else min(pause_s, until_due_s)
        return pause_s

    def _read_mail(self, pause_s: float | None) -> bool:
        """Open all mail, waiting for the first piece; say whether there was any."""
        had_mail = False
        try:
            while True:
                mail = self._mail.get(timeout=0 if had_mail else pause_s)
                had_mail = True
                if mail is not None:
                    self._open(mail)
        except Empty:
            return had_mail

    def _open(self, mail: Mail) -> None:
        match mail:
            case Stall():
                time.sleep(mail.seconds)
            case Drain():
                self._is_draining = True
            case AbortAll():
                self._core.abort_all(now=time.monotonic())
            case HandshakeAnswered():
                self._handle(self._judge(mail))
            case HandshakeUnanswered():
                self._handle(HandshakeFailed(mail.lease.engine_id, mail.reason))
            case _:
                self._handle(mail)

    def _handle(self, event: Input) -> None:
        now = time.monotonic()
        self._core.handle(event, now=now)
        # What follows from it comes out of the next advance, which must not wait.
        self._next_at = now

    def _judge(self, answered: HandshakeAnswered) -> Input:
        """Accept a peer and add it to the agent, or say why not."""
        engine_id = answered.lease.engine_id
        payload = answered.reply.payload
        fault = self._compatibility.hash_fault(payload.compatibility_hash)
        if fault is not None:
            return HandshakeFailed(engine_id, fault)
        try:
            metadata = answered.reply.agent_metadata()
            fault = self._compatibility.metadata_fault(metadata, expected=engine_id)
            if fault is not None:
                return HandshakeFailed(engine_id, fault)
            assert self._agent is not None
            blocks = RemoteBlocks(
                base_addrs=metadata.kv_caches_base_addr,
                block_bytes=metadata.block_lens,
                num_blocks=metadata.num_blocks,
                device_id=metadata.device_id,
            )
            peer = self._agent.add_peer(metadata.agent_metadata, blocks)
        except ProtocolError as error:
            return HandshakeFailed(engine_id, str(error))
        return HandshakeSucceeded(engine_id, peer)

    def _poll_agent(self) -> bool:
        if self._agent is None:
            return False
        events = self._agent.poll()
        for event in events:
            match event:
                case Notified():
                    self._notified(event.payload)
                case ReadDone():
                    self._done_reads.append(event)
                    read = self._reads.pop(event.transfer)
                    self._handle(ReadArrived(read.request_id, event.num_bytes))
                case ReadFailed():
                    read = self._reads.pop(event.transfer)
                    self._broke(read, "transfer_failed", event.reason)
                case _:
                    assert_never(event)
        return bool(events)

    def _notified(self, payload: bytes) -> None:
        message = decode_notification(payload)
        if isinstance(message, Unrecognised):
            _log.warning("Ignored an unrecognised notification of %d bytes", message.length)
        else:
            self._handle(message)

    # --- effects ---

    def _do(self, effect: Effect) -> None:
        match effect:
            case ShakeHands():
                self._shake_hands(effect.lease)
            case StartRead():
                self._start_read(effect)
            case SendNote():
                self._send(effect)
            case DropPeer():
                assert self._agent is not None
                self._agent.drop_peer(effect.peer)
            case _:
                assert_never(effect)

    def _start_read(self, read: StartRead) -> None:
        assert self._agent is not None
        try:
            transfer = self._agent.read(read.peer, read.local, read.remote, read.note)
        except PeerGoneError as error:
            self._lose(read.engine_id, read)
            self._broke(read, "transfer_failed", str(error))
        except TransferError as error:
            self._broke(read, "transfer_setup_failed", str(error))
        else:
            self._reads[transfer] = read

    def _send(self, note: SendNote) -> None:
        assert self._agent is not None
        try:
            self._agent.notify(note.peer, note.payload)
        except (PeerGoneError, TransferError) as error:
            self._lose(note.engine_id, note)
            if not note.is_heartbeat:
                # vLLM counts lost completions, but logs lost heartbeats at DEBUG only.
                self._notices.append(
                    TransferFailed("notification_failed", note.engine_id, None, str(error))
                )
            else:
                _log.debug("Heartbeat to %s failed: %s", note.engine_id, error)

    def _broke(self, read: StartRead, kind: str, reason: str) -> None:
        self._handle(ReadBroke(read.request_id, kind, reason))

    def _lose(self, engine_id: EngineId, effect: StartRead | SendNote) -> None:
        assert self._agent is not None
        self._agent.drop_peer(effect.peer)
        self._handle(PeerLost(engine_id))
