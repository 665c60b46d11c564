"""``python -m pdcluster_cli.smoke``: make a simulated cluster, stream one answer, delete it.

Composition root. What ``helm test`` runs in a pod: everything it needs stands in its flags and in
the pod's own account.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from pdcluster_cli.exit_codes import ExitCode
from pdcluster_cli.smoke.access import Access, NotConnectedError, ask
from pdcluster_cli.smoke.story import (
    Answer,
    ApiError,
    ClusterRejectedError,
    NameTakenError,
    NotReadyError,
    Standing,
    StillThereError,
    is_ours,
    question,
    simulated_cluster,
    standing_of,
)
from pdcluster_lease.errors import PDClusterError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_POLL_S = 1.0
_ANSWER_S = 30.0
_CONNECT_S = 30.0
"""After it is ready: until every node knows of the Service's endpoints."""
_LEAVE_S = 60.0


def say(text: str) -> None:
    """Tell whoever reads the pod's log."""
    print(text, flush=True)


def wait_gone(access: Access, name: str) -> None:
    """Delete a cluster and wait until it and its objects are gone.

    Raises:
        StillThereError: It takes too long.
        ApiError: The API does not answer.
    """
    access.delete(name)
    until = time.monotonic() + _LEAVE_S
    while access.get(name) is not None:
        if time.monotonic() > until:
            message = f"PDCluster {name} was deleted and is still there after {_LEAVE_S:.0f} s"
            raise StillThereError(message)
        time.sleep(_POLL_S)


def wait_ready(access: Access, name: str, *, until: float) -> Standing:
    """Wait until a cluster serves.

    Raises:
        ClusterRejectedError: The operator can't act on it.
        NotReadyError: It takes too long.
        ApiError: The API did not answer to the end.
    """
    words = ""
    while True:
        try:
            raw = access.get(name)
        except ApiError as error:
            if time.monotonic() > until:
                raise
            say(f"  {error}; asking again")
            time.sleep(_POLL_S)
            continue
        if raw is None:
            message = f"PDCluster {name} has gone while it was waited for: somebody deleted it"
            raise NotReadyError(message)
        standing = standing_of(raw)
        if standing.is_ready:
            return standing
        if standing.rejection:
            raise ClusterRejectedError(standing.rejection)
        if standing.words != words:
            words = standing.words
            say(f"  {words}")
        if time.monotonic() > until:
            message = f"PDCluster {name} is not ready: {words}"
            raise NotReadyError(message)
        time.sleep(_POLL_S)


def ask_patiently(url: str) -> Answer:
    """Ask once; again only while nobody listens.

    Raises:
        NotConnectedError: Nobody listens for too long.
        AnswerError: The answer was not whole.
    """
    until = time.monotonic() + _CONNECT_S
    while True:
        try:
            return ask(url, question(), timeout_s=_ANSWER_S)
        except NotConnectedError:
            if time.monotonic() > until:
                raise
            time.sleep(_POLL_S)


def run(options: argparse.Namespace) -> None:
    """Tell the whole story; the cluster is deleted whatever happens.

    Raises:
        PDClusterError: Something is not well.
    """
    access = Access(
        server=options.server,
        token_file=options.token_file,
        ca_file=options.ca_file,
        namespace=options.namespace,
    )
    name = options.name
    left = access.get(name)
    if left is not None and not is_ours(left):
        message = f"PDCluster {name} is there and no test has made it: delete or rename it"
        raise NameTakenError(message)
    if left is not None:
        say(f"Deleting what an earlier test left: PDCluster {name}")
        wait_gone(access, name)
    started_at = time.monotonic()
    say(f"Making PDCluster {options.namespace}/{name} of {options.image}")
    try:
        access.create(
            simulated_cluster(
                name,
                image=options.image,
                pull_policy=options.image_pull_policy,
                pull_secrets=tuple(options.image_pull_secret),
            )
        )
        standing = wait_ready(access, name, until=started_at + options.timeout_seconds)
        say(f"Ready after {time.monotonic() - started_at:.0f} s at {standing.url}")
        answer = ask_patiently(options.url or standing.url)
        say(f"Streamed {answer.num_events} events to [DONE]: {answer.text[:60]!r}")
    except PDClusterError as error:
        # Before the cluster goes: deleting may fail too, and this is what happened first.
        say(f"Failed: {error}")
        raise
    finally:
        # It may be there though making it failed: the answer was lost.
        made = access.get(name)
        if made is not None and is_ours(made):
            say(f"Deleting PDCluster {name}")
            wait_gone(access, name)
    say("All is well, and nothing is left.")


def parse(words: list[str]) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(
        prog="python -m pdcluster_cli.smoke",
        description="Make a simulated PDCluster, stream one answer through its Service, delete it.",
    )
    flag = parser.add_argument
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    flag("--namespace", required=True, help="where to make it")
    flag("--name", required=True, help="its name")
    flag("--image", required=True, help="image of simulated engines")
    flag("--image-pull-policy", default="IfNotPresent", help="when it is pulled")
    flag("--image-pull-secret", action="append", default=[], help="Secret for pulling; repeat it")
    flag("--timeout-seconds", type=int, default=240, help="until it must be ready")
    flag("--server", default=f"https://{host}:{port}", help="the Kubernetes API")
    flag("--token-file", type=Path, default=_ACCOUNT / "token", help="token of the account")
    flag("--ca-file", type=Path, default=_ACCOUNT / "ca.crt", help="whom to trust")
    flag("--url", default="", help="where to ask; default: what the cluster's status says")
    return parser.parse_args(words)


def _leave(number: int, frame: object) -> NoReturn:  # noqa: ARG001 - signal's own arguments
    # As an exception, so that the cluster is deleted on the way out.
    sys.exit(128 + number)


def main() -> int:
    """Run; an error of ours becomes its message and exit code."""
    options = parse(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    try:
        run(options)
    except PDClusterError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        code: ExitCode = getattr(error, "exit_code", ExitCode.FINDING)
        return code
    return ExitCode.WELL


if __name__ == "__main__":
    sys.exit(main())
