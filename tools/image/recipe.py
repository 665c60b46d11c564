"""What the images are made of, and the command lines that make them.

Pure. Nothing here names a mirror or an index: where packages come from is the machine's own
configuration of apt and pip.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = [
    "LOCKS",
    "TARGETS",
    "Base",
    "Store",
    "base_containerfile",
    "base_for",
    "build_argv",
    "digest_of",
    "download_argv",
    "image_name",
    "pip_settings",
    "push_argv",
]

TARGETS: Final = ("pdcluster", "pdcluster-sim")
"""Targets of the Containerfile, in the order they are built."""

LOCKS: Final = ("image-build", "image-sim", "nixl")
"""Locks whose wheels a build needs; ``image`` is a part of ``image-sim``."""

SUITE: Final = "bookworm"
"""Debian 12: its Python is the 3.11 that the locks were resolved for."""

PYTHON: Final = "3.11"

PACKAGES: Final = ("python3", "python3-venv", "ca-certificates", "libstdc++6", "usr-is-merged")
"""Beside Debian's essential packages. Wheels (ZeroMQ's among them) want libstdc++, which nothing
else brings. The last one is empty and stands for ``usrmerge``, which would bring a whole Perl (50
MB) to do what the hook below does."""

_NOT_INSTALLED: Final = (
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/lintian/*",
    "/usr/share/doc/*",
)
_INSTALLED_ALL_THE_SAME: Final = ("/usr/share/doc/*/copyright",)
"""Licences travel with what they cover."""

_REMOVED: Final = (
    # apt is no part of the image, and its sources are those of the machine that built it.
    "/etc/apt",
    "/var/cache/apt",
    "/var/lib/apt",
    # What the build leaves, different each time.
    "/etc/hostname",
    "/etc/machine-id",
    "/etc/resolv.conf",
    "/var/cache/debconf/*-old",
    "/var/cache/ldconfig/aux-cache",
    "/var/lib/dpkg/*-old",
    "/var/log/*",
    "/tmp/*",
)

_OLDEST_GLIBC, _NEWEST_GLIBC = 17, 36
"""Minor versions of glibc 2 whose wheels Debian 12 runs (manylinux tags)."""


def image_name(target: str) -> str:
    """Name an image as the test cluster and the manifests of the tests know it."""
    return f"docker.io/local/{target}:dev"


def digest_of(*parts: str) -> str:
    """Name something by all that it was made from."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Base:
    """The base image: Debian's own Python, by the package tool's command line.

    Attributes:
        argv: The command, without the file it writes.
        key: A digest of that: another package or rule is another base.
    """

    argv: tuple[str, ...]
    key: str

    @property
    def image(self) -> str:
        """Its name in the store; never pushed anywhere."""
        return f"localhost/pdcluster-base:{self.key}"


def base_for(architecture: str) -> Base:
    """Describe the base for a Debian architecture, such as ``amd64``.

    Args:
        architecture: As ``dpkg --print-architecture`` says.
    """
    removed = " ".join(f'"$1"{path}' for path in _REMOVED)
    argv = (
        "mmdebstrap",
        "--variant=essential",
        # The hook below removes more than these would, and before they ran.
        "--skip=cleanup/apt,cleanup/mmdebstrap",
        f"--architectures={architecture}",
        f"--include={','.join(PACKAGES)}",
        *(f"--dpkgopt=path-exclude={path}" for path in _NOT_INSTALLED),
        *(f"--dpkgopt=path-include={path}" for path in _INSTALLED_ALL_THE_SAME),
        "--dpkgopt=force-unsafe-io",
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        '--aptopt=Acquire::Languages "none"',
        '--aptopt=Acquire::Retries "3"',
        f"--customize-hook=rm -rf {removed}",
        SUITE,
    )
    return Base(argv, digest_of(*argv))


def base_containerfile(archive: str) -> str:
    """Make the base image from its file tree."""
    return f'FROM scratch\nADD {archive} /\nCMD ["python3"]\n'


@dataclass(frozen=True, slots=True)
class Store:
    """Where buildah keeps images and layers: a folder of ours, not the machine's own.

    Attributes:
        folder: The folder.
    """

    folder: Path

    def argv(self, verb: str, *words: str) -> list[str]:
        """One buildah command on this store.

        The mount namespace takes buildah's mounts with it when it ends; the network namespace has
        no network, so a build can use only what is given to it.
        """
        return [
            *("unshare", "--mount", "--net"),
            *("buildah", "--storage-driver", "overlay"),
            *("--root", str(self.folder / "store"), "--runroot", str(self.folder / "run")),
            verb,
            *words,
        ]


def pip_settings() -> str:
    """What pip is told during a build, in place of the machine's own settings."""
    return "[global]\nno-index = true\nfind-links = /wheels\ndisable-pip-version-check = true\n"


def build_argv(
    store: Store, *, target: str, base: str, version: str, mounts: Mapping[Path, str]
) -> list[str]:
    """Build one target of the Containerfile in the current folder.

    Args:
        store: Where its layers go.
        target: One of ``TARGETS``.
        base: The image that ``ARG BASE`` names.
        version: The project's.
        mounts: Files and folders of this machine, and where ``RUN`` sees them, read-only.
    """
    volumes = [f"--volume={source}:{place}:ro" for source, place in mounts.items()]
    return store.argv(
        "bud",
        # Neither a daemon nor cgroups, and the same under any container runtime.
        "--isolation=chroot",
        "--layers",
        "--pull-never",
        # All times in the new layers are equal, so equal content gives an equal image.
        "--timestamp=0",
        "--quiet",
        f"--build-arg=BASE={base}",
        f"--build-arg=VERSION={version}",
        *volumes,
        f"--target={target}",
        f"--tag={image_name(target)}",
        "--file=Containerfile",
        ".",
    )


def push_argv(store: Store, *, target: str, archive: Path) -> list[str]:
    """Write an image to an archive that names it."""
    name = image_name(target)
    return store.argv("push", "--quiet", name, f"docker-archive:{archive}:{name}")


def download_argv(pip: Sequence[str], *, lock: Path, folder: Path, machine: str) -> list[str]:
    """Download a lock's wheels for the image's Python, whatever Python runs here.

    Args:
        pip: How pip is started here.
        lock: The file with versions and hashes.
        folder: Where the wheels go.
        machine: As ``uname -m`` says.
    """
    platforms = [
        *(
            f"manylinux_2_{minor}_{machine}"
            for minor in range(_NEWEST_GLIBC, _OLDEST_GLIBC - 1, -1)
        ),
        *(f"manylinux{old}_{machine}" for old in ("2014", "2010", "1")),
        f"linux_{machine}",
    ]
    return [
        *pip,
        *("download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"),
        *("--implementation=cp", f"--python-version={PYTHON}"),
        *(f"--platform={platform}" for platform in platforms),
        *("--requirement", str(lock), "--dest", str(folder)),
    ]
