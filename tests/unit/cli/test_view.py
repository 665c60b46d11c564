from __future__ import annotations

import json
import shlex

import pytest
from tests.support.snapshots import member, snapshot

from pdcluster_cli.up.lifecycle import Phase
from pdcluster_cli.up.snapshot import Ending, Kind, Stop
from pdcluster_cli.up.view import KEEPER_LINE, STOPPED, Row, curl_line, rows, serves, url_of


def only_row(phase: Phase, **fields: object) -> Row:
    [row] = rows(snapshot(member(Kind.DECODE, phase, **fields)), now=10.0)
    return row


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        (Phase.STARTING, "starting"),
        (Phase.LOADING, "loading"),
        (Phase.READY, "ready"),
        (Phase.DRAINING, "draining"),
    ],
)
def test_a_living_program_shows_its_phase(phase: Phase, state: str) -> None:
    assert only_row(phase).state == state


def test_one_that_was_never_launched_is_starting() -> None:
    assert only_row(Phase.EXITED, launches=0).state == "starting"


def test_one_that_ended_shows_its_code_and_when_it_comes_back() -> None:
    assert only_row(Phase.EXITED, exit_code=137).state == "exited (137)"
    row = only_row(Phase.EXITED, exit_code=1, launch_at=14.0)
    assert row.state == "exited (1), again in 4 s"
    assert only_row(Phase.EXITED, exit_code=1, launch_at=3.0).state.endswith("again in 0 s")


@pytest.mark.parametrize("ending", [Ending.DRAINING, Ending.AT_ONCE])
@pytest.mark.parametrize(("code", "state"), [(0, "stopped"), (2, "stopped"), (137, "killed")])
def test_what_has_ended_with_the_whole_never_says_that_it_comes_back(
    ending: Ending, code: int, state: str
) -> None:
    one = member(Kind.DECODE, Phase.EXITED, exit_code=code, launch_at=14.0)
    [row] = rows(snapshot(one, ending=ending), now=10.0)
    assert (row.state, row.phase) == (state, STOPPED)


def test_one_that_is_being_killed_is_not_said_to_drain() -> None:
    forced = member(Kind.DECODE, Phase.DRAINING, stop=Stop.FORCED)
    [row] = rows(snapshot(forced), now=10.0)
    assert row.state == "being killed"
    [row] = rows(snapshot(member(phase=Phase.DRAINING), ending=Ending.AT_ONCE), now=10.0)
    assert row.state == "being killed"


@pytest.mark.parametrize(
    ("kind", "phase", "may_answer"),
    [
        (Kind.PROXY, Phase.READY, True),
        (Kind.PROXY, Phase.DRAINING, True),
        (Kind.PROXY, Phase.LOADING, False),
        (Kind.PROXY, Phase.EXITED, False),
        (Kind.DECODE, Phase.READY, False),
    ],
)
def test_answers_are_under_way_only_where_a_proxy_serves(
    kind: Kind, phase: Phase, may_answer: bool
) -> None:
    assert may_answer is serves(snapshot(member(kind, phase)))


def test_a_row_names_address_log_and_restarts() -> None:
    row = only_row(Phase.READY, launches=3)
    assert row == Row(
        name="decode-0",
        state="ready",
        phase="ready",
        address="http://127.0.0.2:8000",
        restarts=2,
        log="decode-0.log",
    )


def test_the_url_is_the_wanted_proxys() -> None:
    gone = member(Kind.PROXY, name="old", wanted=False)
    assert url_of(snapshot(member(), gone)) == ""
    assert url_of(snapshot(member(), gone, member(Kind.PROXY))) == "http://127.0.0.1:8080"


@pytest.mark.parametrize("model", ["qwen3-8b", 'it\'s a "model"'])
def test_the_curl_line_can_be_pasted_into_a_shell(model: str) -> None:
    words = shlex.split(curl_line("http://127.0.0.1:8080", model))
    assert words[:2] == ["curl", "-sSN"]
    assert "http://127.0.0.1:8080/v1/chat/completions" in words
    body = json.loads(words[words.index("-d") + 1])
    assert (body["model"], body["stream"]) == (model, True)
    assert "\n" not in curl_line("http://x", model)


def test_people_are_told_that_there_is_no_keeper() -> None:
    assert "absent" in KEEPER_LINE
