"""The operator's log lines, in both forms."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from pdcluster_operator.logs import configure


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Logging as it was, whatever a test configures."""
    root, kopf = logging.getLogger(), logging.getLogger("kopf")
    handlers, levels = root.handlers[:], (root.level, kopf.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    kopf.setLevel(levels[1])


def test_a_json_line_holds_the_event_and_its_fields(capfd: pytest.CaptureFixture[str]) -> None:
    configure(is_json=True, level="INFO")
    logging.getLogger("x").warning("action.rejected", extra={"cluster": "a/b", "reason": "no"})
    logging.getLogger("kopf.reactor").info("not of interest")
    (line,) = capfd.readouterr().err.splitlines()
    record = json.loads(line)
    del record["time"]
    assert record == {
        "level": "WARNING",
        "name": "x",
        "event": "action.rejected",
        "cluster": "a/b",
        "reason": "no",
    }


def test_a_console_line_tells_why_too(capfd: pytest.CaptureFixture[str]) -> None:
    configure(is_json=False, level="INFO")
    logging.getLogger("x").warning("action.rejected", extra={"cluster": "a/b", "reason": "no"})
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith(" WARNING action.rejected cluster=a/b reason=no")
