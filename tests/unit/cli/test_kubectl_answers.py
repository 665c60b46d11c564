"""What the API server's rejections become, and where a kubeconfig is looked for."""

from __future__ import annotations

import json

import pytest

from pdcluster_cli.errors import CliError
from pdcluster_cli.exit_codes import ExitCode
from pdcluster_cli.kubectl.answers import error_of, message_of
from pdcluster_cli.kubectl.errors import (
    DefinitionMissingError,
    ForbiddenError,
    NoPreviousLogError,
    NotStartedError,
    ObjectMissingError,
    ServerError,
    UnauthorizedError,
)
from pdcluster_cli.kubectl.options import kubeconfig_files
from pdcluster_cli.kubectl.raw import at, int_at, maps_at, printable, text_at

PATH = "/apis/pdcluster.io/v1alpha1/namespaces/serving/pdclusters/qwen"


def status(message: str) -> str:
    return json.dumps({"kind": "Status", "message": message})


@pytest.mark.parametrize(
    ("path", "code", "body", "kind", "exit_code", "word"),
    [
        (PATH, 401, status("Unauthorized"), UnauthorizedError, 3, "log in again"),
        (PATH, 403, status('User "a" cannot get'), ForbiddenError, 3, 'User "a" cannot get; ask'),
        (PATH, 404, "404 page not found\n", DefinitionMissingError, 3, "install the chart"),
        (PATH, 404, status('pdclusters "qwen" not found'), ObjectMissingError, 2, "not found"),
        ("/api/v1/nodes", 404, "404 page not found", ObjectMissingError, 2, "404 page not found"),
        (PATH, 500, status("etcd is away"), ServerError, 3, "500 (etcd is away); try again"),
        (PATH, 503, "", ServerError, 3, "503 (without a word)"),
        (PATH, 0, "", ServerError, 3, "try again"),
    ],
)
def test_each_rejection_says_what_to_do_next(  # noqa: PLR0917 - parametrised
    path: str, code: int, body: str, kind: type[CliError], exit_code: int, word: str
) -> None:
    error = error_of(path, code, body)
    assert type(error) is kind
    assert error.exit_code == ExitCode(exit_code)
    assert word in str(error)


LOG = "/api/v1/namespaces/serving/pods/p/log"
CONTAINER = 'container "engine" in pod "p" is waiting to start: '


@pytest.mark.parametrize(
    ("said", "kind", "expected"),
    [
        (
            'previous terminated container "engine" in pod "p" not found',
            NoPreviousLogError,
            "has no previous container",
        ),
        (
            f"{CONTAINER}trying and failing to pull image",
            NotStartedError,
            "has not started: trying and failing to pull image",
        ),
        (f"{CONTAINER}PodInitializing", NotStartedError, "has not started: PodInitializing"),
        (
            "pod p does not have a host assigned",
            NotStartedError,
            "has not started: does not have a host assigned",
        ),
    ],
)
def test_a_container_without_a_log_is_no_failure_of_the_server(
    said: str, kind: type[CliError], expected: str
) -> None:
    error = error_of(LOG, 400, status(said))
    assert type(error) is kind
    assert str(error) == expected
    assert type(error_of(PATH, 400, status(said))) is ServerError, "only of a log"
    assert type(error_of(LOG, 500, status(said))) is ServerError


def test_another_rejection_of_a_log_is_told_as_it_is() -> None:
    assert "400 (no such container); try again" in str(
        error_of(LOG, 400, status("no such container"))
    )


def test_a_long_answer_is_cut_and_stays_on_one_line() -> None:
    said = message_of(status("a\nb " * 500))
    assert len(said) < 700
    assert "\n" not in said
    error = error_of(PATH, 500, status("word " * 500))
    assert str(error).endswith("...); try again")


@pytest.mark.parametrize(
    ("given", "environ", "files"),
    [
        ("/my", {"KUBECONFIG": "/a"}, ("/my",)),
        ("", {"KUBECONFIG": "/a:/b:", "HOME": "/h"}, ("/a", "/b")),
        ("", {"KUBECONFIG": "", "HOME": "/h/"}, ("/h/.kube/config",)),
        ("", {}, ("/.kube/config",)),
    ],
)
def test_a_kubeconfig_is_where_kubectl_looks(
    given: str, environ: dict[str, str], files: tuple[str, ...]
) -> None:
    assert kubeconfig_files(given, environ) == files


def test_what_is_missing_or_of_another_type_is_absent() -> None:
    raw = {"a": {"b": "text", "n": 3, "t": True, "l": [1, {"c": 2}]}}
    assert text_at(raw, "a", "b") == "text"
    assert text_at(raw, "a", "n") == ""
    assert int_at(raw, "a", "n") == 3
    assert int_at(raw, "a", "t") is None
    assert int_at(raw, "a", "b") is None
    assert list(maps_at(raw, "a", "l")) == [{"c": 2}]
    assert list(maps_at(raw, "a", "b")) == []
    assert at(raw, "a", "b", "c") is None
    assert printable("a\x1b[0m\tb\u202ec") == "a [0m b c"
