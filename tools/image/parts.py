"""The Debian packages and Python distributions of an image, and what each weighs.

Pure: works on what ``archive.py`` has read.

Source: deb-control(5), dpkg-query(1); Python packaging specifications (core metadata, RECORD).
"""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import Final, Literal

__all__ = ["Part", "find_parts", "operating_system", "table", "weigh"]

_STATUS: Final = "var/lib/dpkg/status"
_LISTS: Final = "var/lib/dpkg/info/"
_MERGED: Final = ("bin/", "sbin/", "lib/", "lib64/")
"""Folders that Debian's packages still name at the root, though they lie under ``usr``."""
_LONGEST_NAME: Final = 60
_COMPILED: Final = re.compile(r"__pycache__/([^/]+)\.cpython-\d+(?:\.opt-\d)?\.pyc$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One package.

    Attributes:
        kind: Debian's, or a Python distribution.
        name: As its index names it.
        version: Its version.
        architecture: Debian's word for it, "" for a distribution.
        source: Debian's source package and its version, where they are others.
        licence: An SPDX expression from the distribution's metadata, "" where there is none.
        licence_name: What older metadata says in place of it, if it is a name.
        files: Its files' paths in the image, byte code excepted.
    """

    kind: Literal["deb", "pypi"]
    name: str
    version: str
    architecture: str = ""
    source: tuple[str, str] | None = None
    licence: str = ""
    licence_name: str = ""
    files: frozenset[str] = frozenset()


def find_parts(texts: Mapping[str, str]) -> tuple[Part, ...]:
    """Read the package databases of an image; Debian's first, each kind by name."""
    found = [*_debian(texts), *_python(texts)]
    return tuple(sorted(found, key=lambda part: (part.kind, part.name)))


def operating_system(texts: Mapping[str, str]) -> dict[str, str]:
    """Read ``os-release``: ID, VERSION_ID and the rest."""
    text = texts.get("etc/os-release") or texts.get("usr/lib/os-release") or ""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name: value.strip('"') for name, value in pairs}


def weigh(parts: tuple[Part, ...], sizes: Mapping[str, int]) -> dict[Part | None, int]:
    """Add up each part's bytes, byte code included; None has what belongs to nobody."""
    owners = {path: part for part in parts for path in part.files}
    weights: dict[Part | None, int] = dict.fromkeys(parts, 0)
    weights[None] = 0
    for path, size in sizes.items():
        owner = owners.get(path) or owners.get(_COMPILED.sub(r"\1.py", path))
        weights[owner] += size
    return weights


def table(weights: Mapping[Part | None, int], *, rows: int) -> list[str]:
    """Say what the largest parts weigh, in MB, and what the rest does."""
    ordered = sorted(
        ((part, size) for part, size in weights.items() if part is not None),
        key=lambda pair: -pair[1],
    )
    names = {"deb": "Debian package", "pypi": "Python distribution"}
    lines = [
        f"{size / 1e6:8.1f} MB  {part.name} {part.version} ({names[part.kind]})"
        for part, size in ordered[:rows]
    ]
    rest = sum(size for _, size in ordered[rows:])
    lines.append(f"{rest / 1e6:8.1f} MB  {len(ordered[rows:])} smaller packages")
    lines.append(f"{weights.get(None, 0) / 1e6:8.1f} MB  files of no package")
    return lines


def _debian(texts: Mapping[str, str]) -> Iterator[Part]:
    for paragraph in texts.get(_STATUS, "").split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if fields.get("Status") != "install ok installed":
            continue
        name, architecture = fields["Package"], fields["Architecture"]
        version = fields["Version"]
        listed = texts.get(f"{_LISTS}{name}.list") or texts.get(
            f"{_LISTS}{name}:{architecture}.list", ""
        )
        yield Part(
            kind="deb",
            name=name,
            version=version,
            architecture=architecture,
            source=_source(fields.get("Source"), version),
            files=frozenset(_at_home(line) for line in listed.splitlines()),
        )


def _source(field: str | None, version: str) -> tuple[str, str] | None:
    """Read ``Source``: a name, then its version in brackets where that is another one."""
    if field is None:
        return None
    name, _, other = field.partition(" ")
    return name, other.strip("()") or version


def _at_home(path: str) -> str:
    path = path.lstrip("/")
    return f"usr/{path}" if path.startswith(_MERGED) else path


def _python(texts: Mapping[str, str]) -> Iterator[Part]:
    for path, text in texts.items():
        if not path.endswith(".dist-info/METADATA"):
            continue
        fields = HeaderParser().parsestr(text)
        info = path.removesuffix("/METADATA")
        site = posixpath.dirname(info)
        rows = csv.reader(texts.get(f"{info}/RECORD", "").splitlines())
        yield Part(
            kind="pypi",
            name=re.sub(r"[-_.]+", "-", fields["Name"]).lower(),
            version=fields["Version"],
            licence=fields.get("License-Expression", ""),
            licence_name=_licence_name(fields.get("License", "")),
            files=frozenset(posixpath.normpath(posixpath.join(site, row[0])) for row in rows),
        )


def _licence_name(text: str) -> str:
    """Take a free text only where it is a name: some hold the whole licence."""
    return text if "\n" not in text and len(text) <= _LONGEST_NAME else ""
