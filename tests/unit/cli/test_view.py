from __future__ import annotations

import json
import shlex

import pytest
from tests.support.fleets import fleet, member

from pdcluster_cli.up.fleet import Kind
from pdcluster_cli.up.lifecycle import Phase
from pdcluster_cli.up.view import KEEPER_LINE, Row, curl_line, rows, url_of


def only_row(phase: Phase, **fields: object) -> Row:
    [row] = rows(fleet(member(Kind.DECODE, phase, **fields)), now=10.0)
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
    assert url_of(fleet(member(), gone)) == ""
    assert url_of(fleet(member(), gone, member(Kind.PROXY))) == "http://127.0.0.1:8080"


@pytest.mark.parametrize("model", ["qwen3-8b", 'it\'s a "model"'])
def test_the_curl_line_can_be_pasted_into_a_shell(model: str) -> None:
    words = shlex.split(curl_line("http://127.0.0.1:8080", model))
    assert words[0] == "curl"
    assert "http://127.0.0.1:8080/v1/chat/completions" in words
    body = json.loads(words[words.index("--data") + 1])
    assert (body["model"], body["stream"]) == (model, True)
    assert "\n" not in curl_line("http://x", model)


def test_people_are_told_that_there_is_no_keeper() -> None:
    assert "absent" in KEEPER_LINE
