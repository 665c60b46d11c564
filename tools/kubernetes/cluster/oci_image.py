"""OCI image archives of one layer, made from files of this machine.

Pure but for reading those files: enough for static programs, without registry and build tool.

Source: OCI image specification 1.1 (image-layout, config, manifest).
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Image", "write_image"]

_MEDIA = "application/vnd.oci.image"
_PATH = "PATH=/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What goes into an image.

    Attributes:
        name: Its full name; the archive says it, so an import knows it.
        files: Paths in the image to files here; all of them executable.
        links: Paths in the image to what they point at.
        entrypoint: Its command line.
        user: Whom it runs as, "" for root.
    """

    name: str
    files: Mapping[str, Path]
    entrypoint: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()
    user: str = ""


def write_image(image: Image, out: Path) -> None:
    """Write the archive; nothing is compressed, because it never travels."""
    layer = _layer(image)
    blobs: dict[str, bytes] = {}

    def add(media: str, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}

    def add_json(media: str, content: object) -> dict[str, object]:
        return add(media, json.dumps(content).encode())

    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(image.entrypoint), "User": image.user, "Env": [_PATH]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA}.manifest.v1+json",
        "config": add_json(f"{_MEDIA}.config.v1+json", config),
        "layers": [add(f"{_MEDIA}.layer.v1.tar", layer)],
    }
    top = add_json(f"{_MEDIA}.manifest.v1+json", manifest)
    # containerd gives the image this name when it imports the archive.
    top["annotations"] = {"io.containerd.image.name": image.name}
    index = {"schemaVersion": 2, "manifests": [top]}
    with tarfile.open(out, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", json.dumps(index).encode())
        for digest, data in blobs.items():
            _add(tar, f"blobs/sha256/{digest}", data)


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    paths = [path.lstrip("/") for path in (*image.files, *(path for path, _ in image.links))]
    folders = {str(parent) for path in paths for parent in Path(path).parents} - {"."}
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in sorted(folders | {"tmp", "etc"}):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(info)
        for path, source in image.files.items():
            _add(tar, path.lstrip("/"), source.read_bytes(), 0o755)
        for path, target in image.links:
            info = tarfile.TarInfo(path.lstrip("/"))
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))
