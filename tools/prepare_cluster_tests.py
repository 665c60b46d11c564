"""Make ready what the tests on a real Kubernetes need, with its progress shown.

Shell. System packages, Kubernetes' programs and our images; all of it is made once and found again
afterwards. Where the machine cannot run such tests, the reason is printed and they skip with it; on
a CI machine that is a failure.

Usage: ``python -m tools.prepare_cluster_tests [--while COMMAND ...]``.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tools.kubernetes.build import BuildError, build_all, check_go, default_cache
from tools.system_packages import main as see_to_system_packages
from tools.system_packages import missing_packages

__all__ = ["build_beside", "main"]

BUILDERS = [sys.executable, "-m", "tools.prepare_cluster_tests", "--build-only"]


def why_not() -> str:
    """Say what this machine lacks besides packages; "" where it lacks nothing."""
    if os.geteuid():
        return "they need root: namespaces, mounts and network interfaces are made"
    try:
        check_go()
    except BuildError as error:
        return str(error)
    return ""


def build() -> int:
    """Build what is not built yet; returns the exit code."""
    try:
        build_all(default_cache())
    except BuildError as error:
        print(f"kubernetes: {error}", file=sys.stderr)
        return 1
    return subprocess.run([sys.executable, "-m", "tools.image"], check=False).returncode


def build_beside(command: Sequence[str]) -> int:
    """Run a command, and build on what it leaves idle; returns the exit code.

    Args:
        command: The tests that need none of it. They are served first whatever is built: the
            builders get what time nobody else wants.
    """
    with tempfile.TemporaryFile() as said:
        builders = subprocess.Popen(
            BUILDERS,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = subprocess.run(command, check=False).returncode
            if code == 0 and builders.poll() is None:
                print("The rest of Kubernetes and the images is built", flush=True)
                builders.wait()
        finally:
            if builders.poll() is None:
                os.killpg(builders.pid, signal.SIGTERM)
                builders.wait()
        said.seek(0)
        print(said.read().decode(errors="replace"), end="", flush=True)
    return code or builders.returncode


def main() -> int:
    """Prepare; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.prepare_cluster_tests", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--build-only", action="store_true", help="on time nobody else wants")
    parser.add_argument(
        "--while", dest="command", nargs=argparse.REMAINDER, default=[], help="run beside it"
    )
    args = parser.parse_args()
    if args.build_only:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return build()
    reason = why_not()
    if reason:
        print(f"Tests on a real Kubernetes cannot run: {reason}", flush=True)
        if os.environ.get("CI"):
            return 1
    elif see_to_system_packages():
        return 1
    elif not missing_packages():  # Else it has been said what is missing.
        return build_beside(args.command) if args.command else build()
    return subprocess.run(args.command, check=False).returncode if args.command else 0


if __name__ == "__main__":
    sys.exit(main())
