"""Build the programs of a real Kubernetes from their Go modules, into the cache.

Shell; standard library only. Each family of programs lies in
``$PDCLUSTER_CACHE/kubernetes/<family>-<key>``, where the key is the content of its module files and
of the build's rules, so a changed version builds that family alone;
``$PDCLUSTER_CACHE/kubernetes/bin-<key>`` links to all of them. Built aside and renamed into place.
The first time takes about 20 minutes of CPU time; afterwards nothing is done.

``PDCLUSTER_KUBERNETES=1.37`` chooses another minor version, here and for everything that starts a
cluster.

Usage: ``python -m tools.kubernetes.build`` (``make kubernetes``).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools.kubernetes.programs import (
    FAMILIES,
    KUBERNETES,
    Family,
    linker_flags,
    required_version,
)

__all__ = ["BuildError", "build_all", "chosen_minor", "default_cache", "find_built", "main"]

HERE = Path(__file__).resolve().parent
MODULES = HERE / "modules"
MIN_GO = (1, 26)


class BuildError(Exception):
    """A program could not be built; the message says why and what to do."""


def default_cache() -> Path:
    """Tell where expensive things lie: the Makefile's choice, else the user's cache folder."""
    chosen = os.environ.get("PDCLUSTER_CACHE")
    users = os.environ.get("XDG_CACHE_HOME")
    return Path(chosen) if chosen else Path(users or Path.home() / ".cache") / "pdcluster"


def chosen_minor() -> str:
    """Tell which minor version is wanted: the environment's choice, else the first of the table.

    Raises:
        BuildError: There is no module file for the one that was chosen.
    """
    minor = os.environ.get("PDCLUSTER_KUBERNETES") or next(iter(KUBERNETES))
    if minor not in KUBERNETES:
        message = f"PDCLUSTER_KUBERNETES={minor}: choose one of {', '.join(KUBERNETES)}"
        raise BuildError(message)
    return minor


def family_key(family: Family, minor: str) -> str:
    """Name a family's build by all that goes into it."""
    digest = hashlib.sha256(f"{family} {minor}".encode())
    for path in sorted((MODULES / family.folder).iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def output_of(family: Family, folder: Path) -> str:
    """Tell where ``go build`` writes to: several programs into a folder, where Go names them."""
    if len(family.programs) > 1:
        return f"{folder}{os.sep}"
    (program,) = family.programs
    return str(folder / program.name)


def build_family(family: Family, target: Path, minor: str, log: Path) -> None:
    """Build one family into a folder beside ``target``, then rename it into place."""
    folder = MODULES / family.folder
    version = required_version((folder / "go.mod").read_text(), family.module)
    flags = linker_flags(family, version, kubernetes_minor=minor.partition(".")[2])
    work = target.with_name(f".{target.name}.{os.getpid()}")
    work.mkdir()
    try:
        # All programs of a family at once: while one is linked, on one core, others compile.
        argv = ["nice", "go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly"]
        # Nobody debugs these; without debug information they compile in four fifths of the time.
        argv += ["-gcflags=all=-dwarf=false", "-ldflags", flags, "-o", output_of(family, work)]
        with log.open("ab") as out:
            ended = subprocess.run(
                [*argv, *(program.package for program in family.programs)],
                cwd=folder,
                env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if ended.returncode:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            message = f"{family.folder} {version} could not be built ({log}):\n{tail}"
            raise BuildError(message)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def check_go() -> None:
    """Complain where Go is missing or too old for the module files."""
    wanted = ".".join(map(str, MIN_GO))
    remedy = f"Install Go {wanted} or later, from https://go.dev/dl or your distribution."
    go = shutil.which("go")
    if go is None:
        message = f"the program 'go' is missing. {remedy}"
        raise BuildError(message)
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    version = said.stdout.strip().removeprefix("go").split("-")[0].split(" ")[0]
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if parts < MIN_GO:
        message = f"go {version or 'of unknown version'} is too old. {remedy}"
        raise BuildError(message)


def link_all(targets: list[tuple[Family, Path]], bin_folder: Path) -> None:
    """Make one folder that has every program."""
    work = bin_folder.with_name(f".{bin_folder.name}.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    for family, target in targets:
        for program in family.programs:
            (work / program.name).symlink_to(target / program.name)
    # A user has one Helm; tests name the major version where it matters.
    (work / "helm").symlink_to("helm4")
    work.rename(bin_folder)


def _families(minor: str) -> tuple[Family, ...]:
    return (KUBERNETES[minor], *FAMILIES)


def _targets(root: Path, minor: str) -> list[tuple[Family, Path]]:
    """The folder of each family's programs."""
    return [(each, root / f"{each.folder}-{family_key(each, minor)}") for each in _families(minor)]


def _bin_folder(root: Path, minor: str) -> Path:
    """The folder that has links to all programs."""
    keys = sorted(family_key(each, minor) for each in _families(minor))
    return root / f"bin-{hashlib.sha256(' '.join(keys).encode()).hexdigest()[:12]}"


def find_built(cache: Path) -> Path | None:
    """Give the folder with all programs; None where they are not built.

    Raises:
        BuildError: A version that there is no module file for is wanted.
    """
    bin_folder = _bin_folder(cache / "kubernetes", chosen_minor())
    return bin_folder if bin_folder.is_dir() else None


def build_all(cache: Path) -> Path:
    """Build what is missing; return the folder with all programs.

    Raises:
        BuildError: Go is missing, a version that there is no module file for is wanted, or a
            program could not be built.
    """
    minor = chosen_minor()
    root = cache / "kubernetes"
    root.mkdir(parents=True, exist_ok=True)
    started_at = time.monotonic()

    def say(text: str) -> None:
        print(f"kubernetes: {text} ({time.monotonic() - started_at:.0f} s)", flush=True)

    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        targets = _targets(root, minor)
        missing = [(family, target) for family, target in targets if not target.is_dir()]
        if missing:
            check_go()
        for number, (family, target) in enumerate(missing, 1):
            names = ", ".join(program.name for program in family.programs)
            say(f"{number} of {len(missing)}: building {names}")
            build_family(family, target, minor, root / f"{target.name}.log")
        bin_folder = _bin_folder(root, minor)
        if not bin_folder.is_dir():
            link_all(targets, bin_folder)
        if missing:
            say("done")
    return bin_folder


def main() -> int:
    """Build, and print the folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=default_cache())
    args = parser.parse_args()
    try:
        print(build_all(args.cache))
    except BuildError as error:
        print(f"kubernetes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
