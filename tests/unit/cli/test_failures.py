from __future__ import annotations

import pytest
from tests.support.snapshots import member

from pdcluster_cli.errors import StartError, StartTimeoutError
from pdcluster_cli.exit_codes import EXIT_CODE_HELP, MEANINGS, ExitCode
from pdcluster_cli.up.failures import restart_message, start_error
from pdcluster_cli.up.lifecycle import Phase
from pdcluster_cli.up.planning import KillReason
from pdcluster_cli.up.remedies import REMEDIES, remedy_for
from pdcluster_cli.up.snapshot import Kind, Member


def ended(**fields: object) -> Member:
    return member(Kind.DECODE, Phase.EXITED, exit_code=2, **fields)


SAMPLES = {
    "[Errno 98] Address already in use": "port",
    "error: unrecognized arguments: --max-modl-len": "spec.engine.args",
    "RuntimeError: NIXL is not available": "pdcluster[nixl]",
    "ModuleNotFoundError: No module named 'nixl'": "pdcluster[nixl]",
    "ModuleNotFoundError: No module named 'vllm'": "make vllm-env",
    "cannot run vllm: No such file or directory": "spec.engine.command",
    "OSError: Repo id must be in the form 'namespace/name'": "spec.model.name",
    "ValueError: No common block size for 16": "--block-size=32",
    "torch.OutOfMemoryError: CUDA out of memory": "too little memory",
}


@pytest.mark.parametrize(("line", "told"), SAMPLES.items())
def test_known_last_words_have_a_remedy(line: str, told: str) -> None:
    assert told in remedy_for(["INFO something", line, "bye"])


def test_every_remedy_is_given_for_some_sample() -> None:
    assert {remedy_for([line]) for line in SAMPLES} == {remedy for _, remedy in REMEDIES}


def test_unknown_last_words_have_none() -> None:
    assert remedy_for(["it just ended"]) == ""
    assert remedy_for([]) == ""


def test_an_engine_that_cannot_start_shows_its_last_words_the_remedy_and_its_log() -> None:
    error = start_error(
        ended(), None, last_lines=["boom", "Address already in use"], log="/run/logs/decode-0.log"
    )
    assert isinstance(error, StartError)
    assert error.exit_code is ExitCode.FINDING
    told = str(error)
    assert "decode-0 cannot start: it ended with code 2" in told
    assert "    boom\n    Address already in use\n" in told
    assert "set spec.engine.port" in told
    assert "/run/logs/decode-0.log" in told


def test_one_that_wrote_nothing_says_so() -> None:
    assert "(it wrote nothing)" in str(start_error(ended(), None, last_lines=[], log="x"))


def test_one_that_took_too_long_has_a_code_of_its_own() -> None:
    error = start_error(ended(), KillReason.OVERDUE, last_lines=["loading"], log="x")
    assert isinstance(error, StartTimeoutError)
    assert error.exit_code is ExitCode.TIMED_OUT
    assert "was not ready within its start-up budget of 1800 s" in str(error)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (None, "ended with code 2"),
        (KillReason.SILENT, "stopped answering and was killed"),
        (KillReason.OVERDUE, "did not become ready again in time"),
    ],
)
def test_one_that_is_started_again_says_why(reason: KillReason | None, told: str) -> None:
    message = restart_message(ended(), reason)
    assert message.startswith("decode-0 ")
    assert told in message
    assert message.endswith("; it is started again")


def test_the_help_names_every_exit_code() -> None:
    assert set(MEANINGS) == set(ExitCode)
    for code, words in MEANINGS.items():
        assert f"{code.value} {words}" in EXIT_CODE_HELP
    assert [code.value for code in ExitCode] == [0, 1, 2, 3, 4, 130]
