"""Reading an image's archive: layers, packages, weights, bill of materials."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from tools.image.archive import Contents, read_contents
from tools.image.parts import Part, find_parts, operating_system, table, weigh
from tools.image.sbom import bill_of_materials, package_url

SITE = "opt/x/lib/python3.11/site-packages"
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Source: glibc
Version: 2.36-9+deb12u9
Description: GNU C Library
 a text of more lines
 .
 Package: pretended

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: bash
Status: install ok installed
Architecture: amd64
Source: bash (5.2.15-2)
Version: 5.2.15-2+b7

Package: passwd
Status: install ok installed
Architecture: amd64
Version: 1:4.13
"""
METADATA = """\
Metadata-Version: 2.4
Name: Some_Thing
Version: 1.0.post1
License-Expression: MIT OR Apache-2.0

Name: pretended
"""
OLD_METADATA = "Metadata-Version: 2.1\nName: old\nVersion: 2\nLicense: BSD 3-clause\n\ntext\n"
WHOLE_LICENCE = "Metadata-Version: 2.1\nName: long\nVersion: 3\nLicense: Copyright\n  and more\n\n"
STORY = f"Metadata-Version: 2.1\nName: story\nVersion: 4\nLicense: Free {'and ' * 20} easy\n\n"
RECORD = """\
some_thing/__init__.py,sha256=abc,10
"some_thing/a,b.txt",,
../../../bin/some,sha256=abc,5
some_thing-1.0.post1.dist-info/RECORD,,
"""
TEXTS = {
    "etc/os-release": 'ID=debian\nVERSION_ID="12"\nNAME="Debian GNU/Linux"\n',
    "var/lib/dpkg/status": STATUS,
    "var/lib/dpkg/info/libc6:amd64.list": "/.\n/lib\n/lib/libc.so.6\n/usr/share/x\n",
    "var/lib/dpkg/info/bash.list": "/bin/bash\n",
    f"{SITE}/some_thing-1.0.post1.dist-info/METADATA": METADATA,
    f"{SITE}/some_thing-1.0.post1.dist-info/RECORD": RECORD,
    f"{SITE}/old-2.dist-info/METADATA": OLD_METADATA,
    f"{SITE}/long-3.dist-info/METADATA": WHOLE_LICENCE,
    f"{SITE}/story-4.dist-info/METADATA": STORY,
}


