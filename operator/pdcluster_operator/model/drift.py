"""Whether an object still is as it was applied.

Pure. Everything we apply must be there and equal; what the server or others add is theirs. Numbers
with units are compared by value, since the server rewrites them.

Source: Kubernetes' resource.Quantity; ``x-kubernetes-map-type`` in its OpenAPI document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

from pdcluster_operator.manifests.merge import LIST_KEYS

__all__ = ["has_drifted"]

_SUFFIXES: Final[Mapping[str, Decimal]] = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal("1e3"),
    "M": Decimal("1e6"),
    "G": Decimal("1e9"),
    "T": Decimal("1e12"),
    "P": Decimal("1e15"),
    "E": Decimal("1e18"),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_QUANTITY: Final = re.compile(r"^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)(n|u|m|k|[MGTPE]i?|Ki)?$")
_ATOMIC: Final = frozenset({"selector", "matchLabels", "nodeSelector", "roleRef"})
"""Maps that an apply replaces as a whole: there an addition is a change."""
_KEYED: Final = {**LIST_KEYS, "ownerReferences": ("uid",)}


def has_drifted(applied: object, live: object, name: str = "") -> bool:
    """Whether ``live`` lacks or contradicts something of ``applied``.

    Args:
        applied: What we applied, or part of it.
        live: The same part of the object.
        name: The field it stands in.
    """
    if isinstance(applied, Mapping):
        if not isinstance(live, Mapping):
            # An empty map may be left out by the server.
            return bool(applied) or live is not None
        if name in _ATOMIC and not live.keys() <= applied.keys():
            return True
        return any(has_drifted(value, live.get(key), key) for key, value in applied.items())
    if _is_list(applied):
        assert isinstance(applied, Sequence)
        return _list_has_drifted(applied, live, name)
    return not _equal(applied, live)


def _list_has_drifted(applied: Sequence[object], live: object, name: str) -> bool:
    if not _is_list(live):
        return bool(applied) or live is not None
    assert isinstance(live, Sequence)
    keys = _KEYED.get(name)
    if keys is None or not all(isinstance(each, Mapping) for each in (*applied, *live)):
        return len(applied) != len(live) or any(
            has_drifted(mine, theirs) for mine, theirs in zip(applied, live, strict=True)
        )
    there = {_key_of(each, keys): each for each in live}
    # Others may add elements with keys of their own: a mesh its sidecar, for example.
    return any(has_drifted(each, there.get(_key_of(each, keys))) for each in applied)


def _key_of(element: object, keys: tuple[str, ...]) -> tuple[object, ...]:
    assert isinstance(element, Mapping)
    return tuple(element.get(key) for key in keys)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _equal(applied: object, live: object) -> bool:
    if applied == live:
        return True
    # An empty string, a zero and a false may be left out by the server.
    if live is None:
        return not applied
    mine, theirs = _quantity(applied), _quantity(live)
    return mine is not None and mine == theirs


def _quantity(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    match = _QUANTITY.match(str(value))
    if match is None:
        return None
    try:
        return Decimal(match[1]) * _SUFFIXES[match[2] or ""]
    except ArithmeticError:
        return None
