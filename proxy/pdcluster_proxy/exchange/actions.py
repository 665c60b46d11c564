"""Which function executes which command of the exchange machine.

Shell: a table and nothing else. What a command does stands in ``prefill_leg.py``, ``decode_leg.py``
and ``client_answer.py``; what follows from an event in ``core/exchange_table.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from pdcluster_proxy.core.exchange import (
    AbortLeg,
    AwaitDecode,
    Command,
    ConnectDecode,
    EndLease,
    PickDecode,
    PickPrefill,
    Relay,
    Respond,
    RespondError,
    SendDecode,
    SendPrefill,
    StreamError,
)
from pdcluster_proxy.exchange.client_answer import relay, respond, respond_error, stream_error
from pdcluster_proxy.exchange.decode_leg import (
    await_decode,
    connect_decode,
    pick_decode,
    send_decode,
)
from pdcluster_proxy.exchange.prefill_leg import pick_prefill, send_prefill
from pdcluster_proxy.exchange.running import RunningExchange

__all__ = ["ACTIONS"]


def _abort_leg(running: RunningExchange, _command: AbortLeg) -> None:
    running.abort_leg()


def _end_lease(running: RunningExchange, command: EndLease) -> None:
    running.tell_ended(release=command.release, was_read=command.was_read)


# The rows' keys fix the commands' types; a mapping of functions can't say so to the checker.
_Act: TypeAlias = Callable[[RunningExchange, Any], Any]
ACTIONS: Final[Mapping[type[Command], tuple[bool, _Act]]] = {
    PickPrefill: (False, pick_prefill),
    SendPrefill: (True, send_prefill),
    PickDecode: (False, pick_decode),
    AwaitDecode: (True, await_decode),
    ConnectDecode: (True, connect_decode),
    SendDecode: (True, send_decode),
    Relay: (True, relay),
    Respond: (True, respond),
    AbortLeg: (False, _abort_leg),
    EndLease: (False, _end_lease),
    RespondError: (True, respond_error),
    StreamError: (True, stream_error),
}
"""Whether a command's function is awaited, and the function; each returns an event or None."""
