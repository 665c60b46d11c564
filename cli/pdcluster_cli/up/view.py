"""What ``pdcluster up`` shows, as plain values.

Pure. :mod:`screen` draws it.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Final

from pdcluster_api.proxy_config import KeeperMode
from pdcluster_api.support import KEEPER
from pdcluster_cli.up.lifecycle import Phase
from pdcluster_cli.up.snapshot import Ending, Member, Snapshot, Stop, host_of
from pdcluster_operator.program.programs import EngineProgram, ProxyProgram

__all__ = [
    "KEEPER_LINE",
    "STOPPED",
    "Row",
    "admin_url_of",
    "curl_line",
    "rows",
    "serves",
    "url_of",
]

STOPPED: Final = "stopped"
"""Instead of a phase: it has ended because the whole ends, and does not come back."""

_KILLED: Final = 128 + 9
"""Exit code of what was ended by SIGKILL, as its guard tells it."""

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
        phase: Its phase alone, for the colour; :data:`STOPPED` when the whole ends.
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


def rows(snapshot: Snapshot, *, now: float) -> tuple[Row, ...]:
    """Return one row per member, in the snapshot's order.

    Args:
        snapshot: The snapshot.
        now: Monotonic seconds.
    """
    return tuple(
        Row(
            name=member.name,
            state=_state(member, snapshot.ending, now),
            phase=_phase(member, snapshot.ending),
            address=address_of(member),
            restarts=max(0, member.launches - 1),
            log=f"{member.name}.log",
        )
        for member in snapshot.members
    )


def _phase(member: Member, ending: Ending) -> str:
    if not member.is_alive and ending is not Ending.NOT:
        return STOPPED
    return (Phase.STARTING if member.launches == 0 else member.phase).value


def _state(member: Member, ending: Ending, now: float) -> str:
    phase = _phase(member, ending)
    if phase == STOPPED:
        # Whoever was told to end the whole does not see failures in it.
        return "killed" if member.exit_code == _KILLED else STOPPED
    if member.is_alive and (ending is Ending.AT_ONCE or member.stop is Stop.FORCED):
        return "being killed"
    if member.is_alive or member.launches == 0:
        return phase
    state = f"exited ({member.exit_code})"
    if member.launch_at is not None:
        state += f", again in {max(0.0, member.launch_at - now):.0f} s"
    return state


def address_of(member: Member) -> str:
    """Return the URL of a member."""
    return f"http://{host_of(member.program)}:{member.program.ports[0].number}"


def url_of(snapshot: Snapshot) -> str:
    """Return where clients connect, or an empty text while there is no proxy."""
    for member in snapshot.members:
        if member.wanted and not isinstance(member.program, EngineProgram):
            return address_of(member)
    return ""


def admin_url_of(snapshot: Snapshot) -> str:
    """Return where the admin page is, or an empty text while there is no proxy."""
    for member in snapshot.members:
        if member.wanted and isinstance(member.program, ProxyProgram):
            admin = member.program.config.admin
            return f"http://{admin.host}:{admin.port}"
    return ""


def serves(snapshot: Snapshot) -> bool:
    """Whether an answer may be under way."""
    return any(
        not isinstance(member.program, EngineProgram)
        and member.phase in {Phase.READY, Phase.DRAINING}
        for member in snapshot.members
    )


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
        # Errors are shown, progress is not; what is streamed is shown as it comes.
        "-sSN",
        f"{url}/v1/chat/completions",
        "-H",
        "content-type: application/json",
        "-d",
        body,
    ]
    return shlex.join(words)
