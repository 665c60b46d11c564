"""The next version of the product, made from the tree: a chart and an image that know more.

Its resource has two fields more, both with a default: ``spec.newer``, and ``spec.engine.newer``
among what engines are made from. It renders engines in another way, and its proxies have another
setting.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tools.image.recipe import PYTHON

from tests.support.node import CHART

__all__ = ["FIELD_DEFAULT", "MADE_BY_NEXT", "NEXT_VERSION", "next_chart", "write_next_image"]

ROOT = Path(__file__).resolve().parents[2]
NEXT_VERSION: Final = "0.2.0"
FIELD_DEFAULT: Final = "told"
"""Default of both new fields."""

MADE_BY_NEXT: Final = "newer.pdcluster.io/made"
"""A label that the next version gives to the pods of engines, where it renders them."""

_PACKAGES: Final = f"opt/pdcluster/lib/python{PYTHON}/site-packages"
_FIELD: Final = f'    newer: str = "{FIELD_DEFAULT}"\n    """A field of a later version."""\n'
_EDITS: Final[Mapping[str, tuple[str, str]]] = {
    "crds/pdcluster_api/v1alpha1/cluster.py": (
        "    obeys = SPEC_RULES\n\n",
        f"    obeys = SPEC_RULES\n\n{_FIELD}",
    ),
    "crds/pdcluster_api/v1alpha1/engine.py": (
        '    """What both roles run."""\n\n',
        f'    """What both roles run."""\n\n{_FIELD}',
    ),
    "crds/pdcluster_api/revision.py": (
        "NEUTRAL: Final[Mapping[Path, object]] = {}\n",
        f'NEUTRAL: Final[Mapping[Path, object]] = {{("engine", "newer"): "{FIELD_DEFAULT}"}}\n',
    ),
    "crds/pdcluster_api/proxy_config.py": (
        "    listen: ListenConfig\n",
        f"{_FIELD}    listen: ListenConfig\n",
    ),
    "operator/pdcluster_operator/manifests/engines.py": (
        '"metadata": {"labels": labels, ',
        f'"metadata": {{"labels": {{**labels, "{MADE_BY_NEXT}": "yes"}}, ',
    ),
}
"""What the next version does differently: in each file, words and what stands in their place."""


# The chart


def next_chart(folder: Path) -> Path:
    """Copy the chart as the next version would have it.

    Args:
        folder: Where the copy goes.

    Returns:
        The copy.
    """
    made = folder / "newer"
    shutil.copytree(CHART, made)
    path = made / "templates" / "crds" / "pdclusters.yaml"
    text = path.read_text(encoding="utf-8")
    for name, indent in (("spec", 10), ("engine", 14)):
        text = _with_field(text, name, indent)
    path.write_text(text, encoding="utf-8")
    about = made / "Chart.yaml"
    about.write_text(about.read_text(encoding="utf-8").replace("0.1.0", NEXT_VERSION))
    return made


def _with_field(text: str, name: str, indent: int) -> str:
    """Put the new field first among an object's properties."""
    pad, below = " " * indent, " " * (indent + 2)
    found = re.search(rf"(?m)^{pad}{name}:\n(?:{below}.*\n)*?{below}properties:\n", text)
    assert found is not None, name
    field = (
        f"{below}  newer:\n"
        f"{below}    type: string\n"
        f"{below}    description: A field of a later version.\n"
        f"{below}    default: {FIELD_DEFAULT}\n"
    )
    return text[: found.end()] + field + text[found.end() :]


# The image


def write_next_image(archive: Path, out: Path, *, name: str) -> None:
    """Write the next version's image: the present one and a layer with what differs.

    The archive holds that layer alone. A node takes it that was given the present image, whose
    layers lie there unpacked.

    Args:
        archive: The present image, uncompressed, as ``make image`` leaves it.
        out: The archive to write.
        name: The new image's name.
    """
    config, sizes = _described(archive)
    layer = _layer(_next_sources())
    digests = config["rootfs"]["diff_ids"]
    digests.append(_digest(layer))
    config["history"].append({"created": config["created"], "created_by": "the next version"})
    config["config"]["Labels"]["org.opencontainers.image.version"] = NEXT_VERSION
    blobs = [json.dumps(config).encode(), layer]
    media = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{media}.manifest.v1+json",
        "config": _descriptor(f"{media}.config.v1+json", _digest(blobs[0]), len(blobs[0])),
        # Nothing is compressed: a layer's digest is that of its content.
        "layers": [
            _descriptor(f"{media}.layer.v1.tar", digest, size)
            for digest, size in zip(digests, (*sizes, len(layer)), strict=True)
        ],
    }
    blobs.append(json.dumps(manifest).encode())
    top = _descriptor(f"{media}.manifest.v1+json", _digest(blobs[-1]), len(blobs[-1]))
    top["annotations"] = {"io.containerd.image.name": name}
    with tarfile.open(out, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [top]}).encode())
        for blob in blobs:
            _add(tar, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)


def _described(archive: Path) -> tuple[dict[str, Any], tuple[int, ...]]:
    """An image's configuration, and how large its layers are."""
    with tarfile.open(archive) as tar:

        def opened(name: str) -> Any:  # Any: what a tarfile gives for a member.
            found = tar.extractfile(name)
            assert found is not None, name
            return found

        (image,) = json.load(opened("manifest.json"))
        sizes = tuple(opened(name).seek(0, io.SEEK_END) for name in image["Layers"])
        return json.load(opened(image["Config"])), sizes


def _next_sources() -> dict[str, bytes]:
    """The files that differ, by their path in the image."""
    sources = {}
    for path, (old, new) in _EDITS.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{path} has not once {old!r}"
        installed = path.partition("/")[2]
        sources[f"{_PACKAGES}/{installed}"] = text.replace(old, new).encode()
    return sources


def _layer(files: Mapping[str, bytes]) -> bytes:
    """A layer with these modules, without the byte code of the old ones."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, data in files.items():
            _add(tar, path, data)
            folder, _, module = path.rpartition("/")
            # Compiled modules of our images are not compared with their source.
            compiled = f"{module.removesuffix('.py')}.cpython-{PYTHON.replace('.', '')}.pyc"
            _add(tar, f"{folder}/__pycache__/.wh.{compiled}", b"")
    return buffer.getvalue()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _descriptor(media: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media, "digest": digest, "size": size}


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))
