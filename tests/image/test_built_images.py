"""What is in the images, and what is not."""

from __future__ import annotations

import json
import marshal
import os
import re
import struct
import subprocess
import sys
import tarfile
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType

import pytest
from tools.image.archive import Contents, layers
from tools.image.build import Builder
from tools.image.parts import find_parts
from tools.image.recipe import TARGETS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
SITE = "opt/pdcluster/lib/python3.11/site-packages"
MAX_BYTES = {"pdcluster": 320_000_000, "pdcluster-sim": 540_000_000}
UNCHECKED = 0b01
"""Flags of a .pyc file that is taken as it is (PEP 552)."""


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / "locks" / f"{lock}.txt").read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+) \\$", text, re.MULTILINE))


def members(archive: Path) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    with tarfile.open(archive) as whole:
        for layer in layers(whole):
            for member in layer:
                yield member, layer


@pytest.mark.parametrize("target", TARGETS)
def test_it_runs_as_somebody_who_is_nobody(contents: Mapping[str, Contents], target: str) -> None:
    config = contents[target].config["config"]
    variables = dict(word.split("=", 1) for word in config["Env"])
    assert config["User"] == "65532:65532", "a number: runAsNonRoot can't judge a name"
    assert variables["LOGNAME"] == "pdcluster"
    assert variables["HOME"] == "/tmp"
    assert variables["PATH"].startswith("/opt/pdcluster/bin:")
    assert not config.get("Entrypoint"), "manifests say what runs"


@pytest.mark.parametrize("target", TARGETS)
def test_it_says_what_it_is(contents: Mapping[str, Contents], target: str) -> None:
    labels = contents[target].config["config"]["Labels"]
    assert labels["org.opencontainers.image.title"] == target
    version = pins_of(contents[target])["pdcluster"]
    assert labels["org.opencontainers.image.version"] == version


def pins_of(contents: Contents) -> dict[str, str]:
    return {part.name: part.version for part in find_parts(contents.texts) if part.kind == "pypi"}


def test_it_holds_what_its_lock_names_and_the_project(contents: Mapping[str, Contents]) -> None:
    ours = {"pdcluster": pins_of(contents["pdcluster"])["pdcluster"]}
    assert pins_of(contents["pdcluster"]) == pins("image") | ours
    assert pins_of(contents["pdcluster-sim"]) == pins("image-sim") | pins("nixl") | ours


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_there_that_nobody_runs(contents: Mapping[str, Contents], target: str) -> None:
    top = {path.removeprefix(f"{SITE}/").split("/")[0] for path in contents[target].sizes}
    assert not [name for name in top if name.startswith(("nixl_ep", "torch", "pip", "setuptools"))]
    assert ("nixl_cu13" in top) == (target == "pdcluster-sim")
    assert not any(
        path.startswith(("tools/", "wheel", "source/")) for path in contents[target].sizes
    )


@pytest.mark.parametrize("target", TARGETS)
def test_its_size_stays_in_bounds(contents: Mapping[str, Contents], target: str) -> None:
    assert contents[target].size < MAX_BYTES[target]


@pytest.mark.parametrize("target", TARGETS)
def test_any_user_can_read_it_and_none_can_become_another(
    archives: Mapping[str, Path], target: str
) -> None:
    for member, _ in members(archives[target]):
        if not member.name.startswith("opt/pdcluster") or member.issym():
            continue
        wanted = 0o555 if member.isdir() else 0o444
        assert member.mode & wanted == wanted, f"{member.name}: {member.mode:o}"
        assert not member.mode & 0o6022, f"{member.name}: {member.mode:o}"


@pytest.mark.parametrize("target", TARGETS)
def test_every_module_comes_compiled_and_is_taken_as_it_is(
    archives: Mapping[str, Path], target: str
) -> None:
    sources, compiled = set(), set()
    for member, layer in members(archives[target]):
        if not member.isfile() or not member.name.startswith(SITE):
            continue
        if member.name.endswith(".py"):
            sources.add(member.name)
        elif member.name.endswith(".pyc"):
            file = layer.extractfile(member)
            assert file is not None
            data = file.read()
            assert struct.unpack("<I", data[4:8])[0] == UNCHECKED, member.name
            compiled.add(re.sub(r"__pycache__/(.+)\.cpython-311\.pyc$", r"\1.py", member.name))
            if member.name.endswith("pdcluster_api/__pycache__/defaults.cpython-311.pyc"):
                code = marshal.loads(data[16:])
                assert isinstance(code, CodeType)
                assert code.co_filename == f"/{SITE}/pdcluster_api/defaults.py"
    assert len(sources) > 1000
    assert sources == compiled


def hosts_of_this_machine() -> set[bytes]:
    """Where this machine's own configuration sends package tools, beside the public places."""
    texts = [value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))]
    texts += [value for name, value in os.environ.items() if name.lower().endswith("_proxy")]
    settings = (Path("/etc/pip.conf"), *Path("/etc/apt").glob("sources.list*"))
    for path in (*settings, *Path("/etc/apt").glob("*.d/*")):
        if path.is_file() and os.access(path, os.R_OK):
            lines = path.read_text(errors="replace").splitlines()
            texts += [line for line in lines if not line.lstrip().startswith(("#", "//"))]
    urls = re.findall(r"[a-z]+://[^\s\"']+", "\n".join(texts))
    names = {urllib.parse.urlsplit(url).hostname for url in urls}
    # Packages' own metadata name the public places, too.
    return {
        name.encode()
        for name in names - {"pypi.org", "localhost", "127.0.0.1"}
        if name and not name.endswith(".debian.org")
    }


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_of_the_machine_that_built_it_is_in_it(
    archives: Mapping[str, Path], target: str
) -> None:
    hosts = hosts_of_this_machine()
    here = [str(ROOT).encode() + b"/", str(Path.home()).encode() + b"/.cache"]
    for member, layer in members(archives[target]):
        if not member.isfile():
            continue
        file = layer.extractfile(member)
        assert file is not None
        data = file.read()
        # A library's own pages may name the same address as a setting here; settings may not.
        is_setting = member.name.startswith(("etc/", "root/", "home/", "var/lib/apt/"))
        for word in (*(hosts if is_setting else ()), *here):
            assert word not in data, f"{member.name} names {word.decode()}"


@pytest.mark.parametrize("target", TARGETS)
def test_the_bill_of_materials_lies_beside_it(
    archives: Mapping[str, Path], contents: Mapping[str, Contents], target: str
) -> None:
    bill = json.loads(archives[target].with_suffix(".cdx.json").read_text())
    assert bill["metadata"]["component"]["hashes"][0]["content"] == contents[target].digest
    listed = {c["name"]: c["version"] for c in bill["components"] if ":pypi/" in c["bom-ref"]}
    assert listed == pins_of(contents[target])
    packages = {c["name"] for c in bill["components"] if ":deb/" in c["bom-ref"]}
    assert {"libc6", "python3.11", "ca-certificates"} <= packages


def test_a_second_build_does_nothing(builder: Builder, archives: Mapping[str, Path]) -> None:
    before = {path: path.stat().st_mtime_ns for path in archives.values()}
    subprocess.run(
        [sys.executable, "-m", "tools.image"],
        cwd=ROOT,
        env={**os.environ, "PATH": "/nonexistent"},
        check=True,
        timeout=60,
    )
    assert {path: path.stat().st_mtime_ns for path in archives.values()} == before


def test_the_sizes_are_told(builder: Builder, archives: Mapping[str, Path]) -> None:
    said = builder.sizes("pdcluster-sim")
    assert "Debian packages" in said[0]
    assert any("nixl-cu13" in line for line in said)
