"""Merging a user's pod template over ours, lists by their keys.

Pure. What the user names wins, what he does not name stays: maps are merged, a list whose elements
have a key is merged by it, any other list and every plain value is replaced. There is no way to
delete: a template that must not have something of ours asks for a field of its own.

Source: Kubernetes' OpenAPI document, ``x-kubernetes-patch-merge-key`` and
``x-kubernetes-list-map-keys`` of PodSpec and Container; a test compares it with a running server's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["LIST_KEYS", "merge"]

LIST_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "env": ("name",),
    "ports": ("containerPort", "port", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
}
"""Keys of the elements, by the list's name; a container's ports and a Service's have the same."""

_KEY_DEFAULTS: Final[Mapping[str, object]] = {"protocol": "TCP"}


def merge(base: object, patch: object, name: str = "") -> object:
    """Lay ``patch`` over ``base``.

    Args:
        base: Our value.
        patch: The user's.
        name: The field they stand in.
    """
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        merged = dict(base)
        for key, value in patch.items():
            merged[key] = merge(base[key], value, key) if key in base else value
        return merged
    keys = LIST_KEYS.get(name)
    if keys is not None and _are_maps(base) and _are_maps(patch):
        assert isinstance(base, Sequence)
        assert isinstance(patch, Sequence)
        return _merge_lists(base, patch, keys)
    return patch


def _merge_lists(
    base: Sequence[Mapping[str, object]],
    patch: Sequence[Mapping[str, object]],
    keys: tuple[str, ...],
) -> list[object]:
    """Ours in our order, merged; then what only the user has, in his order."""

    def key_of(element: Mapping[str, object]) -> tuple[object, ...]:
        return tuple(element.get(key, _KEY_DEFAULTS.get(key)) for key in keys)

    theirs = {key_of(element): element for element in patch}
    ours = [key_of(element) for element in base]
    merged: list[object] = [
        merge(element, theirs[key]) if key in theirs else element
        for key, element in zip(ours, base, strict=True)
    ]
    return merged + [element for key, element in theirs.items() if key not in set(ours)]


def _are_maps(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, Mapping) for each in value)
