from __future__ import annotations

import io

from rich.console import Console
from tests.support.snapshots import member, snapshot

from pdcluster_cli.up.lifecycle import Phase
from pdcluster_cli.up.screen import Screen
from pdcluster_cli.up.snapshot import Kind


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def drawn(*, terminal: bool) -> tuple[Screen, Clock, io.StringIO]:
    output, clock = io.StringIO(), Clock()
    console = Console(
        file=output, force_terminal=terminal, width=120, color_system=None, legacy_windows=False
    )
    return Screen(console, clock=clock), clock, output


def test_without_a_terminal_each_change_is_one_line() -> None:
    screen, clock, output = drawn(terminal=False)
    with screen:
        screen.changed(snapshot(member(phase=Phase.STARTING)))
        screen.changed(snapshot(member(phase=Phase.STARTING)))
        clock.now += 2.5
        screen.changed(snapshot(member(phase=Phase.READY), member(Kind.DECODE, Phase.LOADING)))
        screen.changed(snapshot(member(Kind.DECODE, Phase.LOADING)))
    assert output.getvalue().splitlines() == [
        "   0.0 s  prefill-0    starting   http://127.0.0.2:8000",
        "   2.5 s  prefill-0    ready      http://127.0.0.2:8000",
        "   2.5 s  decode-0     loading    http://127.0.0.2:8000",
        "   2.5 s  prefill-0    gone",
    ]


def test_a_message_is_never_taken_for_markup_nor_folded() -> None:
    screen, _, output = drawn(terminal=False)
    message = "args[0]: [red]not a colour[/] " + "x" * 300
    screen.told(message)
    assert output.getvalue() == message + "\n"


def test_on_a_terminal_the_last_table_stays() -> None:
    screen, _, output = drawn(terminal=True)
    with screen:
        screen.changed(snapshot(member(phase=Phase.READY), member(Kind.PROXY, Phase.STARTING)))
        screen.told("a message")
    shown = output.getvalue()
    assert "a message" in shown
    assert "[/]" not in shown
    for word in ("PROGRAM", "STATE", "prefill-0", "ready", "proxy", "starting", "prefill-0.log"):
        assert word in shown


def test_the_time_is_counted_from_the_beginning() -> None:
    screen, clock, _ = drawn(terminal=False)
    clock.now += 4.0
    assert screen.elapsed_s == 4.0
