"""How a Deployment of engines was rendered first: kept in a ControllerRevision.

Pure. A newer operator may render the same resource in another way. That must restart no engine, so
what was rendered for given inputs stays in force until the inputs change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pdcluster_operator.manifests.labels import INPUT_ANNOTATION
from pdcluster_operator.manifests.objects import Manifest, Owner, manifest

__all__ = ["RECORD_KIND", "input_of", "recorded", "rendering_record", "with_replicas"]

RECORD_KIND: Final = "ControllerRevision"


def input_of(deployment: Manifest) -> str:
    """Hash of the inputs that a manifest was rendered from."""
    metadata = deployment["metadata"]
    assert isinstance(metadata, Mapping)
    annotations = metadata["annotations"]
    assert isinstance(annotations, Mapping)
    return str(annotations[INPUT_ANNOTATION])


def rendering_record(deployment: Manifest, owner: Owner) -> Manifest:
    """Keep a rendering; its name has the inputs' hash, because its content can't be changed."""
    metadata = deployment["metadata"]
    assert isinstance(metadata, Mapping)
    made = input_of(deployment)
    return manifest(
        RECORD_KIND,
        f"{metadata['name']}-{made}",
        owner,
        labels=metadata["labels"],
        inputs_hash=made,
        data=deployment,
        revision=1,
    )


def recorded(live: Mapping[str, object]) -> Manifest | None:
    """Read a rendering back; None where it is none."""
    data = live.get("data")
    if not isinstance(data, Mapping):
        return None
    is_whole = isinstance(data.get("metadata"), Mapping) and isinstance(data.get("spec"), Mapping)
    return data if is_whole else None


def with_replicas(deployment: Manifest, replicas: int) -> Manifest:
    """A rendering with the number of engines that is wanted now."""
    spec = deployment["spec"]
    assert isinstance(spec, Mapping)
    return {**deployment, "spec": {**spec, "replicas": replicas}}
