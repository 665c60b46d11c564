"""What a request may do with its client connection beside ASGI.

Shell. What the relay and whole answers use instead of ASGI messages: see ``relay.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdcluster_proxy.wire.edge_protocol import EdgeProtocol
    from pdcluster_proxy.wire.leg_relay import LegRelay

__all__ = ["ConnectionPort"]


class ConnectionPort:
    """One connection's :class:`~pdcluster_proxy.wire.relay.ClientPort`.

    It acts for the request that is being answered: there is one at a time.

    Args:
        protocol: The client's connection.
    """

    __slots__ = ("_protocol",)

    def __init__(self, protocol: EdgeProtocol) -> None:
        self._protocol = protocol

    @property
    def write(self) -> Callable[[bytes], None]:
        """Writes bytes that are framed already."""
        return self._protocol.transport.write

    @property
    def is_behind(self) -> bool:
        """The client has yet to read much of what was written before."""
        return self._protocol.flow.write_paused

    @property
    def is_gone(self) -> bool:
        """The client has closed its connection, or is about to be closed."""
        return self._protocol.transport.is_closing()

    def attach(self, relay: LegRelay) -> None:
        """Tell ``relay`` of a client that is slow, catches up or leaves."""
        self._protocol.relay = relay
        if self._protocol.flow.write_paused:
            relay.pause()

    def detach(self) -> None:
        """The relay has ended."""
        self._protocol.relay = None

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back when the client leaves."""
        self._protocol.gone_callbacks.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Do not call back any more."""
        callbacks = self._protocol.gone_callbacks
        if callback in callbacks:
            callbacks.remove(callback)

    def close(self) -> None:
        """Flush what is written, for a short while, then close without ending the response."""
        self._give_up_answer()
        self._protocol.close_flushed()

    def abort(self) -> None:
        """Close at once; what the client has not read is lost."""
        self._give_up_answer()
        self._protocol.transport.abort()

    def _give_up_answer(self) -> None:
        cycle = self._protocol.answering
        assert cycle is not None, "only a request that is being answered closes"
        cycle.disconnected = True  # Else uvicorn reports an answer that was not completed.

    def take_body(self) -> bytes | None:
        """The request's whole body, where it is here already; else None."""
        cycle = self._protocol.answering
        assert cycle is not None, "only a request that is being answered has a body"
        if cycle.more_body or cycle.disconnected:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.message_event.clear()  # What comes next is the client's departure.
        return body

    def answer(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send a whole response in one write, which uvicorn would do in two.

        Returns:
            False where the client is slow to take what was written before: send it the other way.

        Raises:
            ValueError: A field has a line end in it.
        """
        protocol = self._protocol
        cycle = protocol.answering
        assert cycle is not None, "only a request that is being answered is answered"
        if protocol.flow.write_paused:
            return False
        if cycle.disconnected:
            return True
        fields = [*protocol.server_state.default_headers, *headers]
        if not cycle.keep_alive:
            fields.append((b"connection", b"close"))
        lines = [b"%b: %b\r\n" % field for field in fields]
        head = b"".join([STATUS_LINE[status], *lines, b"\r\n"])
        if head.count(b"\n") != len(fields) + 2:
            raise ValueError("A response field contains a line end.")
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        protocol.transport.write(head + body)
        if not cycle.keep_alive:
            protocol.transport.close()
        cycle.on_response()
        return True
