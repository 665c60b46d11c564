"""Build the images, and write their archives, bills of materials and sizes.

Shell. The base image, the wheels and buildah's layers lie in ``$PDCLUSTER_CACHE/images``, each
keyed by what it was made from; the archives lie in the tree's ``.cache/images`` with the key of
their inputs beside them, so that nothing happens where nothing changed.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.image.archive import read_contents
from tools.image.inputs import IgnoreFileError, context_key
from tools.image.parts import find_parts, operating_system, table, weigh
from tools.image.recipe import (
    LOCKS,
    TARGETS,
    Base,
    Store,
    base_containerfile,
    base_for,
    build_argv,
    digest_of,
    download_argv,
    image_name,
    pip_settings,
    push_argv,
)
from tools.image.sbom import bill_of_materials

__all__ = ["Builder", "ImageError", "missing_programs", "packages_of_missing"]

ROOT: Final = Path(__file__).resolve().parents[2]
OUT: Final = ROOT / ".cache" / "images"

# What a build starts, and the Debian package that brings it.
_PROGRAMS: Final = {
    "mmdebstrap": "mmdebstrap",
    "buildah": "buildah",
    "unshare": "util-linux",
}
_DEBIAN: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_MAX_STORE_BYTES: Final = 8_000_000_000
"""Layers of builds long gone pile up: beyond this the store is begun anew (a minute's work)."""

_ROWS: Final = 12


class ImageError(Exception):
    """An image could not be built; the message says why and what to do."""


def packages_of_missing() -> dict[str, str]:
    """Tell which programs a build would lack, and the Debian package that has each."""
    return {name: package for name, package in _PROGRAMS.items() if shutil.which(name) is None}


def missing_programs() -> str:
    """Say what is missing and how to get it; "" where everything is there."""
    missing = packages_of_missing()
    if not missing:
        return ""
    packages = " ".join(sorted({*missing.values()}))
    return (
        f"missing: {', '.join(missing)}. On Debian: apt-get install --no-install-recommends "
        f"{packages}. With Docker or podman: docker build --file Containerfile --target pdcluster ."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Builds the images of one checkout.

    Attributes:
        cache: The folder for what is expensive to make.
        out: Where archives, bills of materials and keys go.
        has_fresh_base: Make the base anew, with Debian's packages as they are now.
    """

    cache: Path
    out: Path = OUT
    has_fresh_base: bool = False

    def build(self, targets: Sequence[str] = TARGETS) -> list[Path]:
        """Build what is not current.

        Returns:
            The archives, in the order of ``targets``.

        Raises:
            ImageError: A program is missing or failed.
        """
        base = base_for(_architecture())
        key = self._key(base)
        self.out.mkdir(parents=True, exist_ok=True)
        self.cache.mkdir(parents=True, exist_ok=True)
        with _locked(self.cache / ".lock", self.out / ".lock"):
            stale = [
                target
                for target in targets
                if self.has_fresh_base or self._noted_key(target) != key
            ]
            if stale:
                self._check_machine()
                self._build_stale(stale, base, key)
        for target in targets:
            _say(f"{self._archive(target)}: {self._note(target)['summary']}")
        return [self._archive(target) for target in targets]

    def sizes(self, target: str) -> list[str]:
        """Say what an image is made of, largest first.

        Raises:
            ImageError: It is not built.
        """
        note = self._note(target)
        if not note:
            message = f"{target} is not built: make image"
            raise ImageError(message)
        return [note["summary"], *note["table"]]

    # One image -----------------------------------------------------------------------------

    def _build_stale(self, stale: Sequence[str], base: Base, key: str) -> None:
        started_at = time.monotonic()
        store = self._store()
        self._make_base(store, base)
        mounts = {self._make_wheels(): "/wheels", self._write_pip_settings(): "/etc/pip.conf"}
        for target in stale:
            _say(f"building {target}")
            # A build that is broken off leaves the old archive, known as not current.
            self._files(target)[-1].unlink(missing_ok=True)
            words = build_argv(
                store, target=target, base=base.image, version=_version(), mounts=mounts
            )
            _run(words, cwd=ROOT)
            aside = self._archive(target).with_suffix(".new")
            aside.unlink(missing_ok=True)
            _run(push_argv(store, target=target, archive=aside))
            note = self._describe(target, aside, key)
            aside.rename(self._archive(target))
            self._files(target)[-1].write_text(note)
        _say(f"built in {time.monotonic() - started_at:.0f} s")

    def _describe(self, target: str, archive: Path, key: str) -> str:
        """Write the bill of materials; give the note with key and sizes."""
        contents = read_contents(archive)
        parts = find_parts(contents.texts)
        bill = bill_of_materials(
            parts,
            image=image_name(target),
            version=_version(),
            digest=contents.digest,
            system=operating_system(contents.texts),
        )
        numbers = {kind: sum(part.kind == kind for part in parts) for kind in ("deb", "pypi")}
        note = {
            "key": key,
            "summary": f"{contents.size / 1e6:.0f} MB of files, {numbers['deb']} Debian packages, "
            f"{numbers['pypi']} Python distributions",
            "table": table(weigh(parts, contents.sizes), rows=_ROWS),
        }
        self._files(target)[1].write_text(bill)
        return json.dumps(note, indent=1) + "\n"

    def _files(self, target: str) -> tuple[Path, Path, Path]:
        archive = self._archive(target)
        return archive, archive.with_suffix(".cdx.json"), archive.with_suffix(".note.json")

    def _archive(self, target: str) -> Path:
        return self.out / f"{target}.tar"

    def _note(self, target: str) -> dict[str, Any]:
        """What was written down when the image was built; empty where a file is gone."""
        files = self._files(target)
        if not all(path.is_file() for path in files):
            return {}
        return dict(json.loads(files[-1].read_text()))

    def _noted_key(self, target: str) -> str:
        return str(self._note(target).get("key", ""))

    # What images are made of ---------------------------------------------------------------

    def _key(self, base: Base) -> str:
        try:
            return context_key(ROOT, base.key)
        except IgnoreFileError as error:
            raise ImageError(str(error)) from error

    def _store(self) -> Store:
        folder = self.cache / "layers"
        if _size_of(folder) > _MAX_STORE_BYTES:
            shutil.rmtree(folder)
        return Store(folder)

    def _make_base(self, store: Store, base: Base) -> None:
        archive = self.cache / f"base-{base.key}.tar"
        if self.has_fresh_base or not archive.is_file():
            _say("making the base from Debian packages: half a minute or more, once")
            aside = archive.with_name(f".{archive.name}")
            aside.unlink(missing_ok=True)
            with (self.cache / "base.log").open("wb") as log:
                _run([*base.argv, str(aside)], log=log)
            aside.rename(archive)
        elif _run(store.argv("images", "--quiet", "--filter", f"reference={base.image}")).strip():
            return
        recipe = self.cache / "base.Containerfile"
        recipe.write_text(base_containerfile(archive.name))
        words = ("--isolation=chroot", "--layers=false", "--quiet", f"--tag={base.image}")
        _run(store.argv("bud", *words, f"--file={recipe}", str(self.cache)))

    def _make_wheels(self) -> Path:
        """Download the wheels of the locks, verified by hash; a build has no network."""
        locks = [ROOT / "locks" / f"{name}.txt" for name in LOCKS]
        machine = platform.machine()
        folder = self.cache / f"wheels-{digest_of(machine, *(p.read_text() for p in locks))}"
        if folder.is_dir():
            return folder
        _say("downloading the wheels of locks/image-*.txt, once")
        aside = folder.with_name(f".{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        pip = [str(Path(sys.base_prefix) / "bin" / "python3"), "-m", "pip"]
        for lock in locks:
            _run(download_argv(pip, lock=lock, folder=aside, machine=machine))
        aside.rename(folder)
        return folder

    def _write_pip_settings(self) -> Path:
        path = self.cache / "pip.conf"
        path.write_text(pip_settings())
        return path

    @staticmethod
    def _check_machine() -> None:
        missing = missing_programs()
        if missing:
            raise ImageError(missing)
        if os.geteuid():
            message = (
                "building without a container daemon needs root: it makes a file tree with "
                "everybody's files. With Docker or podman: docker build --file Containerfile "
                "--target pdcluster ."
            )
            raise ImageError(message)


def _architecture() -> str:
    machine = platform.machine()
    if machine not in _DEBIAN:
        message = f"no image is built on {machine}: NIXL has no wheels for it"
        raise ImageError(message)
    return _DEBIAN[machine]


def _version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def _size_of(folder: Path) -> int:
    return sum(
        path.lstat().st_size
        for top, _, names in os.walk(folder)
        for path in map(Path(top).joinpath, names)
    )


def _say(text: str) -> None:
    print(f"image: {text}", flush=True)


def _run(argv: Sequence[str], *, cwd: Path | None = None, log: Any = None) -> str:
    """Run a program to its end; where it fails, the end of what it said is the message."""
    ended = subprocess.run(
        ["nice", *argv],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log or subprocess.PIPE,
        text=True,
        check=False,
    )
    if ended.returncode:
        said = "" if log else "\n".join((ended.stderr or ended.stdout).splitlines()[-20:])
        where = f" (see {log.name})" if log else f":\n{said}"
        message = f"{' '.join(argv[:6])} ... failed{where}"
        raise ImageError(message)
    return ended.stdout


@contextmanager
def _locked(*paths: Path) -> Iterator[None]:
    """One build at a time on a cache: others wait, then find it done."""
    path, *rest = paths
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not rest:
            yield
        else:
            with _locked(*rest):
                yield
