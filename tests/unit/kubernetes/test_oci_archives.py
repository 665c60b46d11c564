"""Image archives that a container runtime can import."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tools.kubernetes.cluster.oci_image import Image, write_image


@pytest.fixture
def archive(tmp_path: Path) -> dict[str, bytes]:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF pretended")
    image = Image(
        name="docker.io/local/x:1",
        files={"/opt/bin/x": program},
        links=(("/bin/y", "../opt/bin/x"),),
        entrypoint=("/opt/bin/x", "--serve"),
        user="65532",
    )
    out = tmp_path / "image.tar"
    write_image(image, out)
    with tarfile.open(out) as tar:
        members = [member for member in tar.getmembers() if member.isfile()]
        read = [(member.name, tar.extractfile(member)) for member in members]
        return {name: file.read() for name, file in read if file is not None}


def follow(archive: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    digest = descriptor["digest"].removeprefix("sha256:")
    blob = archive[f"blobs/sha256/{digest}"]
    assert hashlib.sha256(blob).hexdigest() == digest
    assert len(blob) == descriptor["size"]
    return blob


def test_every_descriptor_leads_to_the_blob_it_describes(archive: dict[str, bytes]) -> None:
    (top,) = json.loads(archive["index.json"])["manifests"]
    manifest = json.loads(follow(archive, top))
    (layer,) = manifest["layers"]
    config = json.loads(follow(archive, manifest["config"]))
    digest = hashlib.sha256(follow(archive, layer)).hexdigest()
    assert config["rootfs"]["diff_ids"] == [f"sha256:{digest}"]


def test_the_archive_says_its_name_command_and_user(archive: dict[str, bytes]) -> None:
    (top,) = json.loads(archive["index.json"])["manifests"]
    assert top["annotations"] == {"io.containerd.image.name": "docker.io/local/x:1"}
    config = json.loads(follow(archive, json.loads(follow(archive, top))["config"]))["config"]
    assert config["Entrypoint"] == ["/opt/bin/x", "--serve"]
    assert config["User"] == "65532"


def test_files_are_executable_and_links_point_where_they_should(
    archive: dict[str, bytes], tmp_path: Path
) -> None:
    (top,) = json.loads(archive["index.json"])["manifests"]
    (layer,) = json.loads(follow(archive, top))["layers"]
    (tmp_path / "layer.tar").write_bytes(follow(archive, layer))
    with tarfile.open(tmp_path / "layer.tar") as tar:
        assert tar.getmember("opt/bin/x").mode == 0o755
        assert tar.getmember("bin/y").linkname == "../opt/bin/x"
        assert tar.getmember("tmp").mode == 0o1777
