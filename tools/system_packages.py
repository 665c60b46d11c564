"""System packages that the tests on a real Kubernetes need: named, or installed.

Shell. ``tools.prepare_cluster_tests`` and the demo call it first. Where ``CI`` is set and we are
root on Debian, what is missing is installed; anywhere else the command is printed and the tests
skip with that reason.

Usage: ``python -m tools.system_packages``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tools.image.build import packages_of_missing
from tools.kubernetes.cluster.host import missing_system_programs

__all__ = ["install", "missing_packages"]


def missing_packages() -> tuple[str, ...]:
    """Name the Debian packages whose programs are missing for a full node and for images."""
    missing = missing_system_programs(is_full=True, has_policies=True) | packages_of_missing()
    return tuple(sorted(set(missing.values())))


def may_install() -> bool:
    """Whether installing is our business: a CI machine, root, apt."""
    return bool(os.environ.get("CI")) and not os.geteuid() and bool(shutil.which("apt-get"))


def install(packages: tuple[str, ...]) -> None:
    """Install Debian packages.

    Raises:
        subprocess.CalledProcessError: apt-get failed; it has said why.
    """
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    lists = ("apt-get", "-q", "-o", "Acquire::Retries=3", "update")
    for argv in (lists, ("apt-get", "-qy", "--no-install-recommends", "install", *packages)):
        subprocess.run(argv, env=environ, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Install or name what is missing."""
    packages = missing_packages()
    if not packages:
        return 0
    if not may_install():
        print(
            "Tests on a real Kubernetes will be skipped. They need: "
            f"apt-get install --no-install-recommends {' '.join(packages)}"
        )
        return 0
    print(f"Installing {' '.join(packages)}", flush=True)
    try:
        install(packages)
    except subprocess.CalledProcessError as error:
        print(f"system packages: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
