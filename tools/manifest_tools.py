"""The environment of the tools that judge manifests: kubernetes-validate and checkov.

Shell; standard library only. checkov holds its dependencies back from what this project needs, so
it never enters ``.venv``. The environment lies in ``$PDCLUSTER_CACHE/manifest-tools-<key>``, where
the key is the content of its lock. Built aside and renamed into place; once it is there, no network
is needed.

Usage: ``python -m tools.manifest_tools``. Tests that need it build it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools.kubernetes.build import default_cache

__all__ = ["ManifestToolsError", "build"]

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "locks" / "manifests.txt"


class ManifestToolsError(Exception):
    """The environment could not be built; the message says why."""


def key() -> str:
    """Name the environment by what is in it."""
    return hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]


def uv_program(cache: Path) -> Path:
    """Give the uv that the Makefile fetches, which is there wherever ``.venv`` was made."""
    fetched = hashlib.sha256((ROOT / "locks" / "uv.txt").read_bytes()).hexdigest()[:12]
    program = cache / f"uv-{fetched}" / "bin" / "uv"
    if not program.exists():
        run("make", "--silent", f"PDCLUSTER_CACHE={cache}", program)
    return program


def run(*argv: str | Path) -> None:
    """Run one step; on failure raise what it said."""
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        said = "\n".join((ended.stdout + ended.stderr).splitlines()[-20:])
        message = f"{Path(argv[0]).name} failed with exit code {ended.returncode}:\n{said}"
        raise ManifestToolsError(message)


def install(uv: Path, target: Path) -> None:
    """Install into a folder beside ``target``, then rename it into place."""
    work = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    try:
        # Relocatable: its scripts don't name the folder in which they were installed.
        flags = ("--quiet", "--no-project", "--relocatable", "--python", sys.executable)
        run(uv, "venv", *flags, work)
        # Hashes pin the wheels; a build from sources would run what they don't.
        # The system's certificates, which pip trusts too: a company's own authority is among them.
        flags = ("--quiet", "--require-hashes", "--no-deps", "--no-build", "--system-certs")
        run(uv, "pip", "install", *flags, "--python", work / "bin" / "python", "-r", LOCK)
        # What is in the way has lost the interpreter that it was made with.
        shutil.rmtree(target, ignore_errors=True)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def build(cache: Path) -> Path:
    """Build the environment unless it is there; give its folder.

    Raises:
        ManifestToolsError: It could not be built.
    """
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"manifest-tools-{key()}"
    with (cache / ".manifest-tools.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "bin" / "python").exists():
            print("manifest tools: installing 300 MB into the cache, once", end="", flush=True)
            started_at = time.monotonic()
            try:
                install(uv_program(cache), target)
            finally:
                print(f" ({time.monotonic() - started_at:.0f} s)", flush=True)
    return target


def main() -> int:
    """Build it and tell where it is."""
    try:
        print(build(default_cache()))
    except ManifestToolsError as error:
        print(f"manifest tools: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
