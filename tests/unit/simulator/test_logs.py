"""Log lines: in vLLM's words, at the level that says who has to look."""

from __future__ import annotations

import logging

import pytest

from pdcluster_lease.lease import Expired, LateRead, Released, Renewed
from pdcluster_lease.params import EngineId, RequestId
from pdcluster_sim.core.results import (
    InvalidParams,
    LoadFailed,
    Notice,
    Preempted,
    PrefixLookup,
    TransferFailed,
)
from pdcluster_sim.logs import PathFilter, log_notices

R, E = RequestId("r"), EngineId("e")


@pytest.mark.parametrize(
    ("notice", "level", "words"),
    [
        (
            Renewed(R, 1004.0, 1010.0),
            "DEBUG",
            "Heartbeat extended lease for request r by 9.0s (old_expiry=1004.000, ",
        ),
        (Released(R, 1), "DEBUG", "Request r done sending"),
        (
            Expired(R, 2),
            "WARNING",
            "Releasing expired KV blocks for request r which were retrieved by 2 remote worker(s)",
        ),
        (LateRead(R), "ERROR", "Potentially invalid KV blocks for unrecognized request r"),
        (
            TransferFailed("handshake_failed", E, R, "nobody answers"),
            "ERROR",
            (
                "NIXL transfer failure: handshake_failed | Context: {'failure_type': "
                "'handshake_failed', 'request_id': 'r', 'remote_engine_id': 'e'} | nobody answers"
            ),
        ),
        (LoadFailed(R, "fail", 9), "ERROR", "Failing 1 request(s) due to KV load failure (policy"),
        (LoadFailed(R, "recompute", 9), "ERROR", "Recovered from 1 request(s) due to KV load"),
        (InvalidParams(R), "WARNING", "Got invalid KVTransferParams for request r"),
        (Preempted(R), "WARNING", "Request r is preempted"),
    ],
)
def test_a_notice_is_logged_as_vllm_does(
    caplog: pytest.LogCaptureFixture, notice: Notice, level: str, words: str
) -> None:
    with caplog.at_level(logging.DEBUG, logger="pdcluster_sim.engine"):
        log_notices([notice], now=1001.0)
    (record,) = caplog.records
    assert level == record.levelname
    assert record.getMessage().startswith(words)


def test_a_lookup_is_counted_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="pdcluster_sim.engine"):
        log_notices([PrefixLookup(9, 4, 0, asked_remote=False)], now=1001.0)
    assert caplog.records == []


def record_of(*args: object) -> logging.LogRecord:
    text = '%s - "%s %s HTTP/%s" %d'
    return logging.LogRecord("uvicorn.access", logging.INFO, "", 0, text, args, None)


@pytest.mark.parametrize(
    ("path", "is_logged"),
    [
        ("/health", False),
        ("/metrics", False),
        ("/metrics?name[]=x", False),
        ("/healthy", True),
        ("/v1/health", True),
        ("/v1/completions", True),
    ],
)
def test_requests_for_some_paths_are_left_out(path: str, is_logged: bool) -> None:
    out = PathFilter(frozenset({"/health", "/metrics"}))
    assert is_logged == out.filter(record_of("127.0.0.1:1", "GET", path, "1.1", 200))
    assert PathFilter(frozenset()).filter(record_of("127.0.0.1:1", "GET", path, "1.1", 200))


def test_a_line_of_another_shape_is_kept() -> None:
    assert PathFilter(frozenset({"/health"})).filter(record_of())
