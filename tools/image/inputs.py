"""What a build reads, and its digest: where nothing of it changed, nothing has to be built.

Shell: reads files. The rules for what belongs to a build stand once, in ``.containerignore``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

__all__ = ["AllowList", "IgnoreFileError", "context_files", "context_key", "read_allow_list"]

_HERE: Final = Path(__file__).resolve().parent


class IgnoreFileError(Exception):
    """``.containerignore`` has a form that this module does not read as container tools do."""


@dataclass(frozen=True, slots=True)
class AllowList:
    """The build's context: these paths, without files and folders of these names.

    Attributes:
        paths: Files or folders, relative to the context.
        names: Patterns for names left out wherever they appear.
    """

    paths: tuple[str, ...]
    names: tuple[str, ...]


def read_allow_list(text: str) -> AllowList:
    """Read an allow list.

    Raises:
        IgnoreFileError: It is none, or has other forms than the three it should keep to.
    """
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if lines[:1] != ["*"]:
        message = "the first rule has to be '*': an image's files are listed one by one"
        raise IgnoreFileError(message)
    paths, names = [], []
    for line in lines[1:]:
        if line.startswith("!") and not set(line) & set("*?[\\") and not line.startswith("!/"):
            paths.append(line[1:])
        elif line.startswith("**/") and "/" not in line.removeprefix("**/"):
            names.append(line.removeprefix("**/"))
        else:
            message = f"{line!r} is neither '!a/plain/path' nor '**/name'"
            raise IgnoreFileError(message)
    return AllowList(tuple(paths), tuple(names))


def context_files(root: Path, allowed: AllowList) -> Iterator[Path]:
    """List the context's files and links, sorted.

    Raises:
        IgnoreFileError: A listed path does not exist.
    """

    def is_left_out(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in allowed.names)

    found: set[Path] = set()
    for listed in allowed.paths:
        top = root / listed
        if top.is_file():
            found.add(top)
        elif not top.is_dir():
            message = f"{listed} is listed in .containerignore, but isn't there"
            raise IgnoreFileError(message)
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if not is_left_out(name)]
            found.update(Path(folder, name) for name in names if not is_left_out(name))
    yield from sorted(found)


def context_key(root: Path, *settings: str) -> str:
    """Name a build by all that goes into it: the context, its rules, this tool, ``settings``.

    Raises:
        IgnoreFileError: The context can't be told.
    """
    ignore, recipe = root / ".containerignore", root / "Containerfile"
    files = [
        ignore,
        recipe,
        *context_files(root, read_allow_list(ignore.read_text())),
        *sorted(_HERE.glob("*.py")),
    ]
    digest = hashlib.sha256("\0".join(settings).encode())
    for path in files:
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        mode = path.lstat().st_mode & 0o100  # What Git keeps of a mode.
        digest.update(f"{name} {mode} {len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]
