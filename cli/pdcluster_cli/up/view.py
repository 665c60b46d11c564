"""What ``pdcluster up`` shows, as plain values.

Pure. :mod:`screen` draws it.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from pdcluster_api.proxy_config import KeeperMode
from pdcluster_api.support import KEEPER
from pdcluster_cli.up.fleet import Fleet, Member, host_of
from pdcluster_cli.up.lifecycle import Phase
from pdcluster_operator.program.programs import EngineProgram

__all__ = ["KEEPER_LINE", "Row", "curl_line", "rows", "url_of"]

KEEPER_LINE = (
    "Lease keeper: absent (not built yet). Nobody renews a lease between prefill's and decode's "
    "answer; the proxy prefills again rather than hand off too late."
    if KEEPER is KeeperMode.ABSENT
    else "Lease keeper: enabled."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One program in the table.

    Attributes:
        name: Its name.
        state: Its phase, with the back-off or the exit code where there is one.
        phase: Its phase alone, for the colour.
        address: Where it is reached.
        restarts: Processes started beyond the first.
        log: File name of its log.
    """

    name: str
    state: str
    phase: str
    address: str
    restarts: int
    log: str


def rows(fleet: Fleet, *, now: float) -> tuple[Row, ...]:
    """Return one row per member, in the fleet's order.

    Args:
        fleet: The fleet.
        now: Monotonic seconds.
    """
    return tuple(
        Row(
            name=member.name,
            state=_state(member, now),
            phase=(Phase.STARTING if member.launches == 0 else member.phase).value,
            address=address_of(member),
            restarts=max(0, member.launches - 1),
            log=f"{member.name}.log",
        )
        for member in fleet.members
    )


def _state(member: Member, now: float) -> str:
    if member.is_alive or member.launches == 0:
        return "starting" if member.launches == 0 else member.phase.value
    state = f"exited ({member.exit_code})"
    if member.launch_at is not None:
        state += f", again in {max(0.0, member.launch_at - now):.0f} s"
    return state


def address_of(member: Member) -> str:
    """Return the URL of a member."""
    return f"http://{host_of(member.program)}:{member.program.ports[0].number}"


def url_of(fleet: Fleet) -> str:
    """Return where clients connect, or an empty text while there is no proxy."""
    for member in fleet.members:
        if member.wanted and not isinstance(member.program, EngineProgram):
            return address_of(member)
    return ""


def curl_line(url: str, model: str) -> str:
    """Return a command that asks for a streamed answer, ready to paste into a shell."""
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 32,
            "stream": True,
        }
    )
    words = [
        "curl",
        "--no-buffer",
        f"{url}/v1/chat/completions",
        "--header",
        "content-type: application/json",
        "--data",
        body,
    ]
    return shlex.join(words)