def layer_of(files: Mapping[str, bytes | None]) -> bytes:
    """One layer; None makes a folder, ``name -> target`` a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            path, _, target = name.partition(" -> ")
            info = tarfile.TarInfo(path)
            if data is None:
                info.type = tarfile.DIRTYPE
            elif target:
                info.type, info.linkname = tarfile.SYMTYPE, target
            else:
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data or b""))
    return buffer.getvalue()


def read_layers(tmp_path: Path, *layers: bytes) -> Contents:
    files = {f"{number}.tar": data for number, data in enumerate(layers)}
    manifest = [{"Config": "abc123.json", "Layers": list(files)}]
    files["manifest.json"] = json.dumps(manifest).encode()
    files["abc123.json"] = json.dumps({"config": {"User": "65532:65532"}}).encode()
    archive = tmp_path / "image.tar"
    archive.write_bytes(layer_of(files))
    return read_contents(archive)


def test_later_layers_cover_and_hide_what_earlier_ones_brought(tmp_path: Path) -> None:
    contents = read_layers(
        tmp_path,
        layer_of({"a": None, "a/one": b"1", "a/two": b"22", "b": b"old", "c/x": b"x", "cc": b"c"}),
        gzip.compress(layer_of({"b": b"newer", "a/.wh.one": b"", ".wh.c": b"", "c/y": b"yy"})),
    )
    assert contents.sizes == {"a/two": 2, "b": 5, "c/y": 2, "cc": 1}
    assert contents.size == 10


def test_a_folder_made_anew_hides_all_that_lay_in_it(tmp_path: Path) -> None:
    contents = read_layers(
        tmp_path,
        layer_of({"a/one": b"1", "a/deep/two": b"22", "ab": b"3"}),
        layer_of({"a/new": b"4444", "a/.wh..wh..opq": b""}),
    )
    assert contents.sizes == {"a/new": 4, "ab": 1}


def test_a_link_weighs_nothing(tmp_path: Path) -> None:
    assert read_layers(tmp_path, layer_of({"./a": b"1", "b -> a": b""})).sizes == {"a": 1, "b": 0}


def test_the_databases_texts_are_those_that_are_still_there(tmp_path: Path) -> None:
    status, old = "var/lib/dpkg/status", f"{SITE}/old-2.dist-info/METADATA"
    contents = read_layers(
        tmp_path,
        layer_of({status: b"first", old: b"old", "etc/passwd": b"root"}),
        layer_of({status: b"second", f"{SITE}/.wh.old-2.dist-info": b""}),
    )
    assert contents.texts == {status: "second"}
    assert contents.config["config"]["User"] == "65532:65532"
    assert contents.digest == "abc123"


def test_a_text_that_became_a_link_is_none_any_more(tmp_path: Path) -> None:
    contents = read_layers(
        tmp_path,
        layer_of({"etc/os-release": b"ID=old", "usr/lib/os-release": b"ID=new"}),
        layer_of({"etc/os-release -> ../usr/lib/os-release": b""}),
    )
    assert operating_system(contents.texts) == {"ID": "new"}


def test_installed_packages_are_found_and_no_others() -> None:
    found = [(part.kind, part.name, part.version) for part in find_parts(TEXTS)]
    assert found == [
        ("deb", "bash", "5.2.15-2+b7"),
        ("deb", "libc6", "2.36-9+deb12u9"),
        ("deb", "passwd", "1:4.13"),
        ("pypi", "long", "3"),
        ("pypi", "old", "2"),
        ("pypi", "some-thing", "1.0.post1"),
        ("pypi", "story", "4"),
    ]


def test_licences_are_expressions_or_names_never_whole_texts() -> None:
    parts = {part.name: part for part in find_parts(TEXTS)}
    assert parts["some-thing"].licence == "MIT OR Apache-2.0"
    assert (parts["old"].licence, parts["old"].licence_name) == ("", "BSD 3-clause")
    for name in ("long", "story"):
        assert (parts[name].licence, parts[name].licence_name) == ("", "")


def test_every_byte_is_somebodys() -> None:
    sizes = {
        "usr/lib/libc.so.6": 1000,
        "usr/bin/bash": 100,
        f"{SITE}/some_thing/__init__.py": 10,
        f"{SITE}/some_thing/__pycache__/__init__.cpython-311.pyc": 7,
        f"{SITE}/some_thing/a,b.txt": 3,
        "opt/x/bin/some": 5,
        "etc/passwd": 2,
    }
    weights = weigh(find_parts(TEXTS), sizes)
    named = {part.name if part else None: size for part, size in weights.items() if size}
    assert named == {"libc6": 1000, "bash": 100, "some-thing": 25, None: 2}
    assert sum(weights.values()) == sum(sizes.values())


def test_the_table_shows_the_largest_and_adds_up_the_rest() -> None:
    parts = [Part(kind="pypi", name=name, version="1") for name in "abc"]
    weights = {parts[0]: 1_000_000, parts[1]: 5_000_000, parts[2]: 2_500_000, None: 100_000}
    assert table(weights, rows=1) == [
        "     5.0 MB  b 1 (Python distribution)",
        "     3.5 MB  2 smaller packages",
        "     0.1 MB  files of no package",
    ]


@pytest.mark.parametrize(
    ("part", "url"),
    [
        (
            Part(kind="pypi", name="some-thing", version="1.0+local"),
            "pkg:pypi/some-thing@1.0%2Blocal",
        ),
        (
            Part(kind="deb", name="passwd", version="1:4.13+dfsg1", architecture="amd64"),
            "pkg:deb/debian/passwd@1:4.13%2Bdfsg1?arch=amd64&distro=debian-12",
        ),
        (
            Part(
                kind="deb",
                name="libstdc++6",
                version="12",
                architecture="amd64",
                source=("gcc-12", "12.2"),
            ),
            "pkg:deb/debian/libstdc%2B%2B6@12?arch=amd64&distro=debian-12&upstream=gcc-12%4012.2",
        ),
    ],
)
def test_a_package_is_named_as_scanners_look_it_up(part: Part, url: str) -> None:
    assert package_url(part, operating_system(TEXTS)) == url


def test_debians_source_package_is_known_where_it_is_another() -> None:
    sources = {part.name: part.source for part in find_parts(TEXTS) if part.kind == "deb"}
    assert sources == {
        "bash": ("bash", "5.2.15-2"),
        "libc6": ("glibc", "2.36-9+deb12u9"),
        "passwd": None,
    }


def bill(digest: str = "0" * 64) -> str:
    return bill_of_materials(
        find_parts(TEXTS),
        image="docker.io/local/x:dev",
        version="1.2.3",
        digest=digest,
        system=operating_system(TEXTS),
    )


def test_the_bill_lists_the_system_and_every_package_once() -> None:
    read = json.loads(bill())
    assert (read["bomFormat"], read["specVersion"]) == ("CycloneDX", "1.6")
    names = [component["name"] for component in read["components"]]
    assert names == ["debian", "bash", "libc6", "passwd", "long", "old", "some-thing", "story"]
    references = [component["bom-ref"] for component in read["components"]]
    assert len({*references}) == len(references)


def test_the_bill_says_which_image_it_is_of() -> None:
    about = json.loads(bill("1" * 64))["metadata"]["component"]
    assert (about["type"], about["name"]) == ("container", "docker.io/local/x:dev")
    assert about["hashes"] == [{"alg": "SHA-256", "content": "1" * 64}]


def test_the_bill_says_licences_as_they_were_said() -> None:
    listed = {c["name"]: c.get("licenses") for c in json.loads(bill())["components"]}
    assert listed["some-thing"] == [{"expression": "MIT OR Apache-2.0"}]
    assert listed["old"] == [{"license": {"name": "BSD 3-clause"}}]
    assert listed["long"] is None


def test_the_same_image_gives_the_same_bill_and_another_one_another() -> None:
    assert bill() == bill()
    serials = [json.loads(text)["serialNumber"] for text in (bill(), bill("1" * 64))]
    assert serials[0] != serials[1]
    for serial in serials:
        assert str(uuid.UUID(serial.removeprefix("urn:uuid:"))) in serial
