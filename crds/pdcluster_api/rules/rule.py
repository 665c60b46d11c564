"""What a rule is, and how a model obeys one.

Pure. The rules themselves stand in this package's other modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

__all__ = ["IMMUTABLE", "Rule", "broken_rules"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[T]):
    """One rule on one node of the resource.

    Attributes:
        cel: The rule for the API server; ``self`` is the node with its defaults filled in.
        holds: The same rule on the model, or None for a transition, which needs the old object.
        message: What is wrong and what to do.
        field: The field at fault below the node, dotted; empty for the node itself.
    """

    cel: str
    holds: Callable[[T], bool] | None
    message: str
    field: str = ""


def broken_rules(rules: Sequence[Rule[T]], node: T) -> tuple[Rule[T], ...]:
    """Return the rules that ``node`` breaks, in the table's order."""
    return tuple(rule for rule in rules if rule.holds is not None and not rule.holds(node))


IMMUTABLE: Final[Rule[object]] = Rule(
    cel="self == oldSelf", holds=None, message="cannot be changed; make a new object instead"
)
