"""What is inside a finished image, read from its archive.

Shell: reads the archive, whoever wrote it (buildah, ``docker save``).

Source: Docker image specification 1.2 (``manifest.json``, layers, whiteouts).
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

__all__ = ["Contents", "layers", "read_contents"]

_TEXTS: Final = re.compile(
    r"etc/os-release|usr/lib/os-release|var/lib/dpkg/status|var/lib/dpkg/info/[^/]+\.list"
    r"|.+\.dist-info/(METADATA|RECORD)"
)
_HIDES: Final = ".wh."
_HIDES_ALL: Final = ".wh..wh..opq"


@dataclass(frozen=True, slots=True)
class Contents:
    """An image's files, as a container sees them.

    Attributes:
        config: The image's configuration: user, environment, labels.
        digest: SHA-256 of that configuration, which is the image's id.
        sizes: Bytes of each file by its path without a leading slash; links count nothing.
        texts: What the package databases say, by path.
    """

    config: dict[str, Any]
    digest: str
    sizes: dict[str, int]
    texts: dict[str, str]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(self.sizes.values())


def layers(archive: tarfile.TarFile) -> Iterator[tarfile.TarFile]:
    """Give an image's layers, lowest first."""
    for name in _manifest(archive)["Layers"]:
        with tarfile.open(fileobj=_member(archive, name), mode="r:*") as layer:
            yield layer


def read_contents(path: Path) -> Contents:
    """Read an archive that holds one image."""
    sizes: dict[str, int] = {}
    texts: dict[str, str] = {}
    with tarfile.open(path) as archive:
        config = _manifest(archive)["Config"]
        raw = _member(archive, config).read()
        for layer in layers(archive):
            below = list(sizes)
            for member in layer:
                name = member.name.removeprefix("./")
                folder, _, last = name.rpartition("/")
                if last == _HIDES_ALL:
                    _remove(f"{folder}/", below, sizes, texts)
                elif last.startswith(_HIDES):
                    hidden = f"{folder}/{last.removeprefix(_HIDES)}".removeprefix("/")
                    _remove(hidden, below, sizes, texts)
                elif not member.isdir():
                    sizes[name] = member.size if member.isfile() else 0
                    texts.pop(name, None)
                    if member.isfile() and _TEXTS.fullmatch(name):
                        found = layer.extractfile(member)
                        assert found is not None
                        texts[name] = found.read().decode(errors="replace")
    return Contents(json.loads(raw), Path(config).name.removesuffix(".json"), sizes, texts)


def _remove(hidden: str, below: list[str], *trees: dict[str, Any]) -> None:
    """Take out a file, or all of a folder, as far as lower layers brought it."""
    folder = hidden if hidden.endswith("/") else f"{hidden}/"
    for name in below:
        if name == hidden or name.startswith(folder):
            for tree in trees:
                tree.pop(name, None)


def _manifest(archive: tarfile.TarFile) -> dict[str, Any]:
    (one,) = json.load(_member(archive, "manifest.json"))
    return dict(one)


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)  # Follows the links that buildah writes.
    if found is None:
        message = f"{archive.name!r} has no file {name}"
        raise KeyError(message)
    return found
