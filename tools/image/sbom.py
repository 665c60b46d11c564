"""An image's software bill of materials.

Pure. The same image gives the same bytes: no time, no random serial number.

Source: CycloneDX 1.6 (JSON); Package URL specification (types deb and pypi).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from tools.image.parts import Part

__all__ = ["bill_of_materials", "package_url"]

_SPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:pdcluster:sbom")


def package_url(part: Part, system: Mapping[str, str]) -> str:
    """Name a package as vulnerability scanners look it up.

    Args:
        part: The package.
        system: What the image's ``os-release`` says.
    """
    version = quote(part.version, safe=":")
    if part.kind == "pypi":
        return f"pkg:pypi/{quote(part.name)}@{version}"
    distribution = system.get("ID", "debian")
    qualifiers = {
        "arch": part.architecture,
        "distro": f"{distribution}-{system.get('VERSION_ID', '')}",
    }
    if part.source is not None:
        # The advisories of Debian are about source packages.
        qualifiers["upstream"] = "@".join(part.source)
    words = "&".join(f"{key}={quote(value, safe=':')}" for key, value in qualifiers.items())
    return f"pkg:deb/{distribution}/{quote(part.name)}@{version}?{words}"


def bill_of_materials(
    parts: Sequence[Part],
    *,
    image: str,
    version: str,
    digest: str,
    system: Mapping[str, str],
) -> str:
    """Render the bill.

    Args:
        parts: The packages.
        image: The image's name.
        version: The project's.
        digest: The image's id, without the name of the hash.
        system: What the image's ``os-release`` says.
    """
    components: list[dict[str, object]] = [
        {
            "type": "operating-system",
            "bom-ref": "operating-system",
            "name": system.get("ID", "linux"),
            "version": system.get("VERSION_ID", ""),
        },
        *(_component(part, package_url(part, system)) for part in parts),
    ]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": "",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": image,
                "name": image,
                "version": version,
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
        },
        "components": components,
    }
    bill["serialNumber"] = f"urn:uuid:{uuid.uuid5(_SPACE, json.dumps(bill, sort_keys=True))}"
    return json.dumps(bill, indent=1) + "\n"


def _component(part: Part, url: str) -> dict[str, object]:
    component: dict[str, object] = {
        "type": "library",
        "bom-ref": url,
        "name": part.name,
        "version": part.version,
        "purl": url,
    }
    if part.licence:
        component["licenses"] = [{"expression": part.licence}]
    elif part.licence_name:
        component["licenses"] = [{"license": {"name": part.licence_name}}]
    return component
